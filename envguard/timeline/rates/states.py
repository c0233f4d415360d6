"""What a run had, by what saw it while it ran, or next to it with nothing known to have changed in between.

Only what differs between two runs can be the cause of what differs in their rates: a swap that was undone before the
second began is none, and neither is what undid it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.model.event import Event
from envguard.model.fingerprint import FileSet, Fingerprint
from envguard.model.run import RunRecord
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.packages.inferred import DATED
from envguard.timeline.packages.previous import Sighting, same_build
from envguard.timeline.packages.records import Record
from envguard.timeline.packages.transactions import Version

Span = tuple[int, int]
"""First and last moment of a run's steady rows, in ns since the epoch."""
Seen = tuple[int, Hashable]
"""When something was seen (ns), and what it was."""
OF_PACKAGES = ("package.installed", "package.replaced", "package.removed")
ABSENT = "absent"


@dataclass(frozen=True)
class States:
    """What is known of the environment at any time. `records` are of this environment."""

    sightings: Mapping[str, Sequence[Sighting]]
    records: Sequence[Record]
    runs: Sequence[RunRecord]
    installs: Sequence[Install]
    events: Sequence[Event]
    now_ns: int

    def same(self, event: Event, good: Span, bad: Span) -> bool:
        """Whether both runs are known to have had the same of what the event is about."""
        if event.kind in OF_PACKAGES and event.subject != "python":
            return self._same_package(event, good, bad)
        look = _look(event)
        if look is None:
            return False
        seen = [
            (record.time_ns, value) for record in self._looks() if (value := look(record.fingerprint)) is not None
        ]
        alike = [other for other in self.events if _about(other) == _about(event)]
        one, two = (_nearest(seen, span, alike) for span in (good, bad))
        return one is not None and one == two

    def _same_package(self, event: Event, good: Span, bad: Span) -> bool:
        alike = [other for other in self.events if other.kind in OF_PACKAGES and other.subject == event.subject]
        seen: list[Seen] = [*self._of_package(event.subject)]
        one, two = (_nearest(seen, span, alike) for span in (good, bad))
        if ABSENT in (one, two):
            return one == two
        if not isinstance(one, Sighting) or not isinstance(two, Sighting):
            return False
        if event.from_ is not None and event.from_ == event.to and None in (one.build, two.build):
            return False  # another build of one version: a version does not tell the two apart
        return same_build(one, two)

    def _of_package(self, name: str) -> Iterator[Seen]:
        for sighting in self.sightings.get(name, ()):
            if sighting.time_ns is not None and sighting.source in DATED and sighting.prefix is None:
                yield sighting.time_ns, sighting
        for record in self._looks():
            found = record.sighting(name)
            yield record.time_ns, found if found is not None else ABSENT
        install = next((item for item in self.installs if item.name == name), None)
        if install is not None and install.version is not None:
            version = Version(install.version, install.full_version or install.version)
            yield self.now_ns, Sighting(name, version, self.now_ns, "disk", (), build=install.build)

    def _looks(self) -> Iterator[Record]:
        """The records, and the one that bears the id with which `launch` started each run, at its start."""
        yield from self.records
        by_id = {record.fingerprint.id: record for record in self.records}
        for run in self.runs:
            record = by_id.get(run.fingerprint)
            if record is not None and run.started is not None:
                moment = clock.nanoseconds(run.started)
                yield Record(moment, record.fingerprint, record.proof, record.own, record.named)


def _nearest(seen: Iterable[Seen], span: Span, events: Sequence[Event]) -> Hashable | None:
    """What was seen during the span; else the nearest after or before it, with no event in between."""
    low, high = span
    best: tuple[int, Hashable] | None = None
    for moment, value in seen:
        apart = max(low - moment, moment - high, 0)
        between = (moment, low) if moment < low else (high, moment)
        if (best is None or apart < best[0]) and not (apart and any(_within(event, *between) for event in events)):
            best = apart, value
    return best[1] if best is not None else None


def _within(event: Event, low: int, high: int) -> bool:
    return start_of(event) * clock.NS <= high and end_of(event) * clock.NS >= low


def _about(event: Event) -> tuple[str, str]:
    """What two events are about that may undo each other: a tree of code as a whole, else one subject."""
    if event.kind.startswith("code."):
        return "code", event.evidence[0].path if event.evidence else ""
    return event.kind, event.subject


def _look(event: Event) -> Callable[[Fingerprint], Hashable | None] | None:
    """How a fingerprint tells what the event is about; None where it does not."""
    path = event.evidence[0].path if event.evidence else ""
    match event.kind:
        case "package.replaced":
            return lambda taken: taken.python.version
        case "system.driver":
            return lambda taken: (taken.driver.version, taken.driver.kernel_module) if taken.driver else None
        case "code.changed" | "code.commit":
            return lambda taken: _code(taken, path)
        case "config.changed":
            return lambda taken: _digest(taken.config, event.subject)
        case "data.changed":
            return lambda taken: _digest(taken.data, event.subject)
    return None


def _code(taken: Fingerprint, path: str) -> Hashable | None:
    tree = next((tree for tree in taken.code or () if tree.path == path), None)
    if tree is None or tree.commit is None or tree.dirty is None:
        return None
    return tree.tree or tree.commit, tree.diff_digest


def _digest(sets: Iterable[FileSet] | None, path: str) -> Hashable | None:
    found = next((item for item in sets or () if f"/{path}".endswith(f"/{item.path}")), None)
    return found.digest if found is not None else None
