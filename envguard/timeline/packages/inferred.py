"""Replacements that no install on disk tells of, because a later one followed, or because what lies there bears the
times of an older install (a backup that was unpacked): told by two sightings that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.model.event import Event
from envguard.model.evidence import Evidence, Unknown
from envguard.model.fingerprint import Package
from envguard.timeline.events.happening import make_event
from envguard.timeline.packages.package_events import Packages
from envguard.timeline.packages.previous import Sighting, same_build
from envguard.timeline.packages.records import Record
from envguard.timeline.packages.transactions import Group

DATED = ("stamp", "journal", "wandb", "train-log", "pip-log", "conda")
"""Sources whose time says when the version was there."""


SAME_MOMENT_NS = {"wandb": clock.NS, "train-log": clock.NS, "pip-log": clock.NS, "conda": clock.NS}
"""What the time of a source is worth where it knows seconds; of others it is `RECORD_NS`."""
RECORD_NS = clock.NS // 1000


@dataclass(frozen=True)
class Inferred:
    """Swaps between two sightings, and sightings of one moment that contradict each other."""

    swaps: tuple[Event, ...]
    contradictions: tuple[Unknown, ...]


def inferred_swaps(sightings: Mapping[str, Sequence[Sighting]], packages: Packages) -> Inferred:
    """Between two dated sightings of different versions lies a swap, unless the install on disk is that swap.

    Two of one moment that disagree are no swap: neither is known to be the first.
    """
    runs: dict[str, list[Group]] = {}
    for swap in packages.swaps:
        runs.setdefault(swap.change.name, []).append(swap.group)
    events: list[Event] = []
    contradictions: list[Unknown] = []
    for name in sorted(sightings):
        # Two environments of one project differ, and nothing was replaced; nor was it where a process stamps what it
        # had loaded before.
        dated = (item for item in sightings[name] if item.source in DATED and item.prefix is None and not item.loaded)
        found = [item for item in dated if item.time_ns is not None]
        found.sort(key=lambda item: item.time_ns or 0)
        for before, after in pairwise(found):
            assert before.time_ns is not None
            assert after.time_ns is not None
            if same_build(before, after):
                continue
            if _overlap(before, after):
                contradictions.append(_contradiction(before, after))
                continue
            if any(
                before.time_ns <= group.end_ns and group.start_ns <= after.time_ns for group in runs.get(name, ())
            ):
                continue
            events.append(_event(name, before, after))
    return Inferred(tuple(events), tuple(contradictions))


def _overlap(before: Sighting, after: Sighting) -> bool:
    """Whether the two are of one moment, as far as their clocks tell. The lines of one log have an order of their
    own."""
    if before.evidence[0].path == after.evidence[0].path:
        return False
    apart = (after.time_ns or 0) - (before.time_ns or 0)
    return apart <= max(SAME_MOMENT_NS.get(item.source, RECORD_NS) for item in (before, after))


def _contradiction(before: Sighting, after: Sighting) -> Unknown:
    said = ", and ".join(f"{item.evidence[0].path} has {_named(item)}" for item in (before, after))
    return Unknown(f"which {before.name} was here at {clock.iso_ns(before.time_ns or 0)}", f"{said}, both of then")


def _named(item: Sighting) -> str:
    return item.version.full + (f" (build {item.build[:12]})" if item.build is not None else "")


def _event(name: str, before: Sighting, after: Sighting) -> Event:
    assert before.time_ns is not None
    assert after.time_ns is not None
    was, now = before.version.full, after.version.full
    if was == now and before.build is not None and after.build is not None:
        was, now = f"{was} (build {before.build[:12]})", f"{now} (build {after.build[:12]})"
    text = f"{name} {was} → {now}, some time between two records"
    return make_event(
        "package.replaced",
        name,
        before.time_ns,
        after.time_ns,
        text,
        (*before.evidence, *after.evidence),
        precision_s=max(1.0, (after.time_ns - before.time_ns) / clock.NS / 2),
        # Two records say that it happened; neither saw it happen.
        confidence="strong" if before.best == after.best == "strong" else "weak",
        from_=before.version.full,
        to=after.version.full,
    )


@dataclass(frozen=True)
class Departure:
    """A package that is not the one of the last record of this environment, though no install came after that."""

    event: Event
    change: str
    """`torch 2.8.0 → 2.9.0`, for a person."""
    record: Evidence
    """Which record has the one before."""
    install: Install
    since_ns: int
    """When the copy was made where that is `dated`, else the record's time."""
    dated: bool

    def may_follow(self, moment_ns: int) -> bool:
        """Whether it came, or may have come, after that moment."""
        return not self.dated or self.since_ns > moment_ns


def read_departures(
    installs: Sequence[Install], records: Sequence[Record], packages: Packages, now_ns: int
) -> Iterator[Departure]:
    """What lies there now against the last of `records` (of this environment, in the order of their times) that has
    it."""
    first = {install.name: install for install in reversed(installs)}
    swapped: dict[str, int] = {}
    for swap in packages.swaps:
        swapped[swap.change.name] = max(swap.group.end_ns, swapped.get(swap.change.name, 0))
    for name, install in sorted(first.items()):
        record = next((item for item in reversed(records) if name in item.there), None)
        seen = record.sighting(name) if record is not None else None
        if record is None or seen is None or install.editable:
            continue
        then = record.named.packages[name]
        seen_ns = min(record.time_ns, clock.nanoseconds(record.fingerprint.taken_at))
        # With the second that a swap allows a sighting: what it names as the build before is told there.
        later = name in swapped and swapped[name] + clock.NS >= seen_ns
        if not later and is_another(then, seen, install):
            if _record_alone(install, seen_ns):
                continue
            copied = install.copied_ns if (install.copied_ns or 0) > seen_ns else None
            proofs = tuple(item.proof for item in reversed(records) if _agrees(item, seen))
            # A stamp lies beside its checkpoint and is what a person can look at; the last word sets the bound.
            proof = next((item for item in proofs if item.witness == "stamp"), record.proof)
            proofs = tuple(dict.fromkeys((proof, record.proof)))
            change = _change(seen, install)
            event = _departed(change, seen, install, proofs, copied, seen_ns, now_ns)
            yield Departure(event, change, proof, install, copied or seen_ns, copied is not None)


def _record_alone(install: Install, seen_ns: int) -> bool:
    """Whether RECORD was written anew after that moment in a dist-info that had been there before: the package was
    edited with its RECORD, and no other install lies there."""
    return (
        install.mark_changed_ns is not None
        and install.record_changed_ns is not None
        and install.mark_changed_ns <= seen_ns < install.record_changed_ns
    )


def record_edits(installs: Sequence[Install], records: Sequence[Record], told: Set[str]) -> Iterator[Event]:
    """RECORDs that list other content than the last record of this environment knows, and were written after it;
    `told` are those of which an event tells already."""
    for install in installs:
        path = f"{install.directory}/RECORD"
        record = next((item for item in reversed(records) if install.name in item.there), None)
        seen = record.sighting(install.name) if record is not None else None
        if record is None or seen is None or path in told or install.editable:
            continue
        then = record.named.packages[install.name]
        if is_another(then, seen, install) and _record_alone(install, record.time_ns):
            assert install.record_changed_ns is not None
            changed = clock.iso_ns(install.record_changed_ns)
            yield make_event(
                "file.patched",
                path,
                record.time_ns,
                install.record_changed_ns,
                f"RECORD of {install.name} was written anew, and lists other content",
                (record.proof, Evidence(witness="dist-info", path=path, field="ctime", value=changed)),
                confidence="strong",
            )


def is_another(then: Package, seen: Sighting, install: Install) -> bool:
    """By RECORD where both have one: a file that was edited makes no other install."""
    build = then.record or then.build
    if build is not None and install.build is not None:
        return build != install.build
    return seen.version.full != install.full_version


def _agrees(record: Record, seen: Sighting) -> bool:
    said = record.sighting(seen.name) if seen.name in record.there else None
    return said is not None and same_build(said, seen)


def _change(then: Sighting, install: Install) -> str:
    was, now = then.version.full, install.full_version or install.version or "?"
    return f"{install.name} {was} → {now if was != now else 'another build of that version'}"


def _departed(
    change: str,
    then: Sighting,
    install: Install,
    proofs: tuple[Evidence, ...],
    copied: int | None,
    seen_ns: int,
    now_ns: int,
) -> Event:
    was, now = then.version.full, install.full_version or install.version or "?"
    how = "put here by a copy that kept its times" if copied is not None else "under the times of an older install"
    metadata = Evidence(witness="dist-info", path=f"{install.directory}/METADATA", field="Version", value=now)
    return make_event(
        "package.replaced",
        install.name,
        copied or seen_ns,
        None if copied is not None else now_ns,
        f"{change}, {how}",
        (*proofs, metadata, *install.evidence),
        precision_s=0.01 if copied is not None else max(0.01, (now_ns - seen_ns) / clock.NS / 2),
        # Record and disk together say that it happened; neither saw it happen.
        confidence="strong",
        from_=was,
        to=now,
        open_end=copied is None,
    )
