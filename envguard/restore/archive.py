"""An unpacked wheel of the uv cache: held against its own RECORD, and made into an installable wheel again.

A cache archive can be poisoned: in hard-link mode an edit of an installed file edits the archive too, uv reinstalls
it without a word, and every hash that uv compares is the recorded one. So no byte leaves an archive for an
environment unless it hashed to what RECORD says in the same pass that copied it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

import msgspec

from envguard.acquire.record_file import Row, parse_record
from envguard.acquire.uv_cache import Archive
from envguard.restore.progress import Progress

CHUNK = 1 << 20
ALGORITHMS = ("sha256", "sha384", "sha512")
# Rows that a wheel may list without a hash (the RECORD specification).
UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not what RECORD says."""

    path: str
    kind: Literal["modified", "missing", "unlisted", "unhashed", "unsafe", "unreadable"]
    expected: str | None = None
    got: str | None = None

    def __str__(self) -> str:
        return f"{self.path} ({self.kind})"


class RecordUnusable(Exception):
    """RECORD cannot be read, so that nothing can be said about the files."""


def read_rows(root: Path, dist_info: str) -> tuple[Row, ...]:
    """The rows of `dist_info`'s RECORD below `root`. Raises `RecordUnusable`."""
    path = root / dist_info / "RECORD"
    try:
        record = parse_record(path.read_bytes())
    except OSError as error:
        raise RecordUnusable(f"{path}: {error.strerror or error}") from error
    if record.problems:
        raise RecordUnusable(f"{path}: {record.problems[0]}")
    return record.rows


def unsafe(path: str) -> bool:
    """Whether a RECORD path leaves the tree that it belongs to."""
    return path.startswith("/") or "\\" in path or ".." in path.split("/") or not path


def encoded(digest: bytes) -> str:
    """A digest as RECORD writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def hashed_chunks(stream: IO[bytes], hasher: hashlib._Hash, progress: Progress) -> Iterator[bytes]:
    """The stream's bytes in pieces, each hashed as it passes."""
    while chunk := stream.read(CHUNK):
        hasher.update(chunk)
        progress.advance(len(chunk))
        yield chunk


def _wanted(row: Row) -> tuple[str, str] | Fault:
    if unsafe(row.path):
        return Fault(path=row.path, kind="unsafe")
    algorithm, _, value = (row.hash or "").partition("=")
    if algorithm not in ALGORITHMS or not value:
        return Fault(path=row.path, kind="unhashed", expected=row.hash)
    return algorithm, value


def _open_regular(path: Path) -> IO[bytes]:
    """Opened without following a link and without blocking; anything but a regular file is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def check_rows(root: Path, rows: Iterable[Row], progress: Progress) -> tuple[Fault, ...]:
    """Hashes every file that `rows` list below `root`; rows of a RECORD itself carry no hash and are passed over."""
    faults = []
    for row in rows:
        if row.hash is None and row.path.rpartition("/")[2] in UNHASHED:
            continue
        fault = _copy_checked(root, row, None, progress)
        if fault is not None:
            faults.append(fault)
    return tuple(faults)


def _copy_checked(root: Path, row: Row, sink: IO[bytes] | None, progress: Progress) -> Fault | None:
    """One row's file hashed, and written to `sink` on the way; what is wrong with it."""
    wanted = _wanted(row)
    if isinstance(wanted, Fault):
        return wanted
    hasher = hashlib.new(wanted[0])
    try:
        with _open_regular(root / row.path) as stream:
            for chunk in hashed_chunks(stream, hasher, progress):
                if sink is not None:
                    sink.write(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return Fault(path=row.path, kind="missing", expected=wanted[1])
    except OSError as error:
        return Fault(path=row.path, kind="unreadable", expected=wanted[1], got=error.strerror or str(error))
    got = encoded(hasher.digest())
    return None if got == wanted[1] else Fault(path=row.path, kind="modified", expected=wanted[1], got=got)


def verify_archive(archive: Archive, progress: Progress) -> tuple[Fault, ...]:
    """Every file of the archive against its RECORD. Raises `RecordUnusable`."""
    root = Path(archive.path)
    return check_rows(root, read_rows(root, archive.dist_info), progress)


def wheel_name(archive: Archive) -> str:
    """The file name that the archive's WHEEL tags give; only the order of platform tags may differ from the first."""
    parts = [tag.split("-") for tag in archive.tags]
    if not parts or any(len(part) != 3 for part in parts):
        raise RecordUnusable(f"{archive.path}/{archive.dist_info}/WHEEL names no tag")
    tags = [".".join(dict.fromkeys(part[place] for part in parts)) for place in range(3)]
    stem = archive.dist_info.removesuffix(".dist-info")
    return "-".join([stem, *([archive.wheel_build] if archive.wheel_build else []), *tags]) + ".whl"


def rebuild_wheel(archive: Archive, folder: Path, progress: Progress) -> tuple[Path, tuple[Fault, ...]]:
    """Writes a wheel of the archive's listed files, uncompressed, verifying each in the same pass.

    The wheel is to be used only where no fault comes back. Files that RECORD does not list stay out of it.
    Raises `RecordUnusable`, and OSError where the wheel cannot be written.
    """
    root = Path(archive.path)
    rows = read_rows(root, archive.dist_info)
    own = f"{archive.dist_info}/RECORD"
    rows = tuple(sorted(rows, key=lambda row: (row.path.startswith(archive.dist_info), row.path == own)))
    path = folder / wheel_name(archive)
    faults: list[Fault] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as wheel:
        for row in rows:
            if row.hash is None and row.path.rpartition("/")[2] in UNHASHED:
                if row.path == own:
                    wheel.writestr(zipfile.ZipInfo(own, (1980, 1, 1, 0, 0, 0)), (root / own).read_bytes())
                continue
            try:
                status = os.lstat(root / row.path)
            except OSError:
                faults.append(Fault(path=row.path, kind="missing", expected=row.hash))
                continue
            entry = zipfile.ZipInfo(row.path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IMODE(status.st_mode) | stat.S_IFREG) << 16
            entry.file_size = status.st_size
            with wheel.open(entry, "w", force_zip64=status.st_size >= 1 << 31) as sink:
                fault = _copy_checked(root, row, sink, progress)
            if fault is not None:
                faults.append(fault)
    return path, tuple(faults)
