"""Install runs: which installs belong to one run, what the run was asked for, and what forced each replacement.

uv writes a run's packages within 0.3 to 2 s; pip writes them in bursts over a minute. REQUESTED tells what was asked
for under pip only, so roots come from requirement edges: what nothing else in the run asks for, was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.archive_uses import ArchiveUse
from envguard.acquire.installs import Install
from envguard.model.event import PackageChange, PreviousBuild, Requirement, Transaction
from envguard.timeline.requirements import Edge, Graph

S = clock.NS
GAP_NS = {"uv": S // 2, "pip": 3 * S // 2}
EDGE_GAP_NS = {"uv": 2 * S, "pip": 15 * S}
"""How long nothing may have been written between two installs of one run, without and with a requirement between
them. Intervals count, not points: torch alone took 7 s to copy, and within a run one package follows the other."""
POINTS_GAP_NS = {"uv": 15 * S, "pip": 90 * S}
"""The same with a requirement where a file system keeps no birth times, so that only ends are known: a pip run wrote
its RECORDs in four bursts over 37 s."""
OTHER_GAP_NS = S
BEFORE_NS, AFTER_NS = 3 * S, S // 20
"""A removal belongs to a run when it happened from `BEFORE_NS` before its first new folder to its end: an installer
removes before it installs."""


@dataclass(frozen=True)
class Version:
    """A version as METADATA declares it, by which installers decide, and as the build itself says it.

    They differ for torch's wheels on PyPI: `2.11.0` and `2.11.0+cu130`.
    """

    declared: str | None
    full: str

    @property
    def public(self) -> str:
        """Without the local part."""
        return self.full.partition("+")[0]


@dataclass(frozen=True)
class Group:
    """The installs of one run (ns since the epoch)."""

    tool: str | None
    start_ns: int
    end_ns: int
    installs: tuple[Install, ...]

    @property
    def id(self) -> str:
        names = sorted(f"{install.name}=={install.version}" for install in self.installs)
        text = "\0".join([self.tool or "", clock.iso_ns(self.start_ns), clock.iso_ns(self.end_ns), *names])
        return "t" + hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(install.name for install in self.installs)

    def covers(self, moment_ns: int) -> bool:
        """Whether a removal at that moment belongs to this run."""
        return self.start_ns - BEFORE_NS <= moment_ns <= self.end_ns + AFTER_NS


@dataclass(frozen=True)
class Removal:
    """An archive that was unlinked from an environment while a run was at work."""

    use: ArchiveUse
    time_ns: int


def group_installs(
    installs: Iterable[Install], graph: Graph, removals: Mapping[str, Sequence[int]] | None = None
) -> tuple[Group, ...]:
    """Clusters installs into runs, oldest first; one without a time belongs to none.

    `removals` are times (ns) at which an older build of a package was unlinked: an installer removes before it
    installs, so a removal between two installs parts them into two runs, however close they are.
    """
    by_tool: dict[str | None, list[Install]] = {}
    for install in installs:
        if install.end_ns is not None:
            by_tool.setdefault(install.installer, []).append(install)
    groups = [group for tool, found in by_tool.items() for group in _cluster(tool, found, graph, removals or {})]
    return tuple(sorted(groups, key=lambda group: (group.start_ns, group.end_ns, group.tool or "")))


def _times(install: Install) -> tuple[int, int]:
    assert install.end_ns is not None
    return (install.start_ns if install.start_ns is not None else install.end_ns), install.end_ns


def _cluster(
    tool: str | None, installs: list[Install], graph: Graph, removals: Mapping[str, Sequence[int]]
) -> Iterable[Group]:
    ordered = sorted(installs, key=lambda install: (_times(install), install.name))
    # uv unlinks everything that it replaces before it links anything; pip goes package by package.
    cuts = sorted(time for install in ordered for time in removals.get(install.name, ())) if tool == "uv" else []
    current: list[Install] = []
    start = end = 0
    for install in ordered:
        first, last = _times(install)
        if current and (any(end < cut < first for cut in cuts) or not _joins(tool, current, install, end, graph)):
            yield Group(tool, start, end, tuple(current))
            current = []
        if not current:
            start = end = first
        current.append(install)
        end = max(end, last)
    if current:
        yield Group(tool, start, end, tuple(current))


def _joins(tool: str | None, current: list[Install], install: Install, end: int, graph: Graph) -> bool:
    """Whether an install belongs to the run so far; the longest package of a run sets the pace of the machine."""
    first, last = _times(install)
    gap = first - end
    key = tool or ""
    longest = max(times[1] - times[0] for times in map(_times, current))
    if gap <= max(GAP_NS.get(key, OTHER_GAP_NS), longest // 2):
        return True
    known_by_end = first == last
    limit = POINTS_GAP_NS.get(key, 0) if known_by_end else max(EDGE_GAP_NS.get(key, 0), longest)
    if gap > limit:
        return False
    names = {member.name for member in current}
    linked = {edge.target for edge in graph.of.get(install.name, ())}
    linked |= {edge.requirer for edge in graph.to.get(install.name, ())}
    return bool(names & linked)


def roots_of(group: Group, graph: Graph) -> tuple[str, ...]:
    """What the run was asked for: members that no other member asks for; of a circle that nobody else asks for, all.

    Where pip's REQUESTED marks say more than the edges do (a dependency that was also asked for), they are added.
    """
    names = group.names
    asked: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        asked[name] = {edge.requirer for edge in graph.to.get(name, ()) if edge.requirer in names}
    roots = {name for name, requirers in asked.items() if not requirers}
    reached = _reach(roots, graph, names)
    for name in sorted(names - reached):
        if name not in reached:
            circle = {
                other
                for other in names
                if other in _reach({name}, graph, names) and name in _reach({other}, graph, names)
            }
            if all(requirer in circle for member in circle for requirer in asked[member]):
                roots |= circle
                reached |= _reach(circle, graph, names)
    if group.tool == "pip":
        roots |= {install.name for install in group.installs if install.requested}
    return tuple(sorted(roots))


def _reach(names: set[str], graph: Graph, within: frozenset[str]) -> set[str]:
    seen: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(edge.target for edge in graph.of.get(name, ()) if edge.target in within)
    return seen


def removals_of(group: Group, uses: Iterable[ArchiveUse], current: dict[str, Install]) -> tuple[Removal, ...]:
    """Archives that were unlinked while the run was at work and are not what is installed now."""
    found = []
    for use in uses:
        moment = use.last_link_change_ns
        if moment is None or not group.covers(moment):
            continue
        install = current.get(use.archive.name)
        if install is not None and (install.name not in group.names or install.build == use.archive.build):
            continue
        found.append(Removal(use, moment))
    return tuple(sorted(found, key=lambda removal: (removal.use.archive.name, -removal.time_ns)))


def change_of(
    install: Install,
    old: Version | None,
    new: Version,
    group: Group,
    roots: tuple[str, ...],
    graph: Graph,
    previous: tuple[PreviousBuild, ...] = (),
) -> PackageChange:
    """What forced one package of a run in, or merely allowed it.

    Only requirements that the run had to meet count: those of its roots and of everything that they ask for.
    """
    reached = graph.closure(roots)
    edges = [edge for edge in graph.to.get(install.name, ()) if edge.requirer in reached]
    edges = [edge for edge in edges if not edge.by_extra or edge.requirer in group.names]
    forced: list[Edge] = []
    allowed: list[Edge] = []
    for edge in sorted(edges, key=lambda edge: (edge.requirer, edge.line)):
        if edge.admits(new.declared) is False:
            continue  # neither brought this version in nor allowed it: a broken requirement, which `diff` reports
        if old is None or edge.admits(old.declared) is False:
            forced.append(edge)
        else:
            allowed.append(edge)
    return PackageChange(
        name=install.name,
        from_=old.full if old is not None else None,
        to=new.full,
        forced_by=_models(forced),
        allowed_by=() if forced else _models(allowed),
        previous=previous,
    )


def _models(edges: list[Edge]) -> tuple[Requirement, ...]:
    return tuple(dict.fromkeys(edge.as_model() for edge in edges))


def transaction_of(group: Group, changes: tuple[PackageChange, ...], roots: tuple[str, ...]) -> Transaction:
    """The run as the report tells it."""
    return Transaction(
        id=group.id,
        start=clock.iso_ns(group.start_ns),
        end=clock.iso_ns(group.end_ns),
        tool=group.tool,
        packages=tuple(sorted(changes, key=lambda change: change.name)),
        roots=roots,
    )
