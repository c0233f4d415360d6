"""Installs and removals that were cut short, by what a kill, a full disk or a lost connection left of them.

pip puts the old version aside under a name with `~`, copies the new one, writes INSTALLER and RECORD, and only then
takes the old one away. uv takes METADATA and RECORD of the old version out first and its other files after; of the
new one INSTALLER comes last. So what is missing says how far it had come.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from envguard import clock
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.installs import VERSION_FILES
from envguard.acquire.packages.pip_stash import Aside
from envguard.acquire.packages.record_file import normalised
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.torch.torch_build import UnreadableVersion, read_version_file
from envguard.model.event import ENDED
from envguard.model.evidence import Evidence, Unknown

_NO_LONGER_FILLING_NS = 60_000_000_000
_GONE = (-errno.ENOENT, -errno.ENOTDIR)


@dataclass(frozen=True)
class CutShort:
    """One install or removal that did not end. Times in ns, None where no witness has them."""

    package: str
    location: str
    directory: str
    """The dist-info by which it is known."""
    going: str | None
    """The version that was being taken out, None where that is not known or nothing was."""
    coming: str | None
    """The version that was being put there, None where nothing tells of one."""
    began_ns: int | None
    last_ns: int | None
    """The last thing that it is known to have written or taken out."""
    says: str
    """How far it had come, as what lies there tells."""
    evidence: tuple[Evidence, ...]
    aside: Aside | None = None
    mended: str | None = None
    """The version that was installed whole since."""
    doubt: str | None = None
    hollow: bool = False
    """Its dist-info has neither METADATA nor RECORD."""


def never_ended(dist: Distribution) -> bool:
    """Whether a distribution lacks what installers write last: INSTALLER, which its RECORD does not list either.

    uv leaves it out of a whole install where UV_NO_INSTALLER_METADATA asks for that, so that it proves nothing where
    all files are there.
    """
    own = posixpath.basename(dist.directory)
    listed = dist.record is not None and any(row.path == f"{own}/INSTALLER" for row in dist.record.rows)
    return dist.installer is None and not listed


def is_hollow(dist: Distribution) -> bool:
    """Whether a dist-info has neither METADATA nor RECORD nor INSTALLER: it was being filled or taken out."""
    return (
        not dist.is_egg
        and dist.installer is None
        and dist.record is None
        and all(dist.host.find(f"{dist.directory}/{name}") is None for name in ("METADATA", "RECORD"))
    )


def read_cut_short(
    host: Host, distributions: Distributions, unknown: list[Unknown], trees: SiteTrees | None = None
) -> tuple[CutShort, ...]:
    """Every install and removal of which something is left that an ended one would not have left."""
    reader = _Reader(host, distributions, trees or SiteTrees(host, unknown))
    found: list[CutShort] = []
    for name, ask in reader.questions():
        try:
            found += ask()
        except OSError as error:
            unknown.append(Unknown(f"{ENDED}{name} ended", error.strerror or str(error)))
    return tuple(found)


class _Reader:
    def __init__(self, host: Host, distributions: Distributions, trees: SiteTrees) -> None:
        self.host = host
        self.distributions = distributions
        self.trees = trees

    def questions(self) -> Iterator[tuple[str, Callable[[], Iterator[CutShort]]]]:
        newest: dict[tuple[str, str], Aside] = {}
        for aside in self.distributions.aside:
            key = (aside.location, aside.name)
            newest[key] = max(newest.get(key, aside), aside, key=lambda each: each.moved_ns or 0)
        for aside in self.distributions.aside:
            last = newest[aside.location, aside.name] is aside
            yield aside.name, partial(self._aside, aside, last)
        for dist in self.distributions.found:
            suspect = not dist.is_egg and dist.editable is None and dist.installer is None
            if suspect and managed_by(dist) is None and (dist.location, dist.name) not in newest:
                yield dist.name, partial(self._alone, dist)

    def _aside(self, aside: Aside, last: bool) -> Iterator[CutShort]:
        here = [
            each for each in self.distributions.found if (each.location, each.name) == (aside.location, aside.name)
        ]
        whole = next((each for each in here if not self._is_torn(each)), None)
        coming = here[0] if here and last else None
        after = self._written(aside, coming) if last and whole is None else None
        came = after is not None and aside.moved_ns is not None and after[0] > aside.moved_ns
        version = coming.version if coming is not None else self._version(aside) if came else None
        says = f"{aside.version or 'the old version'} was put aside by pip as {aside.folder} and never taken away"
        if came and coming is not None:
            says += f"; {self._how_far(coming)}"
        elif came:
            says += f"; what it copied {f'of {version} ' if version else ''}after that has no dist-info yet"
        yield CutShort(
            aside.name,
            aside.location,
            aside.directory,
            going=self._full_version(aside),
            coming=whole.version if whole is not None else version,
            began_ns=aside.moved_ns,
            last_ns=after[0] if came and after is not None else aside.moved_ns,
            says=says,
            evidence=(*_of_aside(aside), *((after[1],) if came and after is not None else ())),
            aside=aside,
            mended=whole.version if whole is not None else None if last else "another version",
            doubt=aside.doubt,
        )

    def _version(self, aside: Aside) -> str | None:
        """Of torch and its like, whose `version.py` names the build that was being copied."""
        if aside.name not in VERSION_FILES:
            return None
        path = f"{aside.location}/{aside.name}/version.py"
        try:
            written = self.host.stat(path).mtime_ns
            return read_version_file(self.host, path).version if written > (aside.moved_ns or written) else None
        except (OSError, UnreadableVersion):
            return None

    def _full_version(self, aside: Aside) -> str | None:
        if aside.name not in VERSION_FILES:
            return aside.version
        try:
            path = f"{aside.location}/{aside.now(f'{aside.name}/version.py')}"
            said = read_version_file(self.host, path).version
        except (OSError, UnreadableVersion):
            return aside.version
        return said if said.partition("+")[0] == (aside.version or "").partition("+")[0] else aside.version

    def _alone(self, dist: Distribution) -> Iterator[CutShort]:
        if is_hollow(dist):
            yield self._hollow(dist)
        elif self._is_torn(dist):
            born = self.host.stat(dist.directory).btime_ns
            last = self._last(dist.location, _tops(dist))
            where = f"{dist.directory}/INSTALLER"
            proofs = [
                Evidence(witness="dist-info", path=where, field="INSTALLER", value="not there: it is written last")
            ]
            yield CutShort(
                dist.name,
                dist.location,
                dist.directory,
                going=None,
                coming=dist.version,
                began_ns=born,
                last_ns=last[0] if last is not None else born,
                says=self._how_far(dist),
                evidence=(*proofs, *((last[1],) if last is not None else ())),
            )

    def _hollow(self, dist: Distribution) -> CutShort:
        """Its files were being taken out, METADATA and RECORD before what they speak of, or it had only begun."""
        stat = self.host.stat(dist.directory)
        empty = not self.host.listing(dist.directory)
        changed = stat.mtime_ns - stat.btime_ns if stat.btime_ns is not None else None
        taken = changed is not None and changed > (0 if empty else _NO_LONGER_FILLING_NS)
        value = clock.iso_ns(stat.mtime_ns) + (" (empty)" if empty else " (without METADATA and RECORD)")
        proofs = [Evidence(witness="dist-info", path=dist.directory, field="mtime", value=value)]
        if stat.btime_ns is not None:
            proofs.append(_time(dist.directory, "btime", stat.btime_ns))
        says = "its METADATA and RECORD are gone and files of it are still there"
        if not taken:
            says = "its dist-info has neither METADATA nor RECORD"
        return CutShort(
            dist.name,
            dist.location,
            dist.directory,
            going=dist.version if taken else None,
            coming=None if taken else dist.version,
            began_ns=stat.mtime_ns if taken else stat.btime_ns,
            last_ns=stat.mtime_ns,
            says=says,
            evidence=tuple(proofs),
            hollow=True,
        )

    def _is_torn(self, dist: Distribution) -> bool:
        """Whether what lies there is no whole install. Without INSTALLER and with all of its files it may be one,
        unless pip, which always writes it, had put another version aside."""
        if not never_ended(dist) or dist.is_egg or dist.editable is not None or managed_by(dist) is not None:
            return False
        by_pip = any((each.location, each.name) == (dist.location, dist.name) for each in self.distributions.aside)
        return by_pip or is_hollow(dist) or (dist.record is not None and bool(self.missing(dist)))

    def missing(self, dist: Distribution) -> list[str]:
        """Files that RECORD lists and that are not there; its own path where it lists none, being torn itself."""
        rows = normalised(dist.record.rows) if dist.record is not None else ()
        if not rows:
            return [f"{posixpath.basename(dist.directory)}/RECORD"]
        sizes = self.host.stats(dist.location, [row.path for row in rows])[::4]
        return [row.path for row, size in zip(rows, sizes, strict=True) if size in _GONE]

    def _how_far(self, dist: Distribution) -> str:
        rows = normalised(dist.record.rows) if dist.record is not None else ()
        missing = self.missing(dist)
        if not rows:
            return f"of {dist.version or 'the new version'} there is no RECORD yet that lists its files"
        if not missing:
            return f"all {len(rows)} files of {dist.version} are there, and INSTALLER and scripts are not"
        some = f"{len(missing)} of the" if len(missing) < len(rows) else "all"
        return f"{some} {len(rows)} files of {dist.version} never came"

    def _written(self, aside: Aside, coming: Distribution | None) -> tuple[int, Evidence] | None:
        tops = {was for _, was in aside.moved} | (_tops(coming) if coming is not None else set())
        return self._last(aside.location, tops)

    def _last(self, location: str, tops: Iterable[str]) -> tuple[int, Evidence] | None:
        """The newest trace of an installer's work below folders of packages. The birth of a folder is one, and so is
        the writing of a file that shares its inode with no cache; a later import moves neither."""
        best: tuple[int, Evidence] | None = None
        wanted = set(tops)
        for path, stat in self.trees.of(location).items():
            if path.partition("/")[0] not in wanted or path.endswith((".pyc", ".pyo")):
                continue
            moment = self._moment(f"{location}/{path}", stat)
            if moment is not None and (best is None or moment[0] > best[0]):
                best = moment
        return best

    def _moment(self, path: str, stat: Stat) -> tuple[int, Evidence] | None:
        if stat.is_directory:
            born = self.host.stat(path).btime_ns
            return (born, _time(path, "btime", born)) if born is not None else None
        return (stat.mtime_ns, _time(path, "mtime", stat.mtime_ns)) if stat.nlink == 1 and stat.is_file else None


def _tops(dist: Distribution) -> set[str]:
    """The dist-info and the folders that RECORD names; where it names none, the folder that bears the name."""
    rows = normalised(dist.record.rows) if dist.record is not None else ()
    named = {row.path.partition("/")[0] for row in rows if "/" in row.path} or {dist.name.replace("-", "_")}
    return {*named, posixpath.basename(dist.directory)}


def _of_aside(aside: Aside) -> Iterator[Evidence]:
    if aside.moved_ns is not None:
        yield _time(aside.directory, "ctime", aside.moved_ns)
    if aside.version is not None:
        yield Evidence(witness="dist-info", path=f"{aside.directory}/METADATA", field="Version", value=aside.version)


def _time(path: str, field: str, nanoseconds: int) -> Evidence:
    return Evidence(witness="dist-info", path=path, field=field, value=clock.iso_ns(nanoseconds))
