"""From a path, however it is spelled, to the one checkpoint that it means.

A link is what it leads to; a file inside a checkpoint, its folder or its stamp mean the checkpoint; a pointer file
(`latest`, `latest_checkpointed_iteration.txt`) means the one that it names. A run directory holds several.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from envguard.acquire.runs.checkpoint_parts import STAMP_NAME, STAMP_SUFFIX, WEIGHTS, finished_name, roles
from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.checkpoints import (
    POINTERS,
    Checkpoint,
    holds_weights,
    is_checkpoint,
    is_stamp,
    read_beside,
    read_checkpoint,
    step_of,
)
from envguard.acquire.runs.stamps import sample
from envguard.acquire.seam.host import Host

_MOST_LINKS = 40
# Folders into which trainers split a checkpoint; a folder of any other name may be a checkpoint of its own.
_PART = re.compile(
    r"(?:weights|model|model_weights|pretrained_model|default|state|params|optimizer|training_state|items?|unet|vae|"
    r"transformer|actor|critic|mp_rank_\d.*|pytorch_model_fsdp.*)$"
)
_ABOVE = 3
"""How far above a file its checkpoint's folder is looked for: `500/default/d/0a1b`."""


@dataclass(frozen=True)
class NotOne:
    """A path that is there and is no one checkpoint: a `run` holds `inner` in one folder, by step; `several` holds
    them in several folders, or beside weights of its own; `none` has nothing of a checkpoint."""

    kind: Literal["none", "environment", "run", "several"]
    path: str
    inner: tuple[Checkpoint, ...] = ()


def checkpoint_at(host: Host, path: str) -> Checkpoint | NotOne | None:
    """What lies at a path; None where there is nothing. Raises OSError."""
    path = path.rstrip("/") or "/"
    try:
        path = _followed(host, path)
        facts = host.stat_target(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if facts.is_directory:
        return _folder(host, path)
    return _file(host, path) if facts.is_file else NotOne("none", path)


def latest_in(host: Host, run: NotOne) -> Checkpoint | NotOne:
    """The checkpoint that a trainer takes which is given a run directory: the one that its pointer or its link names,
    else the one of the highest step; `NotOne` for the pointer or the link that names what is not there. Raises
    OSError."""
    for name in ("latest", "last", *POINTERS):
        path = f"{run.path}/{name}"
        found = checkpoint_at(host, path)
        if isinstance(found, Checkpoint):
            return found
        there = host.find(path)
        if there is not None and (there.is_link or (there.is_file and name in POINTERS)):
            return NotOne("none", path)
    return run.inner[-1]


def _followed(host: Host, path: str) -> str:
    """A link by what it leads to, unless its own name is the one that tells the step. Raises OSError."""
    for _ in range(_MOST_LINKS):
        if not host.stat(path).is_link:
            return path
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), host.readlink(path)))
        if step_of(posixpath.basename(path)) is not None and step_of(posixpath.basename(target)) is None:
            return path
        if host.realpath(target) != host.realpath(path):  # `..` behind another link
            return host.realpath(path)
        path = target
    return path


def _file(host: Host, path: str) -> Checkpoint | NotOne:
    folder, name = posixpath.split(path)
    if name == STAMP_NAME or name.endswith(STAMP_SUFFIX):
        owner = checkpoint_at(host, folder if name == STAMP_NAME else path.removesuffix(STAMP_SUFFIX))
        return owner if owner is not None else NotOne("none", path)
    if name in POINTERS:
        return _pointed(host, folder, name) or NotOne("none", path)
    weights = name.endswith(WEIGHTS)
    if weights and host.find(path + STAMP_SUFFIX) is not None:
        return _read(host, path)
    twin = _twin(host, folder, name) if weights else None
    if twin is not None:
        return twin
    above = _above(host, path, stamped=True)
    if above is None and not is_checkpoint(name, "file"):
        above = _above(host, path, stamped=False)
    if above is not None and (weights or roles([name])[name] in ("weights", "state")):
        return above
    return _read(host, path) if weights else NotOne("none", path)


def _twin(host: Host, folder: str, name: str) -> Checkpoint | None:
    """The stamped file beside it with the same content: `last.ckpt` is a copy or a hard link of the one of its step.
    By sizes first, then by both ends of the files."""
    names = {each for each, _ in host.listing(folder)}
    extension = posixpath.splitext(name)[1]
    others = [each for each in sorted(names) if each.endswith(extension) and each + STAMP_SUFFIX in names]
    size = host.stat_target(f"{folder}/{name}").size
    own: str | None = None
    for each in others:
        path = f"{folder}/{each}"
        if host.stat_target(path).size == size:
            own = own or sample(host, f"{folder}/{name}", size)
            if sample(host, path, size) == own:
                return _read(host, path)
    return None


def _pointed(host: Host, folder: str, name: str) -> Checkpoint | None:
    """By the name in it, which may have no step (`best`, `release`), else by the step in it."""
    word = host.read(f"{folder}/{name}", 256).strip().decode("utf-8", "replace")
    if word and "/" not in word and word not in (".", "..", *POINTERS):
        found = checkpoint_at(host, f"{folder}/{word}")
        if found is not None:
            return found if isinstance(found, Checkpoint) else None
    step = read_beside(host, folder, (name,)).pointed.get(name)
    inner = find_checkpoints(host, [folder]).found
    return next((item for item in inner if item.step == step and item.run_directory == folder), None)


def _above(host: Host, path: str, *, stamped: bool) -> Checkpoint | None:
    """The nearest folder above that is a checkpoint: by its stamp, or by its name."""
    folder = path
    for _ in range(_ABOVE):
        folder = posixpath.dirname(folder)
        if folder in ("", "/"):
            return None
        folder = _followed(host, folder)
        if stamped:
            found = _is_stamped(host, folder)
        else:
            name = posixpath.basename(folder)
            found = step_of(name) is not None and (not name.isdecimal() or holds_weights(host, folder))
        if found:
            owner = checkpoint_at(host, folder)
            return owner if isinstance(owner, Checkpoint) else None
    return None


def _is_stamped(host: Host, folder: str) -> bool:
    return host.find(f"{folder}/{STAMP_NAME}") is not None and is_stamp(host, f"{folder}/{STAMP_NAME}")


def _folder(host: Host, path: str) -> Checkpoint | NotOne:
    name = posixpath.basename(path)
    names = host.listing(path)
    if any(each == "pyvenv.cfg" for each, _ in names):
        return NotOne("environment", path)
    named = step_of(name) is not None and (not name.isdecimal() or holds_weights(host, path))
    named = named or step_of(finished_name(name)) is not None
    if named or _is_stamped(host, path):
        return _read(host, path)
    inner = find_checkpoints(host, [path]).found
    if inner:
        of_inner = {posixpath.basename(item.path) for item in inner}
        own = any(name.endswith(WEIGHTS) and not name.endswith(".ckpt") for name, _ in names if name not in of_inner)
        one = len({item.run_directory for item in inner}) == 1 and not own
        return NotOne("run" if one else "several", path, inner)
    for pointer in POINTERS.keys() & {name for name, _ in names}:
        if (found := _pointed(host, path, pointer)) is not None:
            return found
    above = _above(host, path, stamped=True) or _above(host, path, stamped=False)
    if above is not None:
        return above
    parts = any(kind == "directory" and _PART.match(each) for each, kind in names)
    return _read(host, path) if _any_weights(names) or (parts and holds_weights(host, path)) else NotOne("none", path)


def _any_weights(names: tuple[tuple[str, str], ...]) -> bool:
    """Tensors, or files of no known name: a folder that a person calls a checkpoint holds what is none else."""
    return any(role == "weights" for role in roles(name for name, kind in names if kind != "directory").values())


def _read(host: Host, path: str) -> Checkpoint:
    found = read_checkpoint(host, path)
    assert found is not None
    return found
