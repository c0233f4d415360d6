"""What lies on disk of each distribution, held against its RECORD: by stat of every file, by digest where it counts.

A file is hashed where its package is watched (or all are: `deep`), where its size is not RECORD's, where it was
written after the install ended, or where its stat is not the one that was last seen. What was seen is kept by
(path, size, mtime, ctime, inode), so that looking again costs a stat a file.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from envguard.acquire.packages.distributions import Distribution
from envguard.acquire.packages.record_file import (
    Row,
    algorithm_of,
    identity_of,
    normalised,
    parse_record,
    record_hash,
)
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, reason
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem
from envguard.state.digests import Digests, Key, SeenPackage, is_racy

WATCHED = ("torch", "triton", "nvidia-*", "transformers", "flash-attn", "sglang", "vllm", "numpy")
MISSING = "missing"
_ABSENT = (-errno.ENOENT, -errno.ENOTDIR, -errno.EISDIR, -errno.ELOOP)
_DAY = 86_400

Depth = Literal["stat", "watched", "deep"]


@dataclass(frozen=True)
class Contents:
    """Of one distribution. `identity` is that of its RECORD; None where there is none that can be read."""

    identity: str | None
    departs: dict[str, str] = field(default_factory=dict)
    """Path → `sha256=…` (or by RECORD's own algorithm) of what is there, or "missing"."""
    files: int | None = None
    bytes: int | None = None
    depth: Depth = "stat"
    installed_ns: int | None = None
    """mtime of INSTALLER, else of RECORD: both are written when the install ends."""
    record_key: Key | None = None
    unread: tuple[str, ...] = ()
    """Paths of which nothing can be said: their stat or their content could not be read."""

    @property
    def build(self) -> str | None:
        """The build identity: RECORD's, and the files that depart from it where any do."""
        if self.identity is None or not self.departs:
            return self.identity
        hasher = hashlib.sha256(f"{self.identity}\n".encode())
        for path in sorted(self.departs):
            hasher.update(f"{path},{self.departs[path]}\n".encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()


@dataclass(frozen=True)
class AllContents:
    """By dist-info directory, and what was met on the way."""

    of: dict[str, Contents]
    problems: tuple[Problem, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class Policy:
    """How far to look: `watch` are shell patterns of normalised names beside the usual ones, `closely` dist-infos
    that are hashed whatever they are called."""

    watch: tuple[str, ...] = ()
    deep: bool = False
    closely: frozenset[str] = frozenset()

    def depth(self, dist: Distribution) -> Depth:
        if self.deep:
            return "deep"
        return "watched" if self._watched.match(dist.name) or dist.directory in self.closely else "stat"

    @cached_property
    def _watched(self) -> re.Pattern[str]:
        return re.compile("|".join(fnmatch.translate(pattern) for pattern in (*WATCHED, *self.watch)))


def read_contents(
    host: Host,
    distributions: Iterable[Distribution],
    policy: Policy,
    digests: Digests,
    progress: Callable[[int], None] | None = None,
    trust_records: bool = False,
    mapped: Sequence[str] = (),
    unpacked: bool = False,
) -> AllContents:
    """Looks at every file of every distribution; `progress` is told of bytes as they are hashed. `unpacked`: they are
    wheels in the archives of a cache, where the files of `.data` have not been put elsewhere.

    With `trust_records` a package whose RECORD has not moved since it was last looked at is taken as it was then,
    unless one of its files among `mapped` (paths below site-packages: the libraries of a process) has: what a stamp
    in a training loop can afford.
    """
    notes = Notes()
    reader = _Reader(host, digests, notes, progress, tuple(mapped) if trust_records else None, unpacked)
    found = {each.directory: reader.read(each, policy.depth(each)) for each in distributions}
    return AllContents(found, tuple(notes.problems), tuple(notes.unknown))


def all_known(host: Host, distributions: Iterable[Distribution], policy: Policy, digests: Digests) -> bool:
    """Whether every package that must be hashed was, and its RECORD has not moved since."""
    for dist in distributions:
        if policy.depth(dist) == "stat":
            continue
        seen, key = digests.package(dist.directory), _key(host.stats(dist.directory, ("RECORD",)), 0)
        if key[0] >= 0 and (seen is None or not seen.hashed or seen.record != key):
            return False
    return True


def known_contents(digests: Digests, directory: str, key: Key, record: bytes) -> Contents:
    """Of a package that may no longer be there: as it was last looked at, else what its RECORD promised."""
    seen = digests.package(directory)
    if seen is not None and seen.record == key:
        return replace(_contents(seen, "stat"), record_key=key, installed_ns=key[1])
    rows = normalised(parse_record(record).rows)
    return Contents(identity_of(rows) if rows else None, files=len(rows), record_key=key, installed_ns=key[1])


class _Reader:
    def __init__(
        self,
        host: Host,
        digests: Digests,
        notes: Notes,
        progress: Callable[[int], None] | None,
        mapped: tuple[str, ...] | None,
        unpacked: bool,
    ) -> None:
        self.host = host
        self.digests = digests
        self.notes = notes
        self.progress = progress
        self.mapped = mapped
        self.unpacked = unpacked

    def read(self, dist: Distribution, depth: Depth) -> Contents:
        marks = self.host.stats(dist.directory, ("RECORD", "INSTALLER"))
        key = _key(marks, 0)
        if key[0] < 0 and key[0] not in _ABSENT:
            self.notes.unseen(f"contents of {dist.name}", f"RECORD: {os.strerror(-key[0])}")
            found = self._unread(dist)
        else:
            # Installers write RECORD last, and INSTALLER just before: what bears a later time than either was
            # perhaps written by somebody else, and its content decides. RECORD may have been written anew with it.
            ended = min(key[1], marks[5] or key[1])
            found = self._found(dist, depth, key, ended) if key[0] >= 0 else Contents(None)
        return replace(
            found, installed_ns=marks[5] or marks[1] or None, record_key=key if key[0] != -errno.ENOENT else None
        )

    def _found(self, dist: Distribution, depth: Depth, key: Key, ended_ns: int) -> Contents:
        try:
            return self._read(dist, depth, key, ended_ns)
        except OSError as error:
            self.notes.unseen(f"contents of {dist.name}", f"RECORD: {reason(error)}")
            return self._unread(dist)

    def _unread(self, dist: Distribution) -> Contents:
        """Of a package whose RECORD could not be read: unlike one that has none, it may be of any build."""
        return Contents(None, unread=(f"{dist.directory.removeprefix(f'{dist.location}/')}/RECORD",))

    def _read(self, dist: Distribution, depth: Depth, key: Key, ended_ns: int) -> Contents:
        """Raises OSError where RECORD cannot be read."""
        seen = self.digests.package(dist.directory)
        if seen is not None and seen.record != key:
            seen = None
        if seen is not None:
            self._tell_again(dist, key)
        if self.mapped is not None and seen is not None and self._taken_as_seen(dist, seen, depth, self.mapped):
            return _contents(seen, depth)
        rows = None if seen is not None else self._rows(dist, key)
        if seen is None and rows is None:
            return Contents(None)
        names = _names(seen) if seen is not None else [row.path for row in rows or ()]
        looked_at = time.time_ns()
        stats = self.host.stats(dist.location, names)
        if seen is not None and stats.tobytes() == seen.stats and (seen.hashed or depth == "stat"):
            self._remember_day(dist, seen)
            return _contents(seen, depth)
        rows = rows if rows is not None else self._rows(dist, key, again=True)
        if rows is None or len(rows) * 4 != len(stats):
            self.notes.unseen(f"contents of {dist.name}", "RECORD changed while it was read")
            return self._unread(dist)
        return self._examine(dist, depth, key, ended_ns, rows, stats, seen, looked_at)

    def _taken_as_seen(self, dist: Distribution, seen: SeenPackage, depth: Depth, mapped: tuple[str, ...]) -> bool:
        """Whether every file of the package that a process maps has the stat with which it was last looked at, and
        every one that was not as RECORD says: it may be so again, and nothing sound is called damaged."""
        if _left_open(seen) or (depth != "stat" and not seen.hashed):
            return False
        asked = {*_departs(seen), *(mapped if depth != "stat" else ())}
        if not asked:
            return True
        at = {name: index for index, name in enumerate(_names(seen))}
        mine = [name for name in asked if name in at]
        now, before = self.host.stats(dist.location, mine), array("q", seen.stats)
        return all(_key(now, 4 * index) == _key(before, 4 * at[name]) for index, name in enumerate(mine))

    def _rows(self, dist: Distribution, key: Key, again: bool = False) -> tuple[Row, ...] | None:
        """The rows of a RECORD; what is wrong with it is told, and kept to be told when it is not read `again`."""
        record = parse_record(self.host.read(f"{dist.directory}/RECORD"))
        if not again:
            self._tell(dist, record.problems)
        if record.problems:
            self.digests.memo[_damage(dist)] = json.dumps([key, record.problems])
        else:
            self.digests.memo.pop(_damage(dist), None)
        return normalised(record.rows, self.unpacked) if record.rows else None

    def _tell(self, dist: Distribution, problems: Iterable[str]) -> None:
        for says in problems:
            self.notes.problem("record-damaged", dist.name, f"RECORD: {says}", f"{dist.directory}/RECORD")

    def _tell_again(self, dist: Distribution, key: Key) -> None:
        kept = self.digests.memo.get(_damage(dist))
        if kept is not None:
            mark, problems = json.loads(kept)
            self._tell(dist, problems if tuple(mark) == key else ())

    def _remember_day(self, dist: Distribution, seen: SeenPackage) -> None:
        if time.time() - seen.seen_at > _DAY:
            seen.seen_at = int(time.time())
            self.digests.learn_package(dist.directory, seen)

    def _examine(
        self,
        dist: Distribution,
        depth: Depth,
        record: Key,
        ended_ns: int,
        rows: tuple[Row, ...],
        stats: array[int],
        seen: SeenPackage | None,
        looked_at: int,
    ) -> Contents:
        """Decides for each file whether it must be hashed, and keeps the outcome."""
        before = array("q", seen.stats) if seen is not None else None
        known = _departs(seen) if seen is not None else {}
        hashing = depth != "stat"
        trust = seen is not None and (seen.hashed or not hashing)
        departs: dict[str, str] = {}
        unread: list[str] = []
        size = 0
        for index, row in enumerate(rows):
            at = 4 * index
            now = _key(stats, at)
            size += max(0, now[0])
            if before is not None and trust and now == _key(before, at):
                if row.path in known:
                    departs[row.path] = known[row.path]
                continue
            cause = hashing or before is not None or now[0] != row.size or now[1] > ended_ns
            if now[0] == -errno.EISDIR and not row.size:
                pass  # RECORD lists a folder without the slash that says so
            elif now[0] in _ABSENT:
                departs[row.path] = MISSING
            elif now[0] < 0:
                unread.append(row.path)
                self.notes.unseen(f"{dist.location}/{row.path}", os.strerror(-now[0]))
                stats[at : at + 4] = array("q", (0, 0, 0, 0))
            elif cause:
                got = self._digest(dist, row, now[0])
                if got is None:
                    unread.append(row.path)
                    stats[at : at + 4] = array("q", (0, 0, 0, 0))
                elif got != row.hash:
                    departs[row.path] = got
            if is_racy(now, looked_at):
                stats[at : at + 4] = array("q", (0, 0, 0, 0))
        made = SeenPackage(
            record=record,
            identity=identity_of(rows),
            rows=len(rows),
            size=size,
            paths="\0".join(row.path for row in rows).encode("utf-8", "surrogateescape"),
            stats=stats.tobytes(),
            hashed=hashing or (trust and seen is not None and seen.hashed),
            departs="\0".join(word for pair in departs.items() for word in pair).encode("utf-8", "surrogateescape"),
            seen_at=int(time.time()),
        )
        if not is_racy(record, looked_at):
            self.digests.learn_package(dist.directory, made)
        return Contents(made.identity, departs, made.rows, size, depth, unread=tuple(unread))

    def _digest(self, dist: Distribution, row: Row, size: int) -> str | None:
        """A file's hash as RECORD writes it; None, and a note, where it cannot be held against RECORD."""
        path = f"{dist.location}/{row.path}"
        try:
            got = hash_as(self.host, path, row.hash)
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            self.notes.unseen(path, error)
            return None
        if got is None:
            self.notes.unseen(path, f"RECORD holds no hash of it that proves anything, but {_said(row.hash)}")
        elif self.progress is not None:
            self.progress(size)
        return got


def _damage(dist: Distribution) -> str:
    return f"damage of {dist.directory}"


def _left_open(seen: SeenPackage) -> bool:
    """Whether some file is to be looked at again: it could not be read, or may have moved since."""
    stats = array("q", seen.stats)
    inodes = stats[3::4]
    return 0 in inodes and any(not inode and not stats[4 * index] for index, inode in enumerate(inodes))


def _said(recorded: str | None) -> str:
    return (recorded or "none").partition("=")[0][:20]


def hash_as(host: Host, path: str, recorded: str | None) -> str | None:
    """A file's hash by the algorithm of a RECORD row, written as there; None where that proves nothing (md5, sha1).

    Raises OSError.
    """
    algorithm = algorithm_of(recorded)
    return record_hash(algorithm, bytes.fromhex(host.digest(path, algorithm))) if algorithm is not None else None


def dangling(host: Host, path: str) -> str | None:
    """Where a link leads that leads nowhere, as those of uv's symlink mode do once the cache was cleaned."""
    try:
        found = host.find(path)
        return host.readlink(path) if found is not None and found.is_link else None
    except OSError:
        return None  # what cannot be seen explains nothing


def _key(stats: array[int], at: int) -> Key:
    return (stats[at], stats[at + 1], stats[at + 2], stats[at + 3])


def _names(seen: SeenPackage) -> list[str]:
    return seen.paths.decode("utf-8", "surrogateescape").split("\0") if seen.paths else []


def _departs(seen: SeenPackage) -> dict[str, str]:
    if not seen.departs:
        return {}
    words = seen.departs.decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(words[::2], words[1::2], strict=True))


def _contents(seen: SeenPackage, depth: Depth) -> Contents:
    return Contents(seen.identity, _departs(seen), files=seen.rows, bytes=seen.size, depth=depth)
