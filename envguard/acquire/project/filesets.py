"""Configured files and data sets: how many files, bytes and rows, and one digest over all contents.

A file's digest and rows are kept with its stat, so that an unchanged set of any size costs a walk.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable

import msgspec

from envguard.acquire.memo import Memo, key_of
from envguard.acquire.packages.tree_memo import TreeMemo
from envguard.acquire.project.parquet import CorruptParquet, read_rows
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.seam.patterns import is_pattern, matching
from envguard.acquire.section import Notes, Section, reason
from envguard.clock import NS
from envguard.model.fingerprint import FileSet
from envguard.state.digests import Key

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")


class SeenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file's sha256 and its rows (None where it is no file of rows, or they could not be counted)."""

    key: Key
    digest: str
    rows: int | None = None


def read_filesets(
    host: Host,
    facet: str,
    paths: tuple[str, ...],
    base: str,
    memo: Memo,
    *,
    deep: bool = False,
    budget: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Section[tuple[FileSet, ...]]:
    """One `FileSet` a configured path (a file, a folder, or a shell pattern; relative ones to `base`).

    `facet` is "config" or "data". At most `budget` bytes are hashed that no earlier run hashed (None: no limit); a
    set that would need more has no digest, and says so. `progress` is told the bytes that were read.
    """
    notes = Notes()
    found = []
    for path in paths:
        absolute = posixpath.normpath(path if path.startswith("/") else f"{base.rstrip('/')}/{path}")
        reader = _Reader(host, f"{facet} {path}", memo, notes, deep, budget, progress)
        for each in _expanded(host, absolute, reader):
            fileset = reader.read(path if each == absolute else each, each)
            found.append(fileset)
            budget = reader.budget
    return notes.section(tuple(found))


def _expanded(host: Host, path: str, reader: _Reader) -> list[str]:
    """The paths that a shell pattern names, sorted; the path itself where it is none."""
    if not is_pattern(path):
        return [path]
    folders = matching(host, path, lambda error: reader.unseen(reason(error)))
    if not folders:
        reader.unseen("no path fits the pattern")
    return folders


class _Reader:
    def __init__(
        self,
        host: Host,
        what: str,
        memo: Memo,
        notes: Notes,
        deep: bool,
        budget: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.host, self.what, self.memo, self.notes = host, what, memo, notes
        self.deep, self.budget, self.progress = deep, budget, progress

    def unseen(self, why: str) -> None:
        self.notes.unseen(self.what, why)

    def read(self, label: str, path: str) -> FileSet:
        try:
            files = self._files(path)
        except FileNotFoundError:
            self.notes.problem(
                f"{self.what.partition(' ')[0]}-missing", label, "it is configured and is not there", path
            )
            return FileSet(path=label, files=0, bytes=0, rows=None, digest=None)
        except OSError as error:
            self.unseen(reason(error))
            return FileSet(path=label, files=None, bytes=None, rows=None, digest=None)
        seen, whole = self._look(path, files)
        rows = [each.rows for name, each in seen.items() if (name or path).lower().endswith((*JSON_LINES, *PARQUET))]
        counted = bool(rows) and whole and None not in rows
        return FileSet(
            path=label,
            files=len(files),
            bytes=sum(stat.size for stat in files.values()),
            rows=sum(row for row in rows if row is not None) if counted else None,
            digest=_digest(seen) if whole else None,
        )

    def _files(self, path: str) -> dict[str, Stat]:
        """Relative name → stat of each regular file; the name of a single file is empty. Links are followed once."""
        stat = self.host.stat_target(path)
        if not stat.is_directory:
            return {"": stat}
        walked = self.host.walk(self.host.realpath(path))
        if walked.failed:
            self.unseen(f"{len(walked.failed)} folders cannot be read: {': '.join(walked.failed[0])}")
        found = {}
        for name, each in walked.entries:
            if each.is_link:
                try:
                    each = self.host.stat_target(f"{walked.root}/{name}")
                except OSError as error:
                    self.unseen(f"{name}: {reason(error)}")
                    continue
            if each.is_file:
                found[name] = each
        return found

    def _look(self, path: str, files: dict[str, Stat]) -> tuple[dict[str, SeenFile], bool]:
        """What each file holds, and whether every one could be looked at."""
        tree = TreeMemo(self.memo, f"{self.what.partition(' ')[0]} {path}", SeenFile, forget=self.deep)
        whole = True
        for name, stat in files.items():
            if tree.recall(name, key_of(stat)) is not None:
                continue
            if self.budget is not None and stat.size > self.budget:
                whole = False
                continue
            try:
                tree.fresh[name] = self._hash(f"{path}/{name}" if name else path, stat)
            except OSError as error:
                whole = False
                self.unseen(f"{name or path}: {reason(error)}")
        if not whole:
            self.unseen("not all of it has been hashed yet: `envguard snapshot` does it")
        tree.save(int(self.host.machine().now * NS))
        return tree.fresh, whole

    def _hash(self, path: str, stat: Stat) -> SeenFile:
        if self.budget is not None:
            self.budget -= stat.size
        if self.progress is not None:
            self.progress(stat.size)
        if path.lower().endswith(JSON_LINES):
            digest, rows = self.host.lines(path)
            return SeenFile(key_of(stat), digest, rows)
        return SeenFile(key_of(stat), self.host.digest(path), self._parquet_rows(path))

    def _parquet_rows(self, path: str) -> int | None:
        if not path.lower().endswith(PARQUET):
            return None
        try:
            return read_rows(self.host, path)
        except CorruptParquet as error:
            self.notes.problem(
                "data-damaged", self.what.partition(" ")[2], f"not a sound Parquet file: {error}", path
            )
            return None


def _digest(seen: dict[str, SeenFile]) -> str:
    """Of a single file its own sha256, of a tree the sha256 over names and digests."""
    if list(seen) == [""]:
        return seen[""].digest
    hasher = hashlib.sha256()
    for name in sorted(seen):
        hasher.update(f"{name}\0{seen[name].digest}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()
