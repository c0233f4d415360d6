"""Installs and removals that were cut short, by what a kill, Ctrl-C or a full disk left of them.

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
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.installs import VERSION_FILES
from envguard.acquire.packages.pip_stash import Aside
from envguard.acquire.packages.record_file import normalised
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.packages.unowned import unowned_folders
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.torch.torch_build import UnreadableVersion, read_version_file
from envguard.model.evidence import Evidence, Unknown

_NO_LONGER_FILLING_NS = 60_000_000_000
SAME_CHANGE_NS = 20_000_000
"""An entry and the time of its folder are of one change: apart by a few ticks of the kernel's clock at most."""
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
    loose: bool = False
    """A folder of code without any dist-info: somebody may have copied it there."""


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
    host: Host, env: Environment, distributions: Distributions, trees: SiteTrees, unknown: list[Unknown]
) -> tuple[CutShort, ...]:
    """Every install and removal of which something is left that an ended one would not have left."""
    reader = _Reader(host, env, distributions, trees)
    found: list[CutShort] = []
    for name, ask in reader.questions():
        try:
            found += ask()
        except OSError as error:
            unknown.append(Unknown.refused(f"whether the install of {name} ended", error))
    return tuple(found)


class _Reader:
    def __init__(self, host: Host, env: Environment, distributions: Distributions, trees: SiteTrees) -> None:
        self.host = host
        self.env = env
        self.distributions = distributions
        self.trees = trees

    def questions(self) -> Iterator[tuple[str, Callable[[], Iterator[CutShort]]]]:
        newest: dict[tuple[str, str], Aside] = {}
        for aside in self.distributions.aside:
            key = (aside.location, aside.name)
            newest[key] = max(newest.get(key, aside), aside, key=lambda each: each.moved_ns or 0)
        for aside in self.distributions.aside:
            last = newest[aside.location, aside.name]
            yield aside.name, partial(self._aside, aside, None if last is aside else last)
        for dist in self.distributions.found:
            suspect = not dist.is_egg and dist.editable is None and dist.installer is None
            if suspect and is_hollow(dist) and self._has_whole(dist):
                continue  # a stale folder beside a sound install: nothing was cut short
            if suspect and managed_by(dist) is None and (dist.location, dist.name) not in newest:
                yield dist.name, partial(self._alone, dist)
        yield "what no package lists", self._loose

    def _has_whole(self, dist: Distribution) -> bool:
        """Whether another dist-info of the same package in the same folder has all of its files."""
        return any(
            (each.location, each.name) == (dist.location, dist.name)
            and each is not dist
            and each.record is not None
            and not self.missing(each)
            for each in self.distributions.found
        )

    def _aside(self, aside: Aside, later: Aside | None) -> Iterator[CutShort]:
        """`later` is a version that was put aside after this one, and so had been installed whole since."""
        here = self.distributions.beside(aside)
        whole = next((each for each in here if not self._is_torn(each)), None)
        coming = here[0] if here and later is None else None
        after = self._written(aside, coming) if later is None and whole is None else None
        came = after is not None and aside.moved_ns is not None and after[0] > aside.moved_ns
        mended = (later.version or later.was) if later is not None else whole.version if whole is not None else None
        version = coming.version if coming is not None else None
        if version is None and came:
            version = self._version(aside.name, f"{aside.location}/{aside.name}")
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
            coming=mended or version,
            began_ns=aside.moved_ns,
            last_ns=after[0] if came and after is not None else aside.moved_ns,
            says=says,
            evidence=(*_of_aside(aside), *((after[1],) if came and after is not None else ())),
            aside=aside,
            mended=mended,
            doubt=aside.doubt,
        )

    def _version(self, name: str, folder: str) -> str | None:
        """Of torch and its like, whose `version.py` in `folder` names the build."""
        if name not in VERSION_FILES:
            return None
        try:
            return read_version_file(self.host, f"{folder}/version.py").version
        except (OSError, UnreadableVersion):
            return None

    def _full_version(self, aside: Aside) -> str | None:
        said = self._version(aside.name, f"{aside.location}/{aside.now(aside.name)}")
        public = (aside.version or "").partition("+")[0]
        return said if said is not None and said.partition("+")[0] == public else aside.version

    def _alone(self, dist: Distribution) -> Iterator[CutShort]:
        if is_hollow(dist):
            yield self._hollow(dist)
        elif self._is_torn(dist):
            born = self._moment(dist.directory, self.host.stat(dist.directory))
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
                began_ns=born[0] if born is not None else None,
                last_ns=last[0] if last is not None else None,
                says=self._how_far(dist),
                evidence=(*proofs, *((last[1],) if last is not None else ())),
            )

    def _hollow(self, dist: Distribution) -> CutShort:
        """Its files were being taken out, METADATA and RECORD before what they speak of, or it had only begun."""
        stat = self.host.stat(dist.directory)
        born, changed = stat.btime_ns, stat.mtime_ns
        empty = not self.host.listing(dist.directory)
        # A folder that is empty and was changed after its birth held something; one that fills is soon full.
        taken = born is not None and changed > born + (SAME_CHANGE_NS if empty else _NO_LONGER_FILLING_NS)
        begun = born is not None and not taken and changed >= born - SAME_CHANGE_NS
        value = clock.iso_ns(changed) + (" (empty)" if empty else " (without METADATA and RECORD)")
        proofs = [Evidence(witness="dist-info", path=dist.directory, field="mtime", value=value)]
        proofs += [_time(dist.directory, "btime", born)] if born is not None else []
        says = "its METADATA and RECORD are gone" if taken else "its dist-info has neither METADATA nor RECORD"
        top = f"{dist.name.replace('-', '_')}/"
        if any(path.startswith(top) and each.is_file for path, each in self.trees.of(dist.location).items()):
            says += f", and there are files in {top}"
        return CutShort(
            dist.name,
            dist.location,
            dist.directory,
            going=dist.version if taken else None,
            coming=dist.version if begun else None,
            began_ns=changed if taken else born,
            last_ns=changed,
            says=says,
            evidence=tuple(proofs),
            hollow=True,
            doubt=None if taken or begun else f"{dist.directory} was copied here later",
        )

    def _loose(self) -> Iterator[CutShort]:
        for path in unowned_folders(self.host, self.env, self.distributions):
            location, name = posixpath.split(path)
            born = self._moment(path, self.host.stat(path))
            last = self._last(location, [name])
            version = self._version(name, path)
            yield CutShort(
                name.replace("_", "-").lower(),
                location,
                path,
                going=None,
                coming=version,
                began_ns=born[0] if born is not None else None,
                last_ns=last[0] if last is not None else None,
                says=f"{path} holds code{f' of {version}' if version else ''}, and no installed package lists it",
                evidence=tuple(item[1] for item in (born, last) if item is not None),
                loose=True,
            )

    def _is_torn(self, dist: Distribution) -> bool:
        """Whether what lies there is no whole install. Without INSTALLER and with all of its files it may be one,
        unless pip, which always writes it, had put another version aside."""
        if not never_ended(dist) or dist.is_egg or dist.editable is not None or managed_by(dist) is not None:
            return False
        by_pip = any((each.location, each.name) == (dist.location, dist.name) for each in self.distributions.aside)
        return by_pip or is_hollow(dist) or (dist.record is not None and bool(self.missing(dist)))

    def missing(self, dist: Distribution) -> list[str]:
        """Files that RECORD lists and that are not there, or not to their end; RECORD itself where it lists none."""
        rows = normalised(dist.record.rows) if dist.record is not None else ()
        if not rows:
            return [f"{posixpath.basename(dist.directory)}/RECORD"]
        sizes = self.host.stats(dist.location, [row.path for row in rows])[::4]
        return [
            row.path
            for row, size in zip(rows, sizes, strict=True)
            if size in _GONE or (row.size is not None and 0 <= size < row.size)
        ]

    def _how_far(self, dist: Distribution) -> str:
        rows = normalised(dist.record.rows) if dist.record is not None else ()
        missing = self.missing(dist)
        if not rows:
            return f"of {dist.version or 'the new version'} there is no RECORD yet that lists its files"
        if not missing:
            return f"all {len(rows)} files of {dist.version} are there, and INSTALLER and scripts are not"
        some = f"{len(missing)} of the" if len(missing) < len(rows) else "all"
        return f"{some} {len(rows)} files of {dist.version} never came, or not to their end"

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
        if not stat.is_directory:
            return (stat.mtime_ns, _time(path, "mtime", stat.mtime_ns)) if stat.nlink == 1 and stat.is_file else None
        born = self.host.stat(path).btime_ns
        if born is None or born > stat.mtime_ns + SAME_CHANGE_NS:
            return None  # a copy of the tree: its birth is the copy's
        return born, _time(path, "btime", born)


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
