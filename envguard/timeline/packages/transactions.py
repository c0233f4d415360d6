"""Install runs: which installs belong to one run, what the run was asked for, and what forced each replacement.

uv writes a run's packages within 0.3 to 2 s; pip writes them in bursts over a minute. REQUESTED tells what was asked
for under pip only, so roots come from requirement edges: what nothing else in the run asks for, was asked for.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import msgspec

from envguard import clock
from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.acquire.packages.installs import Install
from envguard.model.event import PackageChange, PreviousBuild, Requirement, Transaction
from envguard.timeline.packages.requirements import Edge, Graph

S = clock.NS
GAP_NS = {"uv": S // 2, "pip": 3 * S // 2}
EDGE_GAP_NS = {"uv": 2 * S, "pip": 2 * S}
"""How long nothing may have been written between two installs of one run, without and with a requirement between
them. Intervals count, not points: torch alone took 7 s to copy, and within a run one package follows the other."""
POINTS_GAP_NS = {"uv": 15 * S, "pip": 90 * S}
"""The same with a requirement where a file system keeps no birth times, so that only ends are known: a pip run wrote
its RECORDs in four bursts over 37 s."""
OTHER_GAP_NS = S
PACE_NS = 2 * S
"""What a slow machine adds to a pause at most: beyond it two quick runs on a busy machine would become one."""
BEFORE_NS, AFTER_NS = 3 * S, S // 20
"""A removal belongs to a run when it happened from `BEFORE_NS` before its first new folder to its end: an installer
removes before it installs."""


class Version(msgspec.Struct, frozen=True):
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

    @cached_property
    def id(self) -> str:
        names = sorted(f"{install.name}=={install.version}" for install in self.installs)
        text = "\0".join([self.tool or "", clock.iso_ns(self.start_ns), clock.iso_ns(self.end_ns), *names])
        return "t" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]

    @cached_property
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
) -> list[Group]:
    """Bursts of installs without a pause between them, and then bursts that a requirement joins."""
    ordered = sorted(installs, key=lambda install: (_times(install), install.name))
    # uv unlinks everything that it replaces before it links anything; pip goes package by package.
    cuts = sorted(time for install in ordered for time in removals.get(install.name, ())) if tool == "uv" else []
    found: list[_Burst] = []
    for install in ordered:
        single = _Burst(tool, install)
        if found and not _cut(cuts, found[-1], single) and single.start_ns - found[-1].end_ns <= found[-1].pause:
            found[-1].join(single)
        else:
            found.append(single)
    joined: list[_Burst] = []
    for burst in found:
        joined.append(burst)  # what joined may now join the burst before
        while len(joined) > 1 and _belong(joined[-2], joined[-1], cuts, graph):
            later = joined.pop()
            joined[-1].join(later)
    return [burst.group() for burst in joined]


class _Burst:
    """A group that grows. What decides whether the next install belongs to it is kept, and not counted again: a run
    of 100,000 packages would be counted 100,000 times."""

    def __init__(self, tool: str | None, install: Install) -> None:
        self.tool = tool
        self.start_ns, self.end_ns = _times(install)
        self.longest_ns = self.end_ns - self.start_ns
        self.known_by_ends = self.start_ns == self.end_ns
        self.installs = [install]
        self.names = {install.name}

    def join(self, later: _Burst) -> None:
        self.end_ns = max(self.end_ns, later.end_ns)
        self.longest_ns = max(self.longest_ns, later.longest_ns)
        self.known_by_ends = self.known_by_ends and later.known_by_ends
        self.installs += later.installs
        self.names |= later.names

    def group(self) -> Group:
        return Group(self.tool, self.start_ns, self.end_ns, tuple(self.installs))

    @property
    def pause(self) -> int:
        """How long (ns) nothing may be written after it. The longest package sets the pace of the machine."""
        return max(GAP_NS.get(self.tool or "", OTHER_GAP_NS), min(self.longest_ns // 4, PACE_NS))

    def pause_to(self, joined: _Burst) -> int:
        """The same with a requirement to the `joined` burst."""
        key = self.tool or ""
        if joined.known_by_ends:
            return POINTS_GAP_NS.get(key, 0)
        return max(EDGE_GAP_NS.get(key, 0), min(self.longest_ns // 2, 2 * PACE_NS))


def _belong(here: _Burst, there: _Burst, cuts: list[int], graph: Graph) -> bool:
    near = there.start_ns - here.end_ns <= here.pause_to(there)
    return near and not _cut(cuts, here, there) and _linked(here, there, graph)


def _cut(cuts: list[int], first: _Burst, second: _Burst) -> bool:
    after = bisect.bisect_right(cuts, first.end_ns)
    return after < len(cuts) and cuts[after] < second.start_ns


def _linked(first: _Burst, second: _Burst, graph: Graph) -> bool:
    """Whether a requirement leads from one burst to the other, in either direction."""
    few, many = sorted((first.names, second.names), key=len)
    for name in few:
        if any(edge.target in many for edge in graph.of.get(name, ())):
            return True
        if any(edge.requirer in many for edge in graph.to.get(name, ())):
            return True
    return False


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
            circle = {other for other in _reach({name}, graph, names) if name in _reach({other}, graph, names)}
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
    asked: Set[str],
    graph: Graph,
    previous: tuple[PreviousBuild, ...] = (),
) -> PackageChange:
    """What forced one package of a run in, or merely allowed it.

    Only requirements that the run had to meet count: those of what it `asked` for, which are its roots and everything
    that they require.
    """
    edges = [edge for edge in graph.to.get(install.name, ()) if edge.requirer in asked]
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
