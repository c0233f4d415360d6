"""Watch, throughput guard and regrading beside one run: what is said and recorded, and when the run is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.launch.child import Child
from envguard.launch.guard import Guard
from envguard.launch.ledger import Ledger
from envguard.launch.watch import Watch, Watched
from envguard.model.action import ChangeSeen, Stopped
from envguard.model.drift import DiffReport, Drift

Warn = Callable[[str], None]
_SHOWN = 3


@dataclass(frozen=True)
class Sight:
    """What the observer looks with. `regrade` compares the environment of now with the one at the start."""

    host: Host
    watched: Callable[[], Watched]
    guard: Callable[[], Guard]
    regrade: Callable[[], DiffReport]
    refuse: Literal["warn", "block"]


class Observer:
    """Stays beside a run. Everything that it says goes to the record, the journal and the screen."""

    def __init__(
        self,
        sight: Sight,
        process: Child,
        ledger: Ledger,
        on_drift: Literal["warn", "stop"],
        warn: Warn,
        beside: Callable[[], None] = lambda: None,
        ending: Callable[[signal.Signals], None] = lambda number: None,
    ) -> None:
        """`beside` is called every few seconds, `ending` before the run is asked to end."""
        self._beside = beside
        self._ending = ending
        self._sight = sight
        self._process = process
        self._ledger = ledger
        self._on_drift = on_drift
        self._warn = warn
        self._guard = sight.guard()
        self._said: set[str] = set()
        self._stopping = False
        self._known: tuple[Drift, ...] = ()
        self._watch = Watch(sight.host, sight.watched(), process.pid, self._changed, self._tick, self._compare)

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()
        self._ledger.change(throughput=self._guard.summary())

    def _changed(self, change: ChangeSeen) -> None:
        drifts = self._regraded()
        # What an earlier change did is not this one's doing, and has stopped the run already if it was to.
        fresh = tuple(drift for drift in drifts if drift not in self._known)
        self._known = drifts
        self._changed_to(change, fresh)

    def _compare(self) -> None:
        """Once, when the watch is ready: what changed between the gate's look and now was seen by neither."""
        drifts = self._regraded()
        named = [drift for drift in drifts if drift.severity != "info"]
        for facet in dict.fromkeys(drift.facet for drift in named):
            mine = tuple(drift for drift in named if drift.facet == facet)
            says = f"changed between the gate's comparison and the watch: {_listed(mine)}"
            self._changed_to(
                ChangeSeen(time=clock.now(), facet=facet, subject=mine[0].subject, says=says, by=None), mine
            )
        self._known = drifts

    def _changed_to(self, change: ChangeSeen, fresh: tuple[Drift, ...]) -> None:
        worst = next((grade for grade in ("block", "warn") if any(d.severity == grade for d in fresh)), "info")
        standing = ("block",) if self._sight.refuse == "block" else ("block", "warn")
        self._report(msgspec.structs.replace(change, grade=worst), fresh, stops=worst in standing)

    def _regraded(self) -> tuple[Drift, ...]:
        try:
            return self._sight.regrade().drifts
        except Exception as error:  # an install in full swing leaves nothing that could be read
            self._once(f"what changed could not be graded: {error}")
            return ()

    def _report(self, change: ChangeSeen, drifts: tuple[Drift, ...], stops: bool) -> None:
        self._ledger.saw(change)
        self._ledger.note(
            "run.changed", run=self._ledger.record.id, facet=change.facet, subject=change.subject, says=change.says
        )
        self._warn(change.says)
        if self._on_drift == "stop" and stops:
            self._stop(change, drifts)

    def _stop(self, change: ChangeSeen, drifts: tuple[Drift, ...]) -> None:
        """Asks the run to end. Once: a trainer saves a checkpoint on SIGTERM, and a second one would cut that off."""
        if not self._stopping:
            self._stopping = True
            standing = tuple(drift for drift in drifts if drift.severity != "info")
            self._ledger.change(
                stopped=Stopped(
                    time=clock.now(), facet=change.facet, subject=change.subject, says=change.says, drifts=standing
                )
            )
            why = _listed(drifts)
            self._warn(f"stopping the run (SIGTERM) because of this{f': {why}' if why else ''}")
            self._ending(signal.SIGTERM)
            self._process.send(signal.SIGTERM)

    def _tick(self, now: float) -> None:
        self._beside()
        for note in (*self._watch.notes, *self._guard.notes):
            self._once(note)
        says = self._guard.look(now)
        if says is None:
            return
        fell = self._guard.meter.is_down()
        drifts = self._regraded() if fell else ()
        if fell:
            changes = [change.says for change in self._ledger.record.changed if change.facet != "throughput"]
            beside = "; ".join(changes[-_SHOWN:]) or _listed(drifts)
            says += f"; changed since the start: {beside}" if beside else "; nothing is known to have changed"
        change = ChangeSeen(time=clock.iso(now), facet="throughput", subject="tok/s", says=says, by=None, grade=None)
        self._ledger.change(throughput=self._guard.summary())
        self._report(change, drifts, stops=fell)

    def _once(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            self._warn(note)


def _listed(drifts: tuple[Drift, ...]) -> str:
    named = [drift for drift in drifts if drift.severity != "info"]
    shown = [f"{drift.subject} {drift.a or 'absent'} → {drift.b or 'absent'}" for drift in named[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")
