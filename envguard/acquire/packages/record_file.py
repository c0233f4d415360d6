"""RECORD: what an installer says it put where, and the build identity that follows from it.

The one place that reads RECORD, of an installed distribution and of an archive in a cache alike.
"""

from __future__ import annotations

import base64
import codecs
import csv
import hashlib
import io
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import msgspec

# Files that an installer adds or rewrites: they differ between two installs of one wheel.
INSTALLER_FILES = frozenset(
    {
        "INSTALLER",
        "REQUESTED",
        "RECORD",
        "direct_url.json",
        "uv_cache.json",
        "uv_build.json",
        "RECORD.jws",
        "RECORD.p7s",
    }
)

# What proves a content: those that hashlib has everywhere and that are no weaker than sha256, as PEP 427 demands.
# md5, sha1 and sha224 prove nothing, and shake has no length of its own.
ALGORITHMS = ("sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s")
_AT_ONCE = 10_000
_path = attrgetter("path")


class Row(msgspec.Struct, frozen=True, gc=False):
    """One file: path as written (relative to site-packages), `sha256=…` or another algorithm's or None, size in
    bytes or None.

    A struct that the garbage collector need not look at: a hundred thousand of them are made in a moment.
    """

    path: str
    hash: str | None
    size: int | None


@dataclass(frozen=True)
class RecordFile:
    """The rows as they stand, and in words what is wrong with those that are not."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()


def parse_record(data: bytes) -> RecordFile:
    """Reads RECORD in any line ending; an undecodable or malformed row is a problem and never ends the reading."""
    problems: list[str] = []
    rows: dict[str, Row] = {}
    for number, fields in enumerate(_fields(data.removeprefix(codecs.BOM_UTF8), problems), 1):
        row = _row(fields)
        if row is None:
            problems.append(f"row {number} is not `path,hash,size`: {','.join(fields)[:80]!r}")
        elif rows.setdefault(row.path, row) != row and _is_payload(row.path):
            # pip lists what it compiles itself beside what the wheel brought (numpy 1.26): no content of the build.
            problems.append(f"{row.path} is listed twice, with different contents")
    if not rows:
        problems.append("it lists no file")
    return RecordFile(tuple(rows.values()), tuple(problems))


def _fields(data: bytes, problems: list[str]) -> Iterator[list[str]]:
    """The fields of each row, one row at a time: as text and as a list of lines a RECORD takes thrice its size.

    Lines end as RECORD ends them and nowhere else: a path may hold what Python takes for one (NEL, form feed).
    """
    if b'"' in data:
        text = io.StringIO("".join(_lines(data, problems)), newline="")
        try:
            yield from (fields for fields in csv.reader(text) if fields)
        except csv.Error as error:  # a field that is longer than any path
            problems.append(f"it cannot be followed to its end: {error}")
        return
    # Twice as fast as csv, which a hundred thousand rows notice; only quoting needs the real reader.
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in _lines(data, problems):
        if line != "\n":
            yield line.removesuffix("\n").rsplit(",", 2)


def _lines(data: bytes, problems: list[str]) -> Iterator[str]:
    """Lines as text; the first byte that is not UTF-8 is told."""
    at, told = 0, False
    for line in io.BytesIO(data):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            if not told:
                problems.append(f"byte {at + error.start} is not UTF-8")
                told = True
            yield line.decode("utf-8", "surrogateescape")
        at += len(line)


def _row(fields: list[str]) -> Row | None:
    if len(fields) != 3 or not fields[0] or "\0" in fields[0]:
        return None
    path, digest, size = fields
    if path.startswith("./") or "/./" in path or "//" in path:
        path = posixpath.normpath(path) + "/" * path.endswith("/")
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        return None
    return Row(path, digest or None, int(size) if size else None)


def normalised(rows: Iterable[Row], unpacked: bool = False) -> tuple[Row, ...]:
    """The rows that the wheel brought, sorted by path: the same for every installer, prefix and link mode.

    A row of `NAME-VERSION.data/` counts in an `unpacked` wheel alone: an installer puts its file elsewhere and lists
    it there, so that one in the RECORD of an install names no file.
    """
    kept = (row for row in rows if row.hash is not None and _is_payload(row.path))
    return tuple(sorted((row for row in kept if unpacked or not _is_data(row.path)), key=_path))


def _is_data(path: str) -> bool:
    return ".data/" in path and path.partition("/")[0].endswith(".data")


def _is_payload(path: str) -> bool:
    if path.endswith((".pyc", ".pyo")) and "__pycache__/" in path:
        return False
    if path.startswith(("../", "/")) or path.endswith("/") or leaves_tree(path):
        return False  # a folder has no content (cmake 3.27 lists its own)
    folder, _, name = path.partition("/")
    return not (folder.endswith(".dist-info") and name in INSTALLER_FILES)


def algorithm_of(recorded: str | None) -> str | None:
    """The algorithm by which a row's hash proves a content; None where it has none, or one that proves nothing."""
    algorithm, _, value = (recorded or "").partition("=")
    return algorithm if value and algorithm in ALGORITHMS else None


def record_hash(algorithm: str, digest: bytes) -> str:
    """A digest as RECORD writes it: URL-safe base64 without padding, behind its algorithm."""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode('ascii')}"


def leaves_tree(path: str) -> bool:
    """Whether a path of RECORD leads out of site-packages, however it is written."""
    return ".." in path and posixpath.normpath(path).startswith("../")


def build_identity(rows: Iterable[Row]) -> str:
    """The build identity of a sound install: sha256 (hex) of its normalised rows' paths and hashes."""
    return identity_of(normalised(rows))


def identity_of(payload: tuple[Row, ...]) -> str:
    """The same of rows that have been normalised."""
    hasher = hashlib.sha256()
    for at in range(0, len(payload), _AT_ONCE):
        lines = "".join([f"{row.path},{row.hash}\n" for row in payload[at : at + _AT_ONCE]])
        hasher.update(lines.encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()
