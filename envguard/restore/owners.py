"""Files that two packages install: which of them has it at the reference, and who loses one by a restore.

opencv-python and opencv-python-headless install the same paths with other content. Whoever is installed last has the
file, and the other one departs from its RECORD from then on. A stamp saw which one departs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envguard.acquire.packages.distributions import Distribution
from envguard.acquire.packages.environment import Environment
from envguard.fingerprint.units import counted, some_of
from envguard.model.action import Obstacle
from envguard.restore.footprint import Incoming, place_of
from envguard.restore.wanted import Wanted


@dataclass(frozen=True)
class Owners:
    """What follows from the files that two packages install with other content.

    `first` are packages to install before the others, whose files come over theirs; `kept` are files of packages that
    stay and have them at the reference: a new file comes over them and has to go again.
    """

    first: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()
    refused: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Owner:
    name: str
    row: str
    """The path as its RECORD has it."""
    hash: str | None
    comes: bool


def settle_owners(
    env: Environment,
    staying: Iterable[Distribution],
    coming: Iterable[Incoming],
    wanted: Mapping[str, Wanted],
) -> Owners:
    """Looks at every file that `coming` brings and another package has, too; `wanted` is the reference by name."""
    by_path: dict[str, list[_Owner]] = {}
    for wheel in coming:
        for row in wheel.rows:
            path = place_of(env, wheel, row.path)
            if row.hash and path is not None:
                by_path.setdefault(path, []).append(_Owner(wheel.name, row.path, row.hash, True))
    for dist in staying:
        for row in dist.record.rows if dist.record else ():
            path = posixpath.normpath(f"{dist.location}/{row.path}")
            if row.hash and path in by_path and all(dist.name != owner.name for owner in by_path[path]):
                by_path[path].append(_Owner(dist.name, row.path, row.hash, False))
    first: set[str] = set()
    kept, refused, lost = [], [], dict[tuple[str, str], list[str]]()
    for path, owners in sorted(by_path.items()):
        if len({owner.hash for owner in owners}) < 2:
            continue
        here = [owner for owner in owners if owner.comes or owner.name in wanted]
        have = [owner for owner in here if owner.row not in _departing(wanted.get(owner.name))]
        for owner in owners:
            if owner not in here:
                lost.setdefault((here[0].name, owner.name), []).append(path)
        if len({owner.hash for owner in have}) > 1 or not have:
            names = " and ".join(owner.name for owner in here)
            says = f"{names} both install it with other content, and the reference does not say which of them has it"
            refused.append(Obstacle(package=here[0].name, path=path, why=says))
        elif not any(owner.comes for owner in have):
            kept.append(path)
        else:
            first |= {owner.name for owner in here if owner.comes and owner not in have}
    return Owners(frozenset(first), tuple(kept), tuple(refused), tuple(_lost(lost)))


def _departing(wanted: Wanted | None) -> tuple[str, ...]:
    return wanted.departs if wanted is not None else ()


def _lost(lost: Mapping[tuple[str, str], list[str]]) -> Iterable[str]:
    for (name, other), paths in lost.items():
        yield (
            f"{name} comes over {counted(len(paths), 'file')} of {other}, which is not in the reference and stays "
            f"({some_of(paths)}): {other} is damaged by it; `--exact` removes {other}"
        )
