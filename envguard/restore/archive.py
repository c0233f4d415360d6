"""A wheel's files in whatever form they lie here, held against RECORD, and made into an installable wheel again.

A cache archive can be poisoned: in hard-link mode an edit of an installed file edits the archive too, uv reinstalls
it without a word, and every hash that uv compares is the recorded one. So no byte leaves a source for an environment
unless it hashed to what RECORD says in the same pass that copied it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Literal, Protocol

import msgspec

from envguard.acquire.packages.record_file import Row, algorithm_of, parse_record, record_hash
from envguard.restore.progress import Progress

CHUNK = 1 << 20
MOST_FAULTS = 20
"""A source with so many is read no further: the first refuses it, and nobody reads a list of thousands."""
# Rows that a wheel may list without a hash (the RECORD specification).
UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not what RECORD says."""

    path: str
    kind: Literal["modified", "missing", "unhashed", "unsafe", "unreadable"]
    expected: str | None = None
    got: str | None = None

    def __str__(self) -> str:
        return f"{self.path} ({self.kind})"


class RecordUnusable(Exception):
    """RECORD cannot be read, so that nothing can be said about the files."""


class Files(Protocol):
    """Where a wheel's files are read from; errors are OSError, FileNotFoundError where RECORD names too much."""

    def open(self, path: str) -> IO[bytes]: ...

    def where(self, path: str) -> str | None:
        """The file's own path on disk, where it has one."""

    def mode(self, path: str) -> int: ...

    def size(self, path: str) -> int: ...


class Sink(Protocol):
    """Where checked bytes go."""

    def write(self, data: bytes, /) -> object: ...


class Folder:
    """An unpacked wheel, or site-packages."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, path: str) -> IO[bytes]:
        """Without following a link and without blocking; anything but a regular file is refused."""
        descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.fdopen(descriptor, "rb", buffering=0)

    def where(self, path: str) -> str | None:
        return str(self.root / path)

    def mode(self, path: str) -> int:
        return stat.S_IMODE(os.lstat(self.root / path).st_mode)

    def size(self, path: str) -> int:
        return os.lstat(self.root / path).st_size


class Zipped:
    """A wheel file, or a file that holds one (pip's HTTP cache)."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive

    def _info(self, path: str) -> zipfile.ZipInfo:
        try:
            return self.archive.getinfo(path)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def open(self, path: str) -> IO[bytes]:
        try:
            return self.archive.open(self._info(path))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise OSError(errno.EIO, str(error), path) from error

    def where(self, path: str) -> str | None:
        return None

    def mode(self, path: str) -> int:
        # A zip made without permissions has 0; an installer then writes plain files.
        return stat.S_IMODE(self._info(path).external_attr >> 16) or 0o644

    def size(self, path: str) -> int:
        return self._info(path).file_size


@contextmanager
def open_zip(path: str) -> Iterator[Zipped]:
    """A wheel file's contents. Raises `RecordUnusable` where it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield Zipped(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise RecordUnusable(f"{path} cannot be read as a wheel: {error}") from error


def read_rows(files: Files, dist_info: str) -> tuple[Row, ...]:
    """The rows of `dist_info`'s RECORD. Raises `RecordUnusable`."""
    path = f"{dist_info}/RECORD"
    try:
        with files.open(path) as stream:
            record = parse_record(stream.read())
    except OSError as error:
        raise RecordUnusable(f"{path}: {error.strerror or error}") from error
    if record.problems:
        raise RecordUnusable(f"{path}: {record.problems[0]}")
    return record.rows


def unsafe(path: str) -> bool:
    """Whether a RECORD path leaves the tree that it belongs to."""
    return path.startswith("/") or "\\" in path or ".." in path.split("/") or not path


def is_unhashed(row: Row) -> bool:
    """Whether the row is one that cannot have a hash: RECORD itself, and its signatures."""
    return row.hash is None and row.path.rpartition("/")[2] in UNHASHED


def _wanted(row: Row) -> tuple[str, str] | Fault:
    """(algorithm, hash as RECORD writes it) of a row that proves its file."""
    if unsafe(row.path):
        return Fault(path=row.path, kind="unsafe")
    algorithm = algorithm_of(row.hash)
    if algorithm is None or row.hash is None:
        return Fault(path=row.path, kind="unhashed", expected=row.hash)
    return algorithm, row.hash


def check_rows(files: Files, rows: Iterable[Row], progress: Progress) -> tuple[Fault, ...]:
    """Hashes every file that `rows` list, until `MOST_FAULTS` are wrong; rows of a RECORD itself carry no hash and
    are passed over."""
    checked = (copy_checked(files, row, None, progress) for row in rows if not is_unhashed(row))
    return tuple(islice((fault for fault in checked if fault is not None), MOST_FAULTS))


def copy_checked(files: Files, row: Row, sink: Sink | None, progress: Progress) -> Fault | None:
    """One row's file hashed, and written to `sink` on the way; what is wrong with it. OSError is the sink's."""
    wanted = _wanted(row)
    if isinstance(wanted, Fault):
        return wanted
    hasher = hashlib.new(wanted[0])
    size = 0
    try:
        stream = files.open(row.path)
    except (FileNotFoundError, NotADirectoryError):
        return Fault(path=row.path, kind="missing", expected=wanted[1])
    except OSError as error:
        return Fault(path=row.path, kind="unreadable", expected=wanted[1], got=error.strerror or str(error))
    with stream:
        while True:
            try:
                chunk = stream.read(CHUNK)
            except (OSError, zipfile.BadZipFile, EOFError) as error:
                return Fault(path=row.path, kind="unreadable", expected=wanted[1], got=str(error))
            if not chunk:
                break
            size += len(chunk)
            if row.size is not None and size > row.size:
                # Compressed zeros would fill the disk long before their digest could be found wrong.
                return Fault(path=row.path, kind="modified", expected=wanted[1], got=f"more than {row.size} bytes")
            hasher.update(chunk)
            if sink is not None:
                sink.write(chunk)
            progress.advance(len(chunk))
    got = record_hash(wanted[0], hasher.digest())
    return None if got == wanted[1] else Fault(path=row.path, kind="modified", expected=wanted[1], got=got)


def wheel_name(dist_info: str, tags: tuple[str, ...], wheel_build: str | None) -> str:
    """The file name that WHEEL's tags give; only the order of platform tags may differ from the first."""
    parts = [tag.split("-") for tag in tags]
    if not parts or any(len(part) != 3 for part in parts):
        raise RecordUnusable(f"{dist_info}/WHEEL names no tag")
    compressed = [".".join(dict.fromkeys(part[place] for part in parts)) for place in range(3)]
    stem = dist_info.removesuffix(".dist-info")
    return "-".join([stem, *([wheel_build] if wheel_build else []), *compressed]) + ".whl"


def write_wheel(files: Files, dist_info: str, path: Path, progress: Progress) -> tuple[Fault, ...]:
    """Writes a wheel of the files that RECORD lists, uncompressed, verifying each in the same pass.

    It is to be used only where no fault comes back; files that RECORD does not list stay out of it. Raises
    `RecordUnusable`, and OSError where the wheel cannot be written.
    """
    own = f"{dist_info}/RECORD"
    listed = sorted(read_rows(files, dist_info), key=lambda row: (row.path.startswith(dist_info), row.path == own))
    faults: list[Fault] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as wheel:
        for row in listed:
            if not is_unhashed(row) and len(faults) < MOST_FAULTS:
                fault = _add(wheel, files, row, progress)
                faults += [fault] if fault is not None else []
        with files.open(own) as stream:
            wheel.writestr(zipfile.ZipInfo(own, _EPOCH), stream.read())
    return tuple(faults)


def _add(wheel: zipfile.ZipFile, files: Files, row: Row, progress: Progress) -> Fault | None:
    if unsafe(row.path):
        return Fault(path=row.path, kind="unsafe")
    try:
        size, mode = files.size(row.path), files.mode(row.path)
    except OSError:
        return Fault(path=row.path, kind="missing", expected=row.hash)
    entry = zipfile.ZipInfo(row.path, _EPOCH)
    entry.external_attr = (mode | stat.S_IFREG) << 16
    entry.file_size = size
    with wheel.open(entry, "w", force_zip64=size >= 1 << 31) as sink:
        return copy_checked(files, row, sink, progress)
