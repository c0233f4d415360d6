"""Packages that were taken out and not replaced: told by the inodes that their archives lost, where something ties
them to this environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.acquire.packages.installs import Install
from envguard.model.event import Event
from envguard.model.evidence import Confidence, Evidence
from envguard.timeline.happening import make_event
from envguard.timeline.previous import Sighting
from envguard.timeline.requirements import Graph
from envguard.timeline.transactions import Group

UNPACK_NS = 120 * clock.NS


def lone_removals(
    installs: Iterable[Install],
    uses: Iterable[ArchiveUse],
    groups: Sequence[Group],
    graph: Graph,
    sightings: Sequence[Sighting],
) -> list[Event]:
    """Removals outside any install run.

    Another environment may share the cache: without a tie to this one (a record of it here, a package that still asks
    for it, an unpacking just when something was installed here) none is told.
    """
    present = {install.name for install in installs}
    events = []
    for use in uses:
        moment, name = use.last_link_change_ns, use.archive.name
        if moment is None or use.nlink != 1 or name in present or any(group.covers(moment) for group in groups):
            continue
        tie = _tie(use, groups, graph, sightings)
        if tie is None:
            continue
        why, best = tie
        proof = Evidence(
            witness="uv-cache",
            path=use.sample or use.archive.path,
            field="ctime",
            value=f"{clock.iso_ns(moment)} (nlink 1: unlinked from the last environment that held it)",
        )
        text = f"{name} {use.full_version} removed ({why})"
        events.append(
            make_event("package.removed", name, moment, None, text, [proof], best=best, from_=use.full_version)
        )
    return events


def seen_here(use: ArchiveUse, sightings: Iterable[Sighting]) -> Sighting | None:
    """A record that this version was in this environment before its archive lost the inode."""
    moment = use.last_link_change_ns or 0
    for sighting in sightings:
        same = sighting.version.full in (use.full_version, use.archive.version)
        if sighting.name == use.archive.name and same and sighting.time_ns is not None and sighting.time_ns <= moment:
            return sighting
    return None


def _tie(
    use: ArchiveUse, groups: Sequence[Group], graph: Graph, sightings: Sequence[Sighting]
) -> tuple[str, Confidence] | None:
    name, moment = use.archive.name, use.last_link_change_ns or 0
    sighting = seen_here(use, sightings)
    if sighting is not None:
        return f"it was here by {sighting.evidence[0].path}", "strong"
    requirers = [edge for edge in graph.to.get(name, ()) if not edge.by_extra]
    if requirers:
        return f"{requirers[0].requirer} still requires it", "weak"
    for group in groups:
        unpacked = use.unpacked_ns
        if unpacked is not None and group.start_ns - UNPACK_NS <= unpacked <= group.end_ns and group.end_ns < moment:
            return f"it was unpacked just when {group.installs[0].name} was installed here", "weak"
    return None
