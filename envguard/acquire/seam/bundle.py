"""The bundle file: a gzipped tar of `manifest.json`, `evidence.jsonl` and the small files themselves.

A bundle comes from another machine and is not trusted: nothing is extracted, member names are matched against
three fixed forms, sizes are bounded while they are read, contents are held against their names, and every line is
decoded into its type. Whatever does not fit is `BundleError`.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from envguard.acquire.seam.blobs import Blobs, Lines
from envguard.acquire.seam.host import Answer, Machine, Process, Space
from envguard.acquire.seam.record import Asked, Node, Record, decode, encode
from envguard.errors import InputError

FORMAT = "envguard.bundle"
VERSION = 1
MEMBER = re.compile(r"manifest\.json|evidence\.jsonl|files/[0-9a-f]{64}")
MAX_MEMBER = 256 << 20
MAX_TOTAL = 4 << 30
"""Bytes of all members: logs are long, and are kept packed in memory."""
MAX_HELD = 1 << 30
"""Bytes that contents may take in memory, packed as they are."""
MAX_MEMBERS = 500_000
MAX_FILE = 1 << 30
"""Bytes that are kept of one file, so that a log without end does not crowd out all others."""
LEFT_OUT = "left out of the bundle: with it, it would be larger than opening takes"


class BundleError(InputError):
    """The file is not a bundle that can be believed."""

    hint = "make it anew with `envguard collect -o FILE` on the machine in question"


class Manifest(msgspec.Struct):
    """What a bundle says of itself; `about` is free for the collector (working directory, selection, versions)."""

    schema: str
    version: int
    about: dict[str, str]
    evidence: int


def save(record: Record, about: dict[str, str], stream: IO[bytes]) -> int:
    """Writes a record; the same record gives the same bytes. Returns the number of evidence lines.

    Raises `InputError` where opening would refuse it.
    """
    lines = Lines(_evidence(record))
    if lines.size > MAX_MEMBER:
        raise InputError(
            f"the evidence of this machine takes {lines.size >> 20} MiB, more than a bundle may hold "
            f"({MAX_MEMBER >> 20} MiB)",
            "ask on the machine itself, or keep `data`, `config` and `checkpoints` to fewer files",
        )
    manifest = Manifest(FORMAT, VERSION, about, lines.count)
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        about_it = msgspec.json.format(msgspec.json.encode(manifest))
        _add(tar, "manifest.json", len(about_it), io.BytesIO(about_it))
        _add(tar, "evidence.jsonl", lines.size, lines.open())
        for name in record.contents:
            data = record.contents[name]
            _add(tar, f"files/{name}", len(data), io.BytesIO(data))
    return manifest.evidence


def has_room(contents: Blobs, data: bytes) -> bool:
    """Whether opening would still take a bundle with these bytes, packed no smaller than they are at the worst."""
    total = contents.total + len(data) + 2 * MAX_MEMBER  # the manifest and the evidence need theirs, too
    fits = len(data) <= MAX_MEMBER and total <= MAX_TOTAL and contents.held + len(data) <= MAX_HELD
    return fits and len(contents) + 3 <= MAX_MEMBERS


def _evidence(record: Record) -> Iterator[bytes]:
    for path in sorted(record.nodes):
        yield encode({"node": record.nodes[path]})
    for key in sorted(record.answers):
        yield encode({"asked": record.answers[key]})


def _add(tar: tarfile.TarFile, name: str, size: int, data: IO[bytes] | gzip.GzipFile) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    tar.addfile(member, data)


def load(path: str, stream: IO[bytes]) -> tuple[Record, Manifest]:
    """Reads and checks a bundle. Raises `BundleError`."""
    record = Record()
    try:
        with gzip.GzipFile(fileobj=stream) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            members = _members(path, tar, record.contents)
    except (OSError, EOFError, zlib.error, ValueError, tarfile.TarError) as error:
        raise BundleError(f"{path} cannot be read as a bundle: {error}") from error
    manifest = _manifest(path, members)
    for number, line in enumerate(members["evidence.jsonl"].open(), 1):
        _take(record, line.rstrip(b"\n"), f"{path}: evidence line {number}")
    _check_contents(path, record)
    return record, manifest


def _members(path: str, tar: tarfile.TarFile, contents: Blobs) -> dict[str, Lines]:
    """The manifest and the evidence; the files go into `contents`."""
    members: dict[str, Lines] = {}
    total = 0
    for member in tar:
        name = member.name
        if not MEMBER.fullmatch(name) or not member.isreg() or name in members or name[6:] in contents:
            raise BundleError(f"{path} holds a member that no bundle has: {name!r}")
        total += member.size
        if member.size > MAX_MEMBER or total > MAX_TOTAL or len(members) + len(contents) >= MAX_MEMBERS:
            raise BundleError(f"{path} unpacks to more than a bundle may hold ({total} bytes and counting)")
        stream = tar.extractfile(member)
        if not name.startswith("files/"):
            members[name] = Lines(line.rstrip(b"\n") for line in stream or ())
        elif contents.add(stream.read() if stream is not None else b"") != name[6:]:
            raise BundleError(f"{path}: the content of {name} is not what its name says")
        if contents.held > MAX_HELD:
            raise BundleError(f"{path} holds more than memory is kept for ({MAX_HELD} bytes)")
    return members


def _manifest(path: str, members: dict[str, Lines]) -> Manifest:
    if not {"manifest.json", "evidence.jsonl"} <= members.keys():
        raise BundleError(f"{path} is not a bundle: it has no manifest or no evidence")
    try:
        manifest = msgspec.json.decode(members["manifest.json"].open().read(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise BundleError(f"{path}: manifest.json: {error}") from error
    if manifest.schema != FORMAT or manifest.version != VERSION:
        raise BundleError(f"{path}: {manifest.schema} version {manifest.version} is not known here")
    return manifest


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    node: Node | None = None
    asked: Asked | None = None


def _take(record: Record, line: bytes, where: str) -> None:
    try:
        taken = decode(line, _Line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"{where}: {error}") from error
    if taken.node is not None:
        if taken.node.path in record.nodes:
            raise BundleError(f"{where}: {taken.node.path!r} is told twice")
        record.nodes[taken.node.path] = taken.node
    if taken.asked is not None:
        _check_answer(taken.asked, where)
        record.take(taken.asked)


# What a reader will make of an answer: a bundle whose answer is of another type is refused here, as a whole, instead
# of surprising that reader.
_ANSWERS: dict[str, Any] = {
    "machine": Machine,
    "environ": dict[str, str],
    "processes": list[Process],
    "query": Answer,
    "probe": Answer,
    "nvml": dict[str, Any],
    "withheld": list[str],
    "hashed": str,
    "chain": str,
    "lines": tuple[str, int],
    "scan": tuple[str, list[str]],
    "space": Space,
}


def _check_answer(asked: Asked, where: str) -> None:
    if asked.operation not in _ANSWERS:
        raise BundleError(f"{where}: {asked.operation!r} is no question that a bundle answers")
    if asked.error is not None:
        return
    try:
        msgspec.convert(asked.value, _ANSWERS[asked.operation])
    except ValueError as error:  # msgspec's, and that of a message that cannot be written down
        raise BundleError(f"{where}: the answer to {asked.operation!r}: {error}") from error


def _check_contents(path: str, record: Record) -> None:
    for node in record.nodes.values():
        named = [node.content] if node.content is not None else []
        for name in [*named, *(piece[2] for piece in node.pieces)]:
            if name not in record.contents:
                raise BundleError(f"{path}: the recorded content of {node.path} is missing")
