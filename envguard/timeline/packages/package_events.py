"""Package events: installs, replacements and removals, by run, with what forced each and what was there before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.acquire.packages.cut_short import CutShort
from envguard.acquire.packages.installs import Install
from envguard.model.event import Event, EventKind, PackageChange, Transaction
from envguard.model.evidence import Confidence, Evidence, confidence_of
from envguard.timeline.events.happening import make_event
from envguard.timeline.packages import transactions as runs
from envguard.timeline.packages.hints import Hints
from envguard.timeline.packages.previous import Previous, Sighting, by_name, previous_builds, sightings_of_cache
from envguard.timeline.packages.records import Record
from envguard.timeline.packages.removals import UNPACK_NS, Known, Present, Removal, read_removals
from envguard.timeline.packages.requirements import Graph
from envguard.timeline.packages.restored import Restored, maker
from envguard.timeline.packages.transactions import Group, Version

"""How long before a run's first folder its wheels may have been unpacked: the others were still being fetched."""


@dataclass(frozen=True)
class Swap:
    """One package of a run, with every candidate for what it replaced."""

    event: Event
    install: Install
    change: PackageChange
    group: Group
    previous: tuple[Previous, ...]
    was_there: str | None
    """Why an earlier version must have been there although none is known by number."""
    twins: tuple[str, ...] = ()
    """Where other builds lie that bear the version of the build before: not what was there."""
    locked: Sighting | None = None
    """A lock file's word that is no newer than the run and names what came."""
    own: Restored | None = None
    """The restore of envguard's own that installed it."""
    again: bool = False
    """It is the very build that the last word before it names: nothing was swapped."""
    beside: tuple[Install, ...] = ()
    """Other folders that the package is installed in, from before: one of them all hides the others."""
    first: bool = True
    """It is the one that import picks."""

    @property
    def perhaps(self) -> bool:
        """Whether what it replaced may have been in another environment, for all that is known."""
        return bool(self.previous) and self.previous[0].perhaps


@dataclass(frozen=True)
class Packages:
    """All package events and runs of an environment."""

    events: tuple[Event, ...]
    transactions: tuple[Transaction, ...]
    swaps: tuple[Swap, ...]
    groups: tuple[Group, ...] = field(default=())
    removals: tuple[Removal, ...] = ()
    doubtful: tuple[str, ...] = ()
    """Packages that a record has and that are not there while an installer is at work."""
    made_anew_ns: int | None = None
    """When pyvenv.cfg was written, of an environment that a record knows to be older."""

    def transaction(self, identity: str | None) -> Transaction | None:
        return next((run for run in self.transactions if run.id == identity), None)


def read_packages(
    installs: tuple[Install, ...],
    graph: Graph,
    uses: tuple[ArchiveUse, ...],
    sightings: Mapping[str, Sequence[Sighting]],
    hints: Hints | None = None,
    records: tuple[Record, ...] = (),
    restored: tuple[Restored, ...] = (),
    present: Present | None = None,
    made_ns: int | None = None,
    cut_short: tuple[CutShort, ...] = (),
) -> Packages:
    """From dated installs, the cache, other sightings and envguard's own restores to runs and package events.

    `made_ns` is when pyvenv.cfg was written. While an installer is at work, what only a record says to be gone is
    doubtful.
    """
    groups = runs.group_installs(installs, graph, _removal_times(installs, uses))
    older = made_ns is None or any(record.time_ns < made_ns for record in records)
    cached = by_name(sightings_of_cache(uses, groups, None if older else made_ns))
    present = present or Present()
    gone = read_removals(Known(installs, uses, groups, graph, sightings, records, restored, present, cut_short))
    current = {install.name: install for install in installs}
    elsewhere = _installed_twice(installs)
    doubtful = [item for item in gone if present.busy and not item.dated]
    gone = tuple(item for item in gone if item not in doubtful)
    events: list[Event] = []
    swaps: list[Swap] = []
    told: list[Transaction] = []
    for group in groups:
        roots = runs.roots_of(group, graph)
        asked = graph.closure(roots)
        changes = []
        for install in group.installs:
            known = (*sightings.get(install.name, ()), *cached.get(install.name, ()))
            others = elsewhere.get(install.name, ())
            beside = tuple(each for each in others if _stays_beside(install, each))
            swap = _swap(install, group, groups, asked, graph, known, current, hints or Hints(), beside)
            earlier = tuple(each for each in beside if each.location != install.location and _is_older(each, group))
            swap = replace(swap, beside=earlier, first=not others or others[0] is install)
            own = maker(swap.install, restored)
            swap = swap if own is None else _brought_back(swap, own)
            swaps.append(swap)
            events.append(swap.event)
            changes.append(swap.change)
        changes += [
            PackageChange(name=item.event.subject, from_=item.event.from_, to=None)
            for item in gone
            if item.event.transaction == group.id
        ]
        told.append(runs.transaction_of(group, tuple(changes), roots))
    events += [item.event for item in gone]
    anew = made_ns if made_ns is not None and older else None
    names = tuple(item.event.subject for item in doubtful)
    return Packages(tuple(events), tuple(told), tuple(swaps), groups, gone, names, anew)


def _brought_back(swap: Swap, own: Restored) -> Swap:
    """An install of envguard's own: its journal says what it took away, which no look at the cache says as well."""
    was, now = own.was, own.full_version or swap.change.to or "?"
    what = f"{was} → {now}" if was is not None and was != now else now
    event = make_event(
        "package.replaced" if was is not None else "package.installed",
        swap.event.subject,
        # A restore keeps the folders of what it replaces: the install seems to begin with theirs.
        swap.install.end_ns,
        None,
        f"{swap.event.subject} {what} brought back by `envguard restore {own.reference}`",
        (*swap.install.evidence, own.proof),
        from_=was,
        to=swap.event.to,
        transaction=swap.event.transaction,
    )
    return replace(swap, event=event, own=own)


def _removal_times(installs: tuple[Install, ...], uses: tuple[ArchiveUse, ...]) -> dict[str, list[int]]:
    """When other builds of what is installed were last linked or unlinked (ns)."""
    build = {install.name: install.build for install in installs}
    found: dict[str, list[int]] = {}
    for use in uses:
        name = use.archive.name
        if use.last_link_change_ns is not None and name in build and use.archive.build != build[name]:
            found.setdefault(name, []).append(use.last_link_change_ns)
    return found


def _swap(
    install: Install,
    group: Group,
    groups: tuple[Group, ...],
    asked: Set[str],
    graph: Graph,
    known: Sequence[Sighting],
    installs: Mapping[str, Install],
    hints: Hints,
    beside: tuple[Install, ...] = (),
) -> Swap:
    """`known` are the sightings of this package, `asked` all that the run had to meet, `beside` its other installs
    that are still there: none of them was replaced."""
    new = Version(install.version, install.full_version or install.version or "unknown")
    was_there = hints.was_there.get(install.name)
    was_there = was_there or _was_there(install, group, graph, installs, beside)
    candidates = previous_builds(group.end_ns, known, new, install.build)
    candidates = tuple(item for item in candidates if not any(_is_there(item, other) for other in beside))
    if any(other.location == install.location for other in beside):
        candidates = ()  # a stray dist-info: the other one's files are the package
    # A build that merely lies in the cache is no reason to say that this package was replaced, unless it was unpacked
    # just when an earlier run installed something here.
    if was_there is None and candidates and candidates[0].best == "weak":
        was_there = _unlinked(candidates[0]) or _unpacked_for(candidates[0], group, groups)
    candidates = tuple(item for item in candidates if item.best != "weak" or was_there)
    again = _same_build(install, group, known, candidates)
    if again is not None:
        candidates, was_there = (), None
    before = candidates[0] if candidates else None
    old = before.version if before is not None else None
    told = tuple(item.as_model() for item in candidates)
    change = runs.change_of(install, old, new, group, asked, graph, told)
    kind: EventKind = "package.replaced" if before is not None or was_there else "package.installed"
    confirms = tuple(hints.confirms.get(install.name, ()))
    event = make_event(
        kind,
        install.name,
        install.start_ns,
        install.end_ns,
        _summary(install, old, new, kind, again),
        (*install.evidence, *confirms, *(was.evidence if (was := before or again) is not None else ())),
        confidence=_confidence(install, before, kind, confirms),
        from_=old.full if old is not None else None,
        to=new.full,
        transaction=group.id,
    )
    locked = next((item for item in known if _names(item, install, group)), None)
    twins = _twins(before, known)
    return Swap(event, install, change, group, candidates, was_there, twins, locked, again=again is not None)


def _same_build(
    install: Install, group: Group, known: Sequence[Sighting], candidates: tuple[Previous, ...]
) -> Sighting | None:
    """The last word on what was there before, where it is the very build that was installed: nothing was swapped."""
    if install.build is None:
        return None
    seen = [
        item
        for item in known
        if (item.build, item.best, item.archive) == (install.build, "strong", None)
        and item.time_ns is not None
        and item.time_ns < (install.start_ns or group.start_ns)
    ]
    last = max(seen, key=lambda item: item.time_ns or 0, default=None)
    if last is None or last.time_ns is None:
        return None
    later = (item for candidate in candidates for item in candidate.sightings)
    return None if any(item.time_ns is None or item.time_ns > last.time_ns for item in later) else last


def _installed_twice(installs: Sequence[Install]) -> dict[str, list[Install]]:
    """Packages with several metadata folders, with all their installs in the order of the path."""
    found: dict[str, list[Install]] = {}
    for install in installs:
        found.setdefault(install.name, []).append(install)
    return {name: those for name, those in found.items() if len(those) > 1}


def _stays_beside(install: Install, other: Install) -> bool:
    """Whether an install left another one as it was: one in another folder, or one whose RECORD still describes the
    files where this one has none."""
    if other.location != install.location:
        return True
    return other is not install and install.build is None and other.build is not None


def _is_older(other: Install, group: Group) -> bool:
    moment = other.copied_ns or other.end_ns
    return moment is None or moment < group.start_ns


def _is_there(before: Previous, other: Install) -> bool:
    """Whether a build that was there before is one that is installed still."""
    build = before.first("build")
    if build is not None and other.build is not None:
        return build == other.build
    return before.version.full in (other.full_version, other.version)


def _names(item: Sighting, install: Install, group: Group) -> bool:
    return (
        (item.source, item.version.declared) == ("lock-file", install.version)
        and item.time_ns is not None
        and item.time_ns <= group.end_ns
    )


def _twins(before: Previous | None, known: Sequence[Sighting]) -> tuple[str, ...]:
    build = before.first("build") if before is not None else None
    if before is None or build is None:
        return ()
    found = {
        item.archive for item in known if item.version.full == before.version.full and item.build not in (None, build)
    }
    return tuple(sorted(path for path in found if path is not None))


def _unlinked(before: Previous) -> str | None:
    """Why a build that the cache lost just before this environment was made may have been here."""
    lost = next((item for item in before.sightings if item.source == "unlinked"), None)
    if lost is None:
        return None
    return f"{lost.archive} was last linked just before this environment was made: from here, or from another one"


def _unpacked_for(before: Previous, group: Group, groups: tuple[Group, ...]) -> str | None:
    """Why a build in the cache is likely to have been here: it was unpacked for a run that installed into this
    environment before."""
    archive = before.first("archive")
    times = [item.time_ns for item in before.sightings if item.source == "cache" and item.time_ns is not None]
    for earlier in groups:
        if earlier is group or earlier.end_ns >= group.start_ns:
            continue
        if any(earlier.start_ns - UNPACK_NS <= time <= earlier.end_ns for time in times):
            member = earlier.installs[0]
            return f"{archive} was unpacked just when {member.name} {member.version} was installed here"
    return None


def _was_there(
    install: Install, group: Group, graph: Graph, installs: Mapping[str, Install], beside: tuple[Install, ...]
) -> str | None:
    """Why an earlier version must have been installed: something older asks for it, or left its folder."""
    if install.survived is not None:
        return f"{install.survived} is older than this install: an earlier one left it"
    if any(_is_older(other, group) for other in beside):
        return None  # the other one met what asked for it
    for edge in graph.to.get(install.name, ()):
        requirer = installs.get(edge.requirer)
        if edge.by_extra or requirer is None or requirer.end_ns is None or requirer.doubt is not None:
            continue
        if requirer.name not in group.names and requirer.end_ns < group.start_ns:
            return f"{requirer.name} {requirer.version} was installed before and requires `{edge.line}`"
    return None


def _confidence(install: Install, before: Previous | None, kind: str, confirms: tuple[Evidence, ...]) -> Confidence:
    """Two independent writers for "certain"; a doubtful date stays weak whatever else agrees with it."""
    if install.doubt is not None or install.end_ns is None:
        return "weak"
    if kind == "package.replaced" and (before is None or before.best == "weak"):
        return "weak"
    if install.cut_short is not None:
        return "strong"  # that it did not end is the installer's word alone, whoever knows what was there before
    agreeing = (*install.evidence, *confirms, *(before.evidence if before is not None else ()))
    return confidence_of(agreeing)


def _summary(install: Install, old: Version | None, new: Version, kind: str, again: Sighting | None) -> str:
    by = f" by {install.installer}" if install.installer else ""
    if again is not None:
        text = f"{install.name} {new.full} installed again{by}: the build that {again.evidence[0].path} knows"
    elif old is not None and old.full == new.full:
        text = f"{install.name} {new.full} replaced by another build of the same version{by}"
    elif old is not None:
        text = f"{install.name} {old.full} → {new.full}{by}"
    elif kind == "package.replaced":
        text = f"{install.name} replaced by {new.full}{by}; which version was there before is not known"
    else:
        text = f"{install.name} {new.full} installed{by}"
    if install.cut_short is not None:
        text = f"{text}, cut short: {install.cut_short}"
    return f"{text} ({install.doubt})" if install.doubt else text
