"""Packages that were taken out and not replaced. No install on disk shows it: it is told by the inodes that their
archives in the uv cache lost, by what a record has that is not there any more, and by envguard's own restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envguard import clock
from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.acquire.packages.cut_short import CutShort
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.uv_cache import SDIST_BUCKET
from envguard.model.event import Event
from envguard.model.evidence import Confidence, Evidence
from envguard.timeline.events.happening import make_event
from envguard.timeline.packages import transactions as runs
from envguard.timeline.packages.previous import (
    Previous,
    Sighting,
    by_name,
    previous_builds,
    sighting_of_removal,
    sightings_of_cache,
)
from envguard.timeline.packages.records import Record, record_at
from envguard.timeline.packages.requirements import Graph
from envguard.timeline.packages.restored import Restored
from envguard.timeline.packages.transactions import Group, Version

UNPACK_NS = 120 * clock.NS
BUILD_NS = 5 * clock.NS
"""How far from the wheel's unpacking the environment that built it may be taken down."""
RESTORE_NS = 600 * clock.NS
"""How long a restore may take from the first file that it takes away to its entry in the journal."""


@dataclass(frozen=True)
class Removal:
    """One package that is gone. It went between `since_ns` and `until_ns`; `dated` where a witness has the moment.

    `previous` is what it was, None where nothing but the cache says that it was here; `own` the restore that took it.
    """

    event: Event
    since_ns: int
    until_ns: int
    dated: bool = True
    previous: Previous | None = None
    own: Restored | None = None
    cut: CutShort | None = None
    """The install or removal that took it out and did not end."""


@dataclass(frozen=True)
class Known:
    """What removals are judged by."""

    installs: tuple[Install, ...]
    uses: tuple[ArchiveUse, ...]
    groups: tuple[Group, ...]
    graph: Graph
    sightings: Mapping[str, Sequence[Sighting]]
    """By package."""
    records: tuple[Record, ...]
    restored: tuple[Restored, ...]
    present: Present
    cut_short: tuple[CutShort, ...] = ()


@dataclass(frozen=True)
class Present:
    """What can be said of what is not there."""

    now_ns: int | None = None
    """None where what is installed could not all be read: what is not seen is then not known to be gone."""
    site_changes: Mapping[str, int] = field(default_factory=dict)
    """Folder of packages → its mtime in ns: its last change by a name that came or went."""
    busy: bool = False
    """An installer is at work: what is not there may be about to come."""


def read_removals(known: Known) -> tuple[Removal, ...]:
    """Every package that went, each once: a restore's own word first, then what is left of one, then the cache's
    moment, then a record's."""
    current = {install.name: install for install in reversed(known.installs)}
    own = (*_own(known.restored, current), *_cut_short(known, current))
    found = [*own, *_in_runs(known, current, own), *_alone(known, current, own)]
    return (*found, *_recorded(known, current, found))


def _own(restored: Iterable[Restored], current: Mapping[str, Install]) -> Iterator[Removal]:
    last = {item.name: item for item in restored}
    for item in last.values():
        if item.full_version is None and item.name not in current:
            text = f"{item.name} {item.was or ''}".strip() + f" removed by `envguard restore {item.reference}`"
            event = make_event(
                "package.removed", item.name, item.done_ns, None, text, [item.proof], from_=item.was, precision_s=1.0
            )
            yield Removal(event, item.done_ns, item.done_ns, own=item)


def _cut_short(known: Known, current: Mapping[str, Install]) -> Iterator[Removal]:
    """Taken out by what was cut short before anything had taken its place."""
    cached = by_name(sightings_of_cache(known.uses, ())) if known.cut_short else {}
    for cut in known.cut_short:
        if cut.mended is not None or cut.going is None or cut.began_ns is None or cut.package in current:
            continue
        left = Sighting(cut.package, Version(cut.going, cut.going), cut.began_ns, "leftovers", cut.evidence)
        said = (left, *known.sightings.get(cut.package, ()), *cached.get(cut.package, ()))
        before = previous_builds(cut.began_ns, said, None, None)
        previous = next(each for each in before if any(item.source == "leftovers" for item in each.sightings))
        event = make_event(
            "package.removed",
            cut.package,
            cut.began_ns,
            None,
            f"{cut.package} {cut.going} taken out, cut short: {cut.says}",
            (*cut.evidence, *previous.evidence),
            confidence="weak" if cut.doubt is not None else "strong",
            from_=previous.version.full,
        )
        yield Removal(event, cut.began_ns, cut.began_ns, previous=previous, cut=cut)


def _ours(own: Iterable[Removal], name: str, moment_ns: int) -> bool:
    return any(item.event.subject == name and 0 <= item.until_ns - moment_ns <= RESTORE_NS for item in own)


def _came_back(known: Known, name: str, moment_ns: int) -> int | None:
    """When a restore brought the package back after that moment: what took it away then is undone, and the cache,
    which a restore only reads, does not tell when it went again."""
    back = [each.done_ns for each in known.restored if each.name == name and each.full_version is not None]
    return max((done_ns for done_ns in back if done_ns > moment_ns), default=None)


def _in_runs(known: Known, current: Mapping[str, Install], own: Sequence[Removal]) -> Iterator[Removal]:
    """Unlinked while a run was at work, and not there any more; of two runs side by side, by the earlier one."""
    told: set[str] = set()
    for group in known.groups:
        for removal in runs.removals_of(group, known.uses, dict(current)):
            use, name = removal.use, removal.use.archive.name
            if use.archive.path in told or name in current or _ours(own, name, removal.time_ns):
                continue
            if _came_back(known, name, removal.time_ns) is not None:
                continue
            sighting = seen_here(use, known)
            if sighting is None and not _may_have_been_here(use, known):
                continue
            told.add(use.archive.path)
            # Another environment that shares the cache may have lost it in the same second.
            where = "" if sighting else ", here or from another environment that shares the cache"
            text = f"{name} {use.full_version} removed{where}"
            value = f"{clock.iso_ns(removal.time_ns)} (nlink {use.nlink}: unlinked while the run was at work)"
            yield _of_use(use, text, value, "strong" if sighting else "weak", sighting, group)


def _alone(known: Known, current: Mapping[str, Install], own: Sequence[Removal]) -> Iterator[Removal]:
    """Outside any install run. Without a tie to this environment (a record of it here, a package that still asks for
    it, an unpacking just when something was installed here) none is told: others may share the cache."""
    for use in known.uses:
        moment, name = use.last_link_change_ns, use.archive.name
        if moment is None or use.nlink != 1 or name in current or any(group.covers(moment) for group in known.groups):
            continue
        sighting = seen_here(use, known)
        if _came_back(known, name, moment) is not None:
            continue
        if _ours(own, name, moment) or (sighting is None and not _may_have_been_here(use, known)):
            continue
        tie = f"it was here by {sighting.evidence[0].path}" if sighting is not None else _tie(use, known)
        if tie is not None:
            text = f"{name} {use.full_version} {'removed' if sighting else 'perhaps removed'} ({tie})"
            value = f"{clock.iso_ns(moment)} (nlink 1: unlinked from the last environment that held it)"
            yield _of_use(use, text, value, "strong" if sighting else "weak", sighting, None)


def _of_use(
    use: ArchiveUse, text: str, value: str, best: Confidence, sighting: Sighting | None, group: Group | None
) -> Removal:
    moment = use.last_link_change_ns
    assert moment is not None
    proof = Evidence(witness="uv-cache", path=use.sample or use.archive.path, field="ctime", value=value)
    event = make_event(
        "package.removed",
        use.archive.name,
        moment,
        None,
        text,
        # A record that had it is another's word that it is gone: of the cache is the moment alone.
        [proof, *(sighting.evidence if sighting is not None else ())],
        best=best,
        from_=use.full_version,
        transaction=group.id if group is not None else None,
    )
    if sighting is None:
        return Removal(event, moment, moment)
    version = Version(use.archive.version, use.full_version)
    return Removal(event, moment, moment, previous=Previous(version, (sighting_of_removal(use), sighting)))


def seen_here(use: ArchiveUse, known: Known) -> Sighting | None:
    """A record that this version was in this environment before its archive lost the inode, and none since that it
    was not."""
    moment, name = use.last_link_change_ns or 0, use.archive.name
    last = record_at(known.records, moment)
    for sighting in known.sightings.get(name, ()):
        same = sighting.version.full in (use.full_version, use.archive.version)
        if same and sighting.time_ns is not None and sighting.time_ns <= moment:
            if last is not None and last.time_ns > sighting.time_ns and name not in last.there:
                continue
            return sighting
    return None


def _may_have_been_here(use: ArchiveUse, known: Known) -> bool:
    """Whether an unlinking that no record ties to this environment may be its: neither before anything was installed
    here, nor after a record without it, nor when a wheel was built.

    uv builds a wheel in an environment that it makes for that moment, with hatchling or setuptools and what they
    require out of the same cache, and takes it down again.
    """
    moment = use.last_link_change_ns or 0
    if not known.groups or moment < known.groups[0].start_ns:
        return False
    last = record_at(known.records, moment)
    unpacked = use.unpacked_ns if use.unpacked_ns is not None else moment
    if last is not None and last.time_ns >= unpacked and use.archive.name not in last.there:
        return False
    built = (item.unpacked_ns for item in known.uses if _was_built(item))
    return not any(time is not None and abs(moment - time) <= BUILD_NS for time in built)


def _was_built(use: ArchiveUse) -> bool:
    return any(SDIST_BUCKET.fullmatch(pointer.bucket) for pointer in use.archive.pointers)


def _tie(use: ArchiveUse, known: Known) -> str | None:
    name, moment = use.archive.name, use.last_link_change_ns or 0
    ends = {install.name: install.end_ns for install in known.installs}
    for edge in known.graph.to.get(name, ()):
        end = ends.get(edge.requirer)
        if not edge.by_extra and end is not None and end <= moment:
            return f"{edge.requirer} still requires it"
    for group in known.groups:
        unpacked = use.unpacked_ns
        if unpacked is not None and group.start_ns - UNPACK_NS <= unpacked <= group.end_ns and group.end_ns < moment:
            return f"it was unpacked just when {group.installs[0].name} was installed here"
    return None


def _recorded(known: Known, current: Mapping[str, Install], told: Sequence[Removal]) -> Iterator[Removal]:
    """What a record has and no later one has, nor the environment now: pip keeps no trace of what it takes away, and
    neither does uv where files are copied or its cache was cleaned."""
    if known.present.now_ns is None:
        return
    last: dict[str, tuple[Record, Record | None]] = {}
    for record in known.records:
        for name, (had, without) in last.items():
            if without is None and name not in record.there:
                last[name] = (had, record)
        last.update(dict.fromkeys(record.there, (record, None)))
    half = {cut.package for cut in known.cut_short if cut.mended is None}  # what is there of it belongs to that
    for name, (had, without) in last.items():
        if (
            name in current
            or name in half
            or any(item.event.subject == name and item.until_ns >= had.time_ns for item in told)
        ):
            continue
        since = _came_back(known, name, had.time_ns) or had.time_ns
        sighting = had.sighting(name)
        assert sighting is not None  # what is `there` has a version
        until = without.time_ns if without is not None else known.present.now_ns
        proofs = [*sighting.evidence, *((without.proof,) if without is not None else ())]
        # The folder that held it tells by when it had gone, as long as nothing else came to it or went.
        changed = known.present.site_changes.get(folder := had.there[name])
        seen_gone = changed is not None and since < changed <= until
        if changed is not None and seen_gone:
            until = changed
            value = f"{clock.iso_ns(changed)} (it no longer holds {name})"
            proofs.append(Evidence(witness="dist-info", path=folder, field="mtime", value=value))
        then = f"was not by {without.proof.path}" if without is not None else "is not there now"
        text = f"{name} {sighting.version.full} removed: it was here by {had.proof.path} and {then}"
        event = make_event(
            "package.removed",
            name,
            since,
            until,
            text,
            proofs,
            # That it is gone is sure; that the change of the folder was this is not.
            confidence="strong",
            from_=sighting.version.full,
            open_end=without is None and not seen_gone,
        )
        yield Removal(event, since, until, dated=False, previous=Previous(sighting.version, (sighting,)))
