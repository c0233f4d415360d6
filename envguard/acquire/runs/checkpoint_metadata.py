"""What a checkpoint's own metadata tells of the libraries that wrote it; weights are never loaded.

`config.json` names transformers' version, `trainer_state.json` the step, a Lightning `.ckpt` its version inside a
pickle (whose opcodes are listed, never run), a safetensors file what its writer put into the header.
"""

from __future__ import annotations

import io
import pickletools
import posixpath
import zipfile
from dataclasses import dataclass
from typing import Any

from envguard.acquire.packages.wheel_files import HostFile
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.seam.host import Host
from envguard.acquire.section import witness
from envguard.model.evidence import Unknown
from envguard.model.parsing import parse_json

MOST_JSON = 4 << 20
MOST_PICKLE = 32 << 20
MOST_CHECKPOINTS = 50
VERSIONS = {
    "transformers_version": "transformers",
    "torch_version": "torch",
    "pytorch_version": "torch",
    "diffusers_version": "diffusers",
    "_diffusers_version": "diffusers",
    "pytorch-lightning_version": "lightning",
    "peft_version": "peft",
    "safetensors_version": "safetensors",
}
"""Key in some metadata file → the package whose version it is."""
JSON_FILES = (
    "config.json",
    "trainer_state.json",
    "generation_config.json",
    "adapter_config.json",
    "train_state.json",
)


@dataclass(frozen=True)
class WrittenBy:
    """A checkpoint was written with `package` at `version`, says `field` of the file `path`."""

    checkpoint: str
    saved_ns: int
    package: str
    version: str
    path: str
    field: str


def read_checkpoint_metadata(
    host: Host, checkpoints: tuple[Checkpoint, ...], unknown: list[Unknown]
) -> tuple[WrittenBy, ...]:
    """Versions that the latest checkpoints' metadata name, in the order of saving."""
    latest = sorted(checkpoints, key=lambda checkpoint: checkpoint.saved_ns)[-MOST_CHECKPOINTS:]
    found: list[WrittenBy] = []
    for checkpoint in latest:
        for path, fields in _sources(host, checkpoint, unknown):
            for key, package in VERSIONS.items():
                value = fields.get(key)
                if isinstance(value, str) and value[:1].isdigit():
                    found.append(WrittenBy(checkpoint.path, checkpoint.saved_ns, package, value, path, key))
    return tuple(found)


def _sources(host: Host, checkpoint: Checkpoint, unknown: list[Unknown]) -> list[tuple[str, dict[str, Any]]]:
    paths: list[tuple[str, str]] = []
    if checkpoint.kind == "directory":
        try:
            names = [name for name, kind in host.listing(checkpoint.path) if kind == "file"]
        except OSError as error:
            unknown.append(Unknown.refused(f"metadata of {checkpoint.name}", error))
            return []
        paths += [(f"{checkpoint.path}/{name}", "json") for name in JSON_FILES if name in names]
        tensors = [name for name in names if name.endswith(".safetensors")][:1]
        paths += [(f"{checkpoint.path}/{name}", "safetensors") for name in tensors]
    elif checkpoint.name.endswith(".safetensors"):
        paths.append((checkpoint.path, "safetensors"))
    elif checkpoint.name.endswith(".ckpt"):
        paths.append((checkpoint.path, "pickle"))
    readers = {"json": _json, "safetensors": _safetensors, "pickle": _lightning}
    found = []
    for path, kind in paths:
        with witness(unknown, f"metadata of {path}"):
            found.append((path, readers[kind](host, path)))
    return found


def _json(host: Host, path: str) -> dict[str, Any]:
    value = parse_json(host.read(path, MOST_JSON))
    return value if isinstance(value, dict) else {}


def _safetensors(host: Host, path: str) -> dict[str, Any]:
    """`__metadata__` of the header: 8 bytes of length, then JSON."""
    length = int.from_bytes(host.read(path, 8), "little")
    if not 2 <= length <= MOST_JSON:
        # A header of a huge model can be longer; its metadata is not worth reading it whole.
        return {}
    value = parse_json(host.read(path, length, 8))
    metadata = value.get("__metadata__") if isinstance(value, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _lightning(host: Host, path: str) -> dict[str, Any]:
    """Strings that follow a known key among the pickle's opcodes; nothing is unpickled."""
    with zipfile.ZipFile(io.BufferedReader(HostFile(host, path), 1 << 16)) as archive:
        name = next((name for name in archive.namelist() if posixpath.basename(name) == "data.pkl"), None)
        if name is None or archive.getinfo(name).file_size > MOST_PICKLE:
            return {}
        data = archive.read(name)
    found: dict[str, Any] = {}
    key: str | None = None
    for opcode, argument, _ in pickletools.genops(data):
        if not isinstance(argument, str) or "UNICODE" not in opcode.name:
            continue
        if key is not None:
            found[key] = argument
        key = argument if argument in VERSIONS else None
    return found
