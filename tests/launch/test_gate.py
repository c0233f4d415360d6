"""What stands against a start, what a waiver lets through, and the code that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from envguard.errors import UsageError
from envguard.launch import waivers
from envguard.launch.gate import decide
from envguard.launch.waivers import Waiver, parse_until, parse_waivers
from envguard.model.action import Check
from envguard.model.drift import Drift, Facet, Severity
from envguard.model.evidence import Unknown

NOW = "2026-05-18T20:52:00+00:00"
BEFORE, AFTER = "2026-05-18T20:51:59+00:00", "2026-05-18T20:52:01+00:00"


def drift(severity: Severity, subject: str = "torch", facet: Facet = "torch") -> Drift:
    return Drift(facet=facet, subject=subject, a="1", b="2", severity=severity, effect="numerics", why="")


def waiver(facet: str, subject: str | None = None, until: str | None = None) -> Waiver:
    return Waiver(facet=facet, subject=subject, because="tested", author="ada", given=NOW, until=until)


BUSY = Check(check="gpu processes", ok=False, detail="", passing=True, facet="gpu")
BROKEN = Check(check="gpu errors", ok=False, detail="", facet="gpu")
UNSEEN = Check(check="gpus", ok=None, detail="", facet="gpu")
FINE = Check(check="disk", ok=True, detail="")
UPGRADING = Check(check="driver", ok=False, detail="", passing=True, facet="driver")


@pytest.mark.parametrize(
    ("drifts", "unknown", "checks", "refuse", "code"),
    [
        ([], [], [FINE], "warn", 0),
        ([drift("info")], [], [], "warn", 0),
        ([drift("warn")], [], [], "warn", 78),
        ([drift("block")], [], [], "warn", 78),
        ([drift("warn")], [], [], "block", 0),
        ([drift("block")], [], [], "block", 78),
        ([], [Unknown("gpus", "999")], [], "warn", 3),
        ([], [Unknown("gpus", "999")], [], "block", 3),
        ([], [], [UNSEEN], "warn", 3),
        ([], [], [BUSY], "warn", 75),
        ([], [], [BUSY, FINE], "warn", 75),
        ([], [], [BROKEN], "warn", 78),
        ([], [], [BUSY, BROKEN], "warn", 78),
        ([drift("warn")], [], [BUSY], "warn", 78),
        # Only where nothing but passing states stands against it is it 75.
        ([], [Unknown("data", "no digest")], [BUSY], "warn", 3),
        ([drift("warn")], [Unknown("data", "no digest")], [], "warn", 78),
        # While the driver is being upgraded, what driver and GPUs look like says nothing.
        ([drift("block", "agrees", "driver"), drift("warn", "version", "driver")], [Unknown("gpus", "NVML: 18")],
         [UPGRADING, UNSEEN], "warn", 75),
        ([drift("block", "agrees", "driver"), drift("warn")], [], [UPGRADING], "warn", 78),
    ],
)  # fmt: skip
def test_the_code(
    drifts: list[Drift], unknown: list[Unknown], checks: list[Check], refuse: Literal["warn", "block"], code: int
) -> None:
    verdict = decide(drifts, unknown, checks, (), refuse, NOW)
    assert verdict.code == code
    assert verdict.decision == {0: "go", 75: "retry"}.get(code, "refuse")


def test_a_waiver_covers_its_facet_and_subject_and_nothing_else() -> None:
    drifts = [drift("block"), drift("warn", "numpy", "packages")]
    assert decide(drifts, (), (), (waiver("torch"),), "warn", NOW).drifts == (drifts[1],)
    assert decide(drifts, (), (), (waiver("torch"), waiver("packages", "num*")), "warn", NOW).code == 0
    assert decide(drifts, (), (), (waiver("torch"), waiver("packages", "scipy")), "warn", NOW).code == 78


@pytest.mark.parametrize(
    ("drifts", "checks", "given", "code"),
    [
        ([], [], (), 3),
        ([drift("block")], [], (), 3),
        ([drift("block")], [BROKEN], (), 78),
        ([drift("block")], [], (waiver("unknown"),), 78),
        ([drift("block")], [], (waiver("unknown"), waiver("torch")), 0),
        ([], [], (waiver("unknown"),), 0),
    ],
)
def test_what_is_inferred_of_a_checkpoint_without_a_stamp_leaves_the_start_undetermined(
    drifts: list[Drift], checks: list[Check], given: tuple[Waiver, ...], code: int
) -> None:
    unknown = [Unknown("step_5", "it has no stamp")]
    verdict = decide(drifts, unknown, checks, given, "warn", NOW, inferred=True)
    assert verdict.code == code
    assert len(verdict.drifts) == sum(not any(item.facet == "torch" for item in given) for _ in drifts)


def test_a_waived_drift_is_named_with_who_answers_for_it() -> None:
    verdict = decide([drift("block")], (), (), (waiver("torch", until=AFTER),), "warn", NOW)
    (waived,) = verdict.waived
    assert (waived.facet, waived.author, waived.because, waived.until) == ("torch", "ada", "tested", AFTER)
    assert waived.covers == ("torch:torch",)


def test_only_a_waiver_of_unknown_covers_what_is_undetermined() -> None:
    unseen = [Unknown("gpus", "NVML 999")]
    assert decide((), unseen, (), (waiver("gpu"),), "warn", NOW).code == 3
    assert decide((), unseen, [UNSEEN], (waiver("unknown"),), "warn", NOW).code == 0
    assert decide((), unseen, (), (waiver("unknown", "data*"),), "warn", NOW).code == 3
    # and it covers nothing that is known
    assert decide([drift("warn")], (), (), (waiver("unknown"),), "warn", NOW).code == 78


def test_an_expired_waiver_counts_as_none_and_is_said() -> None:
    verdict = decide([drift("block")], (), (), (waiver("torch", until=BEFORE),), "warn", NOW)
    assert verdict.code == 78
    assert [str(item) for item in verdict.expired] == ["torch"]


def test_an_unused_waiver_is_said() -> None:
    verdict = decide([drift("block")], (), (), (waiver("torch"), waiver("gpu")), "warn", NOW)
    assert [str(item) for item in verdict.unused] == ["gpu"]


def test_a_failed_check_is_waived_by_its_facet_and_name() -> None:
    assert decide((), (), [BUSY], (waiver("gpu", "gpu processes"),), "warn", NOW).code == 0
    assert decide((), (), [BUSY], (waiver("gpu", "gpu errors"),), "warn", NOW).code == 75


@pytest.mark.parametrize(
    ("texts", "because", "until", "says"),
    [
        (["packges"], "x", None, "unknown facet 'packges'"),
        (["torch:"], "x", None, "no subject"),
        (["torch"], None, None, "--waive without --because"),
        (["torch"], "  ", None, "--waive without --because"),
        ([], "x", None, "--because without --waive"),
        ([], None, "2026-01-01", "--until without --waive"),
        (["torch"], "x", "next week", "is no date"),
        (["torch"], "x", "2026-02-30", "is no date"),
    ],
)
def test_a_waiver_that_cannot_be_is_refused(
    texts: list[str], because: str | None, until: str | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        parse_waivers(texts, because, until, "ada", NOW)


def test_a_misspelt_facet_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        parse_waivers(["pakages"], "x", None, "ada", NOW)
    assert caught.value.hint == "did you mean `packages`?"


def test_a_day_is_good_until_it_is_over_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_until("2026-05-18") == "2026-05-19T00:00:00+09:00"
        assert parse_until("2026-05-18T12:00") == "2026-05-18T12:00:00+09:00"
        assert parse_until("2026-05-18T12:00+00:00") == "2026-05-18T21:00:00+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_only_dated_waivers_stand_for_later_launches(tmp_path: Path) -> None:
    long_over = "2026-01-01T00:00:00+00:00"
    given = (
        waiver("torch"),
        waiver("gpu", until=AFTER),
        waiver("data", until=BEFORE),
        waiver("env", until=long_over),
    )
    waivers.store(tmp_path, given, "run-1")
    stored = waivers.read_waivers(tmp_path)
    assert [item.run for item in stored] == ["run-1"] * 4
    standing, over = waivers.standing(stored, NOW)
    assert [str(item) for item in standing] == ["gpu"]
    assert [str(item) for item in over] == ["data"]
