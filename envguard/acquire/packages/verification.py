"""What `verify` judges: installed files and archives held against RECORD, and RECORD against its second witness."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from envguard.acquire.packages.cached_archives import ARCHIVE_BUCKET
from envguard.acquire.packages.contents import (
    MISSING,
    AllContents,
    Contents,
    Policy,
    dangling,
    hash_as,
    read_contents,
)
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.editable_sources import gone_sources
from envguard.acquire.packages.owners import overwriters
from envguard.acquire.packages.record_file import Row, normalised, parse_record
from envguard.acquire.packages.uv_cache import Archive, UvCaches, as_installed
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.section import Notes, reason
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem
from envguard.state.digests import Digests

MOST_MISSING = 10_000
"""Missing files of a package that are told one by one; of a RECORD that names a million only their number is more."""
# A diff of more than this helps nobody, and a library is no text.
MAX_TEXT = 1 << 20
_IGNORED_EXTRA = re.compile(r"(?:^|/)__pycache__(?:/|$)|\.py[co]$|(?:^|/)\.[^/]*\.tmp$")
# What editors, patch, kernels and network file systems leave beside files: no import takes it, whatever its name is.
_INERT = re.compile(
    r"(?:^|/)\.(?!libs/|dylibs/)"  # hidden; the loader takes libraries from these two
    r"|(?:~|\.sw[a-p]|\.orig|\.rej|\.bak|\.old|\.log|\.tmp|\.temp|\.lock|\.part)$"
    r"|(?:^|/)(?:#[^/]*#|core(?:\.\d+)?|vgcore\.\d+|nohup\.out|Thumbs\.db|desktop\.ini|__MACOSX/.*)$"
)
Extra = tuple[str, str, int]
"""(package, absolute path, size)."""


@dataclass(frozen=True)
class DamagedFile:
    """A file that is not as RECORD says. `got` is `sha256=…` or "missing"; `sharers` are archives whose file has the
    same inode; `original` and `now` are the bytes where both are known and small."""

    path: str
    expected: Row
    got: str
    stat: Stat | None
    sharers: tuple[str, ...]
    original: bytes | None = None
    original_from: str | None = None
    now: bytes | None = None
    target: str | None = None
    """Where a link leads that leads nowhere."""
    rival: str | None = None
    """Another package that installs a file of this path: what lies there is that one's, and as its RECORD says."""


@dataclass(frozen=True)
class RowDifference:
    """A row of RECORD that the archive of this very wheel has otherwise; None where one of them lacks it."""

    path: str
    archive: str | None
    installed: str | None


@dataclass(frozen=True)
class Observed:
    """One distribution. `managed` says who else answers for it; `record` is what became of reading RECORD."""

    dist: Distribution
    picked: bool
    managed: str | None
    record: str
    """"read", "missing", "empty", or "unreadable: …"."""
    contents: Contents
    damaged: tuple[DamagedFile, ...] = ()
    missing_more: int = 0
    """Missing files beyond those in `damaged`."""
    rewritten: tuple[RowDifference, ...] = ()
    rewritten_witness: str | None = None
    unseen: tuple[Unknown, ...] = ()
    bad_rows: tuple[Problem, ...] = ()

    @property
    def wrong(self) -> int:
        return len(self.contents.departs)


@dataclass(frozen=True)
class PoisonedFile:
    """A file of a cache archive that is not what the archive's own RECORD says."""

    archive: Archive
    path: str
    expected: str | None
    got: str
    installed: bool
    more: int = 0
    """So many missing files beyond those that are told; `path` is then empty."""


@dataclass(frozen=True)
class Observations:
    """Everything that was looked at; `extras` are files that no RECORD lists, `inert` those that nothing imports."""

    packages: tuple[Observed, ...]
    poisoned: tuple[PoisonedFile, ...]
    extras: tuple[Extra, ...]
    unknown: tuple[Unknown, ...]
    deep: bool
    gone: tuple[tuple[str, str], ...] = ()
    """(package, path): editable installs whose source is not there."""
    inert: tuple[Extra, ...] = ()


def observe(
    host: Host,
    distributions: Distributions,
    names: frozenset[str],
    caches: UvCaches,
    policy: Policy,
    digests: Digests,
    progress: Callable[[int], None] | None = None,
) -> Observations:
    """Looks at the named distributions (all where `names` is empty), and at the archives that they came from."""
    chosen = tuple(dist for dist in distributions.found if not names or dist.name in names)
    contents = read_contents(host, chosen, policy, digests, progress)
    reader = _Reader(host, caches, contents)
    packages = tuple(reader.package(dist, distributions) for dist in chosen)
    builds = {item.contents.identity for item in packages if item.contents.identity is not None}
    archives = [
        archive
        for archive in caches.archives
        if archive.build in builds or (policy.deep and (not names or archive.name in names))
    ]
    poisoned = tuple(_poisoned(host, archives, builds, policy, digests, reader.notes, progress))
    extras, inert = _extras(host, distributions, names, reader.notes)
    unseen = [item for item in caches.unknown if _matters(item, policy.deep)]
    unknown = (*unseen, *reader.notes.unknown)
    return Observations(packages, poisoned, extras, unknown, policy.deep, gone_sources(chosen), inert)


def is_inert(path: str) -> bool:
    """Whether a file that no RECORD lists is litter by its name: neither `import` nor the loader takes it. `path` is
    relative to a package's folder."""
    return _INERT.search(path) is not None


def _matters(unseen: Unknown, deep: bool) -> bool:
    """Whether something in a cache that could not be seen leaves the installed packages unverified: the cache or its
    archives as a whole do; a single archive where all were to be read; a pointer never, since it is no witness."""
    if unseen.what.startswith("uv cache "):
        return True
    bucket = next((part for part in unseen.what.split("/") if ARCHIVE_BUCKET.fullmatch(part)), None)
    return bucket is not None and (deep or unseen.what.endswith(bucket))


class _Reader:
    def __init__(self, host: Host, caches: UvCaches, contents: AllContents) -> None:
        self.host = host
        self.caches = caches
        self.contents = contents
        self.notes = Notes()

    def package(self, dist: Distribution, every: Distributions) -> Observed:
        managed = managed_by(dist)
        contents = self.contents.of.get(dist.directory, Contents(None))
        rows, record = self._record(dist)
        picked = every.of(dist.name)
        if managed is not None or record != "read":
            return Observed(dist, picked is dist, managed, record, contents)
        by_path = {row.path: row for row in rows}
        same_name = self.caches.of(dist.name)
        departs, more = _told({path: got for path, got in contents.departs.items() if path in by_path})
        owners = overwriters(self.host, dist, dict(departs), every)
        damaged = tuple(
            self._damaged(dist, by_path[path], got, same_name, contents.identity, owners.get(path))
            for path, got in departs
        )
        rewritten, witness = self._rewritten(dist, by_path, same_name, contents.identity)
        prefix = f"{dist.location}/"
        unseen = tuple(
            item
            for item in self.contents.unknown
            if item.what == f"contents of {dist.name}" or item.what.removeprefix(prefix) in by_path
        )
        bad = tuple(item for item in self.contents.problems if item.path == f"{dist.directory}/RECORD")
        return Observed(dist, picked is dist, None, record, contents, damaged, more, rewritten, witness, unseen, bad)

    def _record(self, dist: Distribution) -> tuple[tuple[Row, ...], str]:
        record = dist.record
        if record is not None:
            return (record.rows, "read") if record.rows else ((), "empty")
        try:
            self.host.read(f"{dist.directory}/RECORD")
        except (FileNotFoundError, NotADirectoryError):
            return (), "missing"
        except OSError as error:
            return (), f"unreadable: {reason(error)}"
        return (), "unreadable: it could not be read a moment ago"

    def _damaged(
        self,
        dist: Distribution,
        row: Row,
        got: str,
        archives: tuple[Archive, ...],
        identity: str | None,
        rival: Distribution | None,
    ) -> DamagedFile:
        path = f"{dist.location}/{row.path}"
        stat = self._stat(path) if got != MISSING else None
        if rival is not None:
            return DamagedFile(row.path, row, got, stat, (), rival=f"{rival.name} {rival.version or ''}".strip())
        sharers = tuple(archive.path for archive in archives if stat is not None and self._shares(archive, row, stat))
        source, original = self._original(row, archives, identity)
        now = self._small(path) if stat is not None and original is not None else None
        target = dangling(self.host, path) if got == MISSING else None
        return DamagedFile(row.path, row, got, stat, sharers, original, source, now, target)

    def _stat(self, path: str) -> Stat | None:
        """Of what the path leads to: in uv's symlink mode an installed file is a link into the cache."""
        try:
            return self.host.stat_target(path)
        except OSError:
            return None

    def _shares(self, archive: Archive, row: Row, stat: Stat) -> bool:
        there = self._stat(f"{archive.path}/{row.path}")
        return there is not None and (there.device, there.inode) == (stat.device, stat.inode)

    def _original(
        self, row: Row, archives: tuple[Archive, ...], identity: str | None
    ) -> tuple[str | None, bytes | None]:
        """The file as RECORD has it, from an archive of this build whose copy is still sound."""
        for archive in archives:
            path = f"{archive.path}/{row.path}"
            if archive.build != identity or (row.size is not None and row.size > MAX_TEXT):
                continue
            try:
                if row.hash is not None and hash_as(self.host, path, row.hash) == row.hash:
                    return path, self.host.read(path)
            except OSError:
                continue
        return None, None

    def _small(self, path: str) -> bytes | None:
        try:
            data = self.host.read(path, MAX_TEXT + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_TEXT else None

    def _rewritten(
        self, dist: Distribution, by_path: dict[str, Row], archives: tuple[Archive, ...], identity: str | None
    ) -> tuple[tuple[RowDifference, ...], str | None]:
        """Rows that were rewritten after the install: an archive of this version has the same WHEEL and METADATA and
        other hashes of few files. An archive of another wheel of the same version proves nothing."""
        same = [archive for archive in archives if archive.version == dist.version and archive.problem is None]
        if identity is None or not same or any(archive.build == identity for archive in same):
            return (), None
        mine = {row.path: row.hash for row in normalised(by_path.values())}
        for archive in same:
            theirs = self._archive_rows(archive)
            marks = [path for path in theirs if path.endswith((".dist-info/WHEEL", ".dist-info/METADATA"))]
            if not marks or any(mine.get(path) != theirs[path] for path in marks):
                continue
            differ = sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))
            if differ and 2 * len(differ) <= len(theirs):
                rows = tuple(RowDifference(path, theirs.get(path), mine.get(path)) for path in differ)
                return rows, f"{archive.path}/{archive.dist_info}/RECORD"
        return (), None

    def _archive_rows(self, archive: Archive) -> dict[str, str | None]:
        try:
            record = parse_record(self.host.read(f"{archive.path}/{archive.dist_info}/RECORD"))
        except OSError as error:
            self.notes.unseen(f"RECORD of {archive.path}", error)
            return {}
        return {row.path: row.hash for row in normalised(as_installed(record.rows))}


def _told(departs: Mapping[str, str]) -> tuple[list[tuple[str, str]], int]:
    """(path, got) of the files that are told one by one, in order, and how many more are missing."""
    missing = sorted(path for path, got in departs.items() if got == MISSING)
    told = set(missing[:MOST_MISSING])
    found = sorted((path, got) for path, got in departs.items() if got != MISSING or path in told)
    return found, len(missing) - len(told)


def _poisoned(
    host: Host,
    archives: Iterable[Archive],
    builds: set[str],
    policy: Policy,
    digests: Digests,
    notes: Notes,
    progress: Callable[[int], None] | None,
) -> Iterable[PoisonedFile]:
    """Archives against their own RECORD, read as if each were an environment of one package."""
    by_directory = {
        f"{archive.path}/{archive.dist_info}": archive for archive in archives if archive.build is not None
    }
    unpacked = [
        Distribution(archive.name, archive.name, archive.version, directory, archive.path, host=host)
        for directory, archive in by_directory.items()
    ]
    found = read_contents(host, unpacked, policy, digests, progress, unpacked=True)
    notes.take(found.problems, found.unknown)
    for directory, contents in found.of.items():
        if not contents.departs:
            continue
        archive = by_directory[directory]
        try:
            rows = {row.path: row for row in parse_record(host.read(f"{directory}/RECORD")).rows}
        except OSError as error:
            notes.unseen(f"RECORD of {archive.path}", error)
            continue
        told, more = _told(contents.departs)
        for path, got in told:
            yield PoisonedFile(archive, path, rows[path].hash if path in rows else None, got, archive.build in builds)
        if more:
            yield PoisonedFile(archive, "", None, MISSING, archive.build in builds, more)


def _extras(
    host: Host, distributions: Distributions, names: frozenset[str], notes: Notes
) -> tuple[tuple[Extra, ...], tuple[Extra, ...]]:
    """Files that lie in a package's folders and in nobody's RECORD, and apart from them those that are litter; what
    Python itself writes there is neither."""
    found: tuple[list[Extra], list[Extra]] = ([], [])
    claimed: dict[str, set[str]] = {}
    owners: dict[str, str] = {}
    for dist in distributions.found:
        record = dist.record
        if record is None or dist.editable is not None or managed_by(dist) is not None:
            continue
        claimed.setdefault(f"{dist.location}/", set()).update(row.path for row in record.rows)
        for parent in dict.fromkeys(row.path.rpartition("/")[0] for row in record.rows):
            folder = parent.partition("/")[0]
            if folder not in ("", "..") and not folder.endswith(".dist-info"):
                owners.setdefault(f"{dist.location}/{folder}", dist.name)
                owners.setdefault(f"{dist.location}/{parent}", dist.name)
    for top in sorted(folder for folder in owners if _is_top(folder, owners)):
        if names and not _concerns(top, owners, names):
            continue
        try:
            walk = host.walk(top, skip=("__pycache__",))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen(f"extra files in {top}", error)
            continue
        for inner, stat in walk.entries:
            path = f"{top}/{inner}"
            if stat.kind in ("file", "link") and not _IGNORED_EXTRA.search(inner) and not _is_claimed(path, claimed):
                owner = _owner(path, owners)
                if not names or owner in names:
                    found[is_inert(inner)].append((owner, path, stat.size))
    return tuple(found[0]), tuple(found[1])


def _is_claimed(path: str, claimed: dict[str, set[str]]) -> bool:
    return any(path.startswith(place) and path[len(place) :] in rows for place, rows in claimed.items())


def _is_top(folder: str, owners: dict[str, str]) -> bool:
    return folder.rpartition("/")[0] not in owners


def _concerns(top: str, owners: dict[str, str], names: frozenset[str]) -> bool:
    return any(owner in names for folder, owner in owners.items() if folder == top or folder.startswith(f"{top}/"))


def _owner(path: str, owners: dict[str, str]) -> str:
    folder = path.rpartition("/")[0]
    while folder not in owners:
        folder = folder.rpartition("/")[0]
    return owners[folder]
