"""The previous build without a stamp: every witness that still knows what was installed before, ranked.

A sighting is a version that some witness saw in this environment at some time. Sightings are ranked by what they
prove: that this very build was in this environment until the swap, that this version was there at some earlier time,
or merely that such a build was at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from envguard import clock
from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.model.event import PreviousBuild
from envguard.model.evidence import Confidence, Evidence
from envguard.timeline.packages.transactions import Group, Version

RANKS = {
    "process": 0,
    "leftovers": 1,
    "removal": 1,
    "stamp": 2,
    "journal": 3,
    "wandb": 4,
    "pip-log": 5,
    "conda": 5,
    "train-log": 6,
    "checkpoint": 7,
    "compile-cache": 8,
    "lock-file": 9,
    "unlinked": 10,
    "cache": 11,
}
"""What proves more comes first: an inode that a process still maps, what an install that was cut short left, an
unlink at the moment of the swap, a record of envguard's, then what others wrote down, then what only lies in the
cache."""


class Sighting(msgspec.Struct, frozen=True):
    """`version` of `name` was in this environment at `time_ns` (None: at an unknown time before the swap).

    A struct, and not a dataclass, which takes many times as long to make: 20,000 snapshots speak millions of them.
    """

    name: str
    version: Version
    time_ns: int | None
    source: str
    """A key of RANKS."""
    evidence: tuple[Evidence, ...]
    best: Confidence = "strong"
    build: str | None = None
    cuda: str | None = None
    git_version: str | None = None
    archive: str | None = None
    """Path of a uv cache archive that holds this build, or of what pip put aside: it can be restored from there."""
    prefix: str | None = None
    """The environment that it was seen in, where that was not this one: perhaps this one before it was moved."""
    unpacked_ns: int | None = None
    """When the archive that it was linked from was unpacked, or what pip put aside was installed: it was not here
    before that."""
    contents: str | None = None
    """The build with the files that departed from it or were missing then, where a fingerprint looked."""
    loaded: bool = False
    """A process had loaded it, and something else lay on disk by then."""


def same_build(first: Sighting, second: Sighting) -> bool:
    """Whether two sightings may be of one build: by build where both know it, else by version, and by its local part
    where both have one."""
    if first.build is not None and second.build is not None:
        return first.build == second.build
    if "+" in first.version.full and "+" in second.version.full:
        return first.version.full == second.version.full
    return first.version.public == second.version.public


def by_name(sightings: Iterable[Sighting]) -> Mapping[str, Sequence[Sighting]]:
    """Sightings by package, in their order: with a thousand stamps of six hundred packages each, whoever asks about
    one package must not go through all of them."""
    found: dict[str, list[Sighting]] = {}
    for sighting in sightings:
        found.setdefault(sighting.name, []).append(sighting)
    return found


@dataclass(frozen=True)
class Previous:
    """One candidate for the build before a swap, with all sightings that agree on it; the first proves most."""

    version: Version
    sightings: tuple[Sighting, ...]

    @property
    def rank(self) -> int:
        return min(RANKS[sighting.source] for sighting in self.sightings)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(dict.fromkeys(item for sighting in self.sightings for item in sighting.evidence))

    @property
    def best(self) -> Confidence:
        return "strong" if any(sighting.best != "weak" for sighting in self.sightings) else "weak"

    def as_model(self) -> PreviousBuild:
        return PreviousBuild(
            version=self.version.full,
            build=self.first("build"),
            cuda=self.first("cuda"),
            git_version=self.first("git_version"),
            restorable=self.first("archive"),
            witnesses=tuple(dict.fromkeys(sighting.source for sighting in self.sightings)),
            evidence=self.evidence,
        )

    @property
    def perhaps(self) -> bool:
        """Whether all that names it is a cache that lost it before this environment was made: it may have been in
        the one before at this path, or in another."""
        return all(sighting.source in ("unlinked", "cache") for sighting in self.sightings)

    def came_after(self, moment_ns: int) -> bool:
        """Whether nothing shows this build here as early as that moment: everything that saw it is later, and what
        was unlinked from here at the swap had been linked from an archive that was unpacked later."""
        until = ("removal", "leftovers")  # these saw it last; what they know of its beginning is another time
        since = [item.unpacked_ns if item.source in until else item.time_ns for item in self.sightings]
        known = [moment for moment in since if moment is not None]
        return bool(known) and min(known) > moment_ns

    def first(self, field: str) -> str | None:
        """The first sighting's word on `build`, `cuda`, `git_version` or `archive`."""
        return next((value for sighting in self.sightings if (value := getattr(sighting, field))), None)


def previous_builds(
    until_ns: int, sightings: Iterable[Sighting], current: Version | None, current_build: str | None
) -> tuple[Previous, ...]:
    """Candidates for what was replaced or taken out by `until_ns`, best first, by the sightings of one package; what
    is installed now is none of them."""
    found: dict[tuple[str, str | None], list[Sighting]] = {}
    for sighting in sightings:
        if sighting.time_ns is not None and sighting.time_ns > until_ns + clock.NS:
            continue
        if sighting.build is not None and sighting.build == current_build:
            continue
        # A witness that leaves the local part out may mean what is there now as well.
        now = (current.full, current.declared, current.public) if current is not None else ()
        if sighting.build is None and sighting.version.full in now:
            continue
        found.setdefault((sighting.version.full, sighting.build), []).append(sighting)
    _join_vague(found)
    made = [Previous(_fullest(items), _telling(sorted(items, key=_proves))) for items in found.values()]
    return tuple(sorted(made, key=lambda previous: (_proves(previous.sightings[0]), previous.version.full)))


def _join_vague(found: dict[tuple[str, str | None], list[Sighting]]) -> None:
    """A witness that names no build, or leaves the local part out, agrees with the best that names more."""
    for full, build in [key for key in found if key[1] is None]:
        fuller = [
            key
            for key in found
            if (key[0] == full and key[1] is not None)
            or (key[0] != full and "+" not in full and key[0].partition("+")[0] == full)
        ]
        if fuller and len({key[0] for key in fuller}) == 1:
            best = min(fuller, key=lambda key: min(_proves(sighting) for sighting in found[key]))
            found[best] += found.pop((full, build))


def _telling(items: Sequence[Sighting]) -> tuple[Sighting, ...]:
    """Of many records of one kind that say the same, the latest and the earliest; `items` are ordered by what they
    prove. A thousand stamps between the two would bury the other witnesses, and add nothing."""
    kept: dict[object, Sighting] = {}
    for index, item in enumerate(items):
        if item.archive is not None or item.time_ns is None:
            kept[index] = item
            continue
        kind = (item.source, item.best)
        kept[(*kind, "earliest" if (*kind, "latest") in kept else "latest")] = item
    return tuple(sorted(kept.values(), key=_proves))


def _fullest(items: list[Sighting]) -> Version:
    return max((item.version for item in items), key=lambda version: len(version.full))


def _proves(sighting: Sighting) -> tuple[int, int]:
    """Of two sightings of one kind the later one is nearer to the swap."""
    return RANKS[sighting.source], -(sighting.time_ns or 0)


def sighting_of_removal(use: ArchiveUse, before_ns: int | None = None) -> Sighting:
    """The build whose archive was unlinked from here; where that was before this environment was made (`before_ns`),
    from what lay here before or from elsewhere."""
    assert use.last_link_change_ns is not None
    assert use.sample is not None
    alone = use.nlink == 1
    value = clock.iso_ns(use.last_link_change_ns) + (
        " (nlink 1: unlinked from the last environment that held it)"
        if alone
        else f" (nlink {use.nlink}: linked or unlinked by one of several environments)"
    )
    evidence = [
        Evidence(witness="uv-cache", path=use.sample, field="ctime", value=value),
        Evidence(
            witness="uv-cache",
            path=f"{use.archive.path}/{use.archive.dist_info}/METADATA",
            field="Version",
            value=use.archive.version,
        ),
    ]
    if before_ns is not None and use.last_link_change_ns < before_ns:
        return _of_use(use, "unlinked", use.last_link_change_ns, tuple(evidence), "weak")
    return _of_use(use, "removal", use.last_link_change_ns, tuple(evidence), "strong")


def sightings_of_cache(
    uses: Iterable[ArchiveUse], groups: tuple[Group, ...], first_ns: int | None = None
) -> Iterable[Sighting]:
    """What the uv cache knows: removals, archives that processes still map, and builds that merely lie there.

    `first_ns` is when the environment came to be, None where it may be older than its pyvenv.cfg: what another one
    that still holds an archive did before that is no removal from here.
    """
    for use in uses:
        for pid, file in use.mapped_by:
            proof = Evidence(
                witness="process", path=f"/proc/{pid}/maps", field=file, value=f"inode of {use.archive.path}"
            )
            yield _of_use(use, "process", None, (proof,), "strong")
        at = use.last_link_change_ns
        if at is not None and first_ns is not None and at < first_ns and (use.nlink or 0) > 1:
            at = None
        removed = at is not None and any(use.archive.name in group.names and group.covers(at) for group in groups)
        if removed:
            for group in groups:
                if at is not None and use.archive.name in group.names and group.covers(at):
                    yield sighting_of_removal(use, first_ns)
        else:
            proof = Evidence(
                witness="uv-cache",
                path=f"{use.archive.path}/{use.archive.dist_info}/RECORD",
                field="mtime",
                value=(clock.iso_ns(use.unpacked_ns) if use.unpacked_ns is not None else "unknown")
                + " (unpacked into the cache; nothing says that it was installed here)",
            )
            yield _of_use(use, "cache", use.unpacked_ns, (proof,), "weak")


def _of_use(
    use: ArchiveUse, source: str, time_ns: int | None, evidence: tuple[Evidence, ...], best: Confidence
) -> Sighting:
    return Sighting(
        name=use.archive.name,
        version=Version(use.archive.version, use.full_version),
        time_ns=time_ns,
        source=source,
        evidence=evidence,
        best=best,
        build=use.archive.build,
        cuda=use.version.cuda if use.version else None,
        git_version=use.version.git_version if use.version else None,
        archive=use.archive.path,
        unpacked_ns=use.unpacked_ns if source == "removal" else None,
    )
