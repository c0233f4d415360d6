"""Whether the files of a checkpoint are whole, by what they name themselves: headers and ends are read, no tensor.

    model.safetensors                the header gives each tensor's place: the file has at least as many bytes
    step_5.pt  w.ckpt  a.bin  a.npz  torch saves a zip, whose list of members is written last
    model.safetensors.index.json     each shard in its `weight_map` is there

What is none of these formats is not judged. Nothing is unpickled.

Source: the safetensors format (8 bytes of length, JSON, tensors); the zip format (end of central directory, at most
64 KiB of comment after it).
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any

from envguard.acquire.runs.checkpoint_parts import roles
from envguard.acquire.runs.checkpoints import Checkpoint, files_of
from envguard.acquire.seam.host import Host
from envguard.model.parsing import parse_json

_MOST_HEADER = 100_000_000
"""Bytes; the safetensors format allows no longer one."""
_MOST_INDEX = 64 << 20
_ZIPPED = (".pt", ".pth", ".ckpt", ".bin", ".npz")
_ZIP = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_MOST_COMMENT = 1 << 16


def examined(host: Host, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, and in `incomplete` what its content shows besides what names and sizes do. Reads some bytes of
    each file of tensors. Raises OSError."""
    if checkpoint.incomplete is not None:
        return checkpoint
    if checkpoint.kind == "file":
        size = host.stat_target(checkpoint.path).size
        why = _cut_short(host, checkpoint.path, checkpoint.name, size)
    else:
        why = _of_folder(host, checkpoint.path)
    return replace(checkpoint, incomplete=why) if why is not None else checkpoint


def _of_folder(host: Host, path: str) -> str | None:
    files = {file.name: file.size for file in files_of(host, path)}
    found = roles(files)
    for name, size in files.items():
        if found[name] not in ("weights", "state", "consolidated") or size is None:
            continue
        if name.endswith(".index.json") and found[name] == "state":
            why = _lost_shard(host, path, name, files)
        else:
            why = _cut_short(host, f"{path}/{name}", name, size)
        if why is not None and (found[name] != "consolidated" or "weights" not in found.values()):
            return why
    return None


def _lost_shard(host: Host, path: str, index: str, files: dict[str, int | None]) -> str | None:
    try:
        value: Any = parse_json(host.read(f"{path}/{index}", _MOST_INDEX))
    except ValueError:
        return f"{index} is no JSON"
    shards = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(shards, dict):
        return None
    folder = posixpath.dirname(index)
    for shard in sorted({each for each in shards.values() if isinstance(each, str)}):
        if posixpath.normpath(posixpath.join(folder, shard)) not in files:
            return f"{shard} is missing, which {index} names"
    return None


def _cut_short(host: Host, path: str, name: str, size: int) -> str | None:
    """Why a file of tensors is not whole; None for one that is, and for another format."""
    if name.endswith(".safetensors"):
        needed = _safetensors_bytes(host, path, size)
        return f"{name} has {size} of {needed} bytes" if needed is not None and size < needed else None
    if name.endswith(_ZIPPED) and size and host.read(path, len(_ZIP)) == _ZIP:
        end = host.read(path, _ZIP_END_BYTES, -min(size, _ZIP_END_BYTES))
        if _ZIP_END not in end and _ZIP_END not in host.read(path, _MOST_COMMENT, -min(size, _MOST_COMMENT)):
            return f"{name} is cut short: the end of its archive is missing"
    return None


def _safetensors_bytes(host: Host, path: str, size: int) -> int | None:
    """The least size of a safetensors file by its header; None where it is none."""
    head = host.read(path, 9)
    length = int.from_bytes(head[:8], "little")
    if head[8:] != b"{" or not 2 <= length <= _MOST_HEADER:
        return None
    if size < 8 + length:
        return 8 + length
    try:
        header = parse_json(host.read(path, length, 8))
    except ValueError:
        return None
    return 8 + length + max(_ends(header), default=0)


def _ends(header: Any) -> list[int]:
    """Where each tensor ends, in bytes after the header."""
    tensors = header.values() if isinstance(header, dict) else ()
    places = [each.get("data_offsets") for each in tensors if isinstance(each, dict)]
    return [place[1] for place in places if isinstance(place, list) and len(place) == 2 and isinstance(place[1], int)]
