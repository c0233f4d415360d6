"""What findings and goals say where little is known: no cause that the process could not feel, no `X → X`."""

from __future__ import annotations

from array import array

import pytest

from envguard.acquire.runs.train_log import TrainLog
from envguard.model.event import Event
from envguard.model.evidence import Evidence
from envguard.restore.witnesses import also_named
from envguard.timeline.causes import LOADED
from envguard.timeline.happening import make_event
from envguard.timeline.inferred import inferred_swaps
from envguard.timeline.log_events import RateChange
from envguard.timeline.packages import Packages
from envguard.timeline.previous import Previous, Sighting
from envguard.timeline.run_findings import fall_findings
from envguard.timeline.throughput import Segment
from envguard.timeline.transactions import Version

S = 1_000_000_000
START = 1_779_000_000 * S
TOLD = (Evidence(witness="journal", path="journal.jsonl", field="torch", value="2.11.0"),)


def happened(kind: str, subject: str, at_s: int) -> Event:
    time = START + at_s * S
    return make_event(kind, subject, time, time, f"{subject} changed", TOLD, from_="1", to="2")  # type: ignore[arg-type]


def fall(restarted: bool) -> RateChange:
    log = TrainLog(path="train.jsonl", fields={}, step=array("q", range(100)))
    event = happened("run.throughput", "train.jsonl", 100)
    before, after = Segment(0, 49, 76.9, 50, 0), Segment(50, 99, 65.4, 50, 1 if restarted else 0)
    return RateChange(before, after, event, log, START, START + 100 * S, restarted)


@pytest.mark.parametrize("kind", LOADED)
def test_what_a_running_process_does_not_notice_is_never_its_likeliest_cause(kind: str) -> None:
    swap = happened(kind, "torch", 50)
    (same,) = fall_findings([fall(restarted=False)], [swap])
    assert "Likeliest" not in same.says
    assert "nothing that a running process notices" in same.says
    assert any("keeps the packages and code it loaded" in caveat for caveat in same.caveats)
    (anew,) = fall_findings([fall(restarted=True)], [swap])
    assert "Likeliest cause" in anew.says


def test_what_it_does_notice_comes_first_however_light_it_weighs() -> None:
    swap, boot = happened("package.replaced", "torch", 50), happened("system.boot", "boot", 50)
    (finding,) = fall_findings([fall(restarted=False)], [swap, boot])
    assert "boot changed" in finding.says
    assert any(caveat.startswith("torch was replaced too") for caveat in finding.caveats)


def test_two_builds_of_one_version_are_told_apart() -> None:
    version = Version("2.11.0", "2.11.0")
    seen = [
        Sighting("torch", version, START + at * S, "journal", TOLD, build=build * 64)
        for at, build in ((0, "a"), (9, "b"))
    ]
    (event,) = inferred_swaps(seen, Packages((), (), ()))
    assert event.summary == (
        "torch 2.11.0 (build aaaaaaaaaaaa) → 2.11.0 (build bbbbbbbbbbbb), some time between two records"
    )


def test_what_else_is_named_is_named_once_and_by_what_tells_it_apart() -> None:
    def candidate(full: str, build: str | None) -> Previous:
        version = Version(full, full)
        return Previous(version, (Sighting("torch", version, START, "journal", TOLD, build=build),))

    found = (
        candidate("2.11.0", "a" * 64),
        candidate("2.11.0", "b" * 64),
        candidate("2.11.0", "b" * 64),
        candidate("2.11.0", None),
        candidate("2.10.0", "c" * 64),
        candidate("2.10.0", "d" * 64),
    )
    assert also_named(found) == ["2.11.0 as build bbbbbbbbbbbb", "2.10.0"]
    assert also_named(found[:1]) == []
