"""The bundle file: a gzipped tar of `manifest.json`, `evidence.jsonl` and the small files themselves.

A bundle comes from another machine and is not trusted: nothing is extracted, member names are matched against
three fixed forms, sizes are bounded while they are read, contents are held against their names, and every line is
decoded into its type. Whatever does not fit is `BundleError`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from typing import IO, Any

import msgspec

from envguard.acquire.host import Answer, Machine, Process, Space
from envguard.acquire.record import Asked, Node, Record, decode, encode
from envguard.errors import InputError

FORMAT = "envguard.bundle"
VERSION = 1
MEMBER = re.compile(r"manifest\.json|evidence\.jsonl|files/[0-9a-f]{64}")
MAX_MEMBER = 256 << 20
MAX_TOTAL = 1 << 30
MAX_MEMBERS = 500_000


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
    """Writes a record; the same record gives the same bytes. Returns the number of evidence lines."""
    nodes = [encode({"node": node}) for _, node in sorted(record.nodes.items())]
    answers = [encode({"asked": asked}) for _, asked in sorted(record.answers.items())]
    manifest = Manifest(FORMAT, VERSION, about, len(nodes) + len(answers))
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, "manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
        _add(tar, "evidence.jsonl", b"".join(line + b"\n" for line in nodes + answers))
        for name, data in sorted(record.contents.items()):
            _add(tar, f"files/{name}", data)
    return manifest.evidence


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(data))


def load(path: str, stream: IO[bytes]) -> tuple[Record, Manifest]:
    """Reads and checks a bundle. Raises `BundleError`."""
    try:
        with gzip.GzipFile(fileobj=stream) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            members = _members(path, tar)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise BundleError(f"{path} cannot be read as a bundle: {error}") from error
    manifest = _manifest(path, members)
    record = Record()
    for number, line in enumerate(members["evidence.jsonl"].splitlines(), 1):
        _take(record, line, f"{path}: evidence line {number}")
    for name, data in members.items():
        if name.startswith("files/"):
            record.contents[name.removeprefix("files/")] = data
    _check_contents(path, record)
    return record, manifest


def _members(path: str, tar: tarfile.TarFile) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    total = 0
    for member in tar:
        if not MEMBER.fullmatch(member.name) or not member.isreg() or member.name in members:
            raise BundleError(f"{path} holds a member that no bundle has: {member.name!r}")
        total += member.size
        if member.size > MAX_MEMBER or total > MAX_TOTAL or len(members) >= MAX_MEMBERS:
            raise BundleError(f"{path} unpacks to more than a bundle may hold ({total} bytes and counting)")
        stream = tar.extractfile(member)
        data = stream.read() if stream is not None else b""
        if member.name.startswith("files/") and hashlib.sha256(data).hexdigest() != member.name[6:]:
            raise BundleError(f"{path}: the content of {member.name} is not what its name says")
        members[member.name] = data
    return members


def _manifest(path: str, members: dict[str, bytes]) -> Manifest:
    if not {"manifest.json", "evidence.jsonl"} <= members.keys():
        raise BundleError(f"{path} is not a bundle: it has no manifest or no evidence")
    try:
        manifest = msgspec.json.decode(members["manifest.json"], type=Manifest)
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
    except msgspec.ValidationError as error:
        raise BundleError(f"{where}: the answer to {asked.operation!r}: {error}") from error


def _check_contents(path: str, record: Record) -> None:
    for node in record.nodes.values():
        named = [node.content] if node.content else []
        for name in [*named, *(piece[2] for piece in node.pieces)]:
            if name not in record.contents:
                raise BundleError(f"{path}: the recorded content of {node.path} is missing")
