"""Between the gate's look and the watch nobody looks: it is compared once more when the watch is ready."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.launch.child import Child
from envguard.launch.guard import Guard
from envguard.launch.ledger import Ledger
from envguard.launch.observer import Observer, Sight
from envguard.launch.watch import Watched
from envguard.model.drift import DiffReport, Drift, Side
from envguard.model.run import RunRecord


class Quiet:
    """A guard over a run that logs nothing."""

    notes = ()

    def look(self, now: float) -> None:
        return None

    def summary(self) -> None:
        return None


class Run:
    """The command: which signals it was sent."""

    pid = 1

    def __init__(self) -> None:
        self.sent: list[signal.Signals] = []

    def send(self, number: signal.Signals) -> bool:
        self.sent.append(number)
        return True


def drift(facet: str, severity: str) -> Drift:
    given: dict[str, Any] = {"facet": facet, "severity": severity, "effect": "numerics"}
    return Drift(subject=f"{facet} x", a="1", b="2", why="", **given)


def observed(
    stage: Stage, state: Path, found: list[tuple[Drift, ...]], on_drift: Literal["warn", "stop"], refuse: Any = "warn"
) -> tuple[Run, Ledger, list[str]]:
    """An observer that began and ended; `found` are the answers of its comparisons, the last one for good."""
    said: list[str] = []
    fields = dict.fromkeys(RunRecord.__struct_fields__, None)
    for name in ("schema", "version", "changed", "left", "signals"):
        fields.pop(name)
    ledger = Ledger(state, RunRecord(**{**fields, "id": "r1"}), said.append)  # type: ignore[arg-type]
    run, env = Run(), locate(LiveHost(), str(stage.venv), str(stage.project))

    def regrade() -> DiffReport:
        drifts = found.pop(0) if len(found) > 1 else found[0]
        side = Side(id=None, label="x")
        return DiffReport(a=side, b=side, match=not drifts, drifts=drifts, unknown=())

    sight = Sight(
        LiveHost(), lambda: Watched(env, (), frozenset(), (), ()), lambda: cast(Guard, Quiet()), regrade, refuse
    )
    observer = Observer(sight, cast(Child, run), ledger, on_drift, said.append)
    observer.start()
    deadline = time.monotonic() + 20
    while not observer._watch.ready.is_set() and time.monotonic() < deadline:
        time.sleep(0.01)
    observer.close()
    return run, ledger, said


@pytest.mark.parametrize(
    ("severity", "on_drift", "refuse", "stops"),
    [
        ("block", "stop", "warn", True),
        ("warn", "stop", "warn", True),
        ("warn", "stop", "block", False),
        ("block", "warn", "warn", False),
        ("block", "stop", "block", True),
    ],
)
def test_what_changed_before_the_watch_was_ready_is_seen(
    stage: Stage, tmp_path: Path, severity: str, on_drift: Literal["warn", "stop"], refuse: str, stops: bool
) -> None:
    run, ledger, said = observed(stage, tmp_path, [(drift("torch", severity),)], on_drift, refuse)
    (change,) = ledger.record.changed
    assert (change.facet, change.subject, change.grade) == ("torch", "torch x", severity)
    assert any("between the gate's comparison and the watch" in line for line in said)
    assert run.sent == ([signal.SIGTERM] if stops else [])
    stopped = ledger.record.stopped
    assert (stopped.says if stopped is not None else None) == (change.says if stops else None)


@pytest.mark.parametrize("drifts", [(), (drift("packages", "info"),)])
def test_what_did_not_change_is_no_change(stage: Stage, tmp_path: Path, drifts: tuple[Drift, ...]) -> None:
    run, ledger, said = observed(stage, tmp_path, [drifts], "stop")
    assert (run.sent, ledger.record.changed, said) == ([], (), [])


def test_each_facet_is_named_once_and_the_run_is_stopped_once(stage: Stage, tmp_path: Path) -> None:
    found: list[tuple[Drift, ...]] = [(drift("torch", "block"), drift("packages", "warn"))]
    run, ledger, _ = observed(stage, tmp_path, found, "stop")
    assert [change.facet for change in ledger.record.changed] == ["torch", "packages"]
    assert run.sent == [signal.SIGTERM]
