"""One checkpoint as people's trainers lay it out: known by its name, its files and what lies beside it; never opened.

    step_690/  step-690/  checkpoint-690/  global_step690/  iter_0000690/     directories
    epoch=3-step=690.ckpt  step_690.pt  step_690.safetensors                  files (the first also as a directory)

    500/  0050000.pt                                                          the step alone, where weights are in it

What bears a stamp of its own is one whatever it is called (`best/`, `final/`, `last.ckpt`).
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from envguard.acquire.runs.checkpoint_parts import (
    STAMP_NAME,
    STAMP_SUFFIX,
    WEIGHTS,
    File,
    finished_name,
    is_stamp_file,
    is_unfinished,
    judge,
    judge_file,
    roles,
)
from envguard.acquire.seam.host import Host, Kind
from envguard.model.parsing import parse_json

__all__ = ["STAMP_NAME", "STAMP_SUFFIX", "Checkpoint", "read_checkpoint", "step_of"]

EXTENSION = re.compile(r"(?:\.(?:ckpt|pt|pth|safetensors|bin|tar)){1,8}$")
_LIGHTNING = re.compile(r"(?:^|[^A-Za-z])(?:global_)?step=(\d+)(?!\d)")
_COMMON = re.compile(r"(?:^|.*[_.-])(?:global_?step|step|checkpoint|ckpt|iter|iteration)[_-]?(\d+)$")
# A date or a time of day in seconds is no step.
_NUMBER = re.compile(r"(?!20\d{6}$)\d{1,9}$")
POINTERS = {"latest_checkpointed_iteration.txt": ("iter_", "global_step"), "latest": ("global_step",)}
"""Text that a trainer writes beside its checkpoints when a save has ended, and which of them it speaks of."""


class _Stamped(msgspec.Struct):
    """Of a stamp, what tells it from any other fingerprint."""

    checkpoint: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. Times in ns since the epoch.

    It was saved from `first_ns` to `saved_ns`: the mtimes of its core files (`checkpoint_parts`), and what its stamp
    proves, where that was read (`stamps.dated`). Both are 0 and `dated` is False where no file bears a believable
    time. `incomplete` says what is missing of the save; None where nothing is.
    """

    name: str
    path: str
    kind: Literal["file", "directory"]
    step: int | None
    run_directory: str
    mtime_ns: int
    btime_ns: int | None
    saved_ns: int
    stamp_path: str | None
    dated: bool = True
    by_stamp: bool = False
    """The stamp's own time is taken in place of the files'."""
    incomplete: str | None = None
    began_ns: int | None = None
    """The first mtime, where it is another than the last."""

    @property
    def first_ns(self) -> int:
        return self.saved_ns if self.began_ns is None else self.began_ns


@dataclass(frozen=True)
class Beside:
    """What of a folder tells of the saves in it: its names, and the steps that pointer files name."""

    names: frozenset[str] = frozenset()
    pointed: Mapping[str, int] = field(default_factory=dict)


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None for a name that no checkpoint has.

    >>> [step_of(name) for name in ("iter_0000690", "epoch=3-step=690.ckpt", "step_690.pt", "005000", "last.ckpt")]
    [690, 690, 690, 5000, None]
    """
    if is_unfinished(name) or name.endswith(STAMP_SUFFIX):
        return None
    stem = EXTENSION.sub("", name)
    match = _LIGHTNING.search(stem) or _COMMON.match(stem)
    if match:
        return int(match.group(1))
    return int(stem) if _NUMBER.match(stem) else None


def is_weights(name: str) -> bool:
    """Whether a file of that name holds tensors."""
    return bool(EXTENSION.search(name))


def is_checkpoint(name: str, kind: Kind) -> bool:
    """Whether an entry of that name and kind is a checkpoint: a file needs an extension that weights have. A folder
    that is called by a number alone (`500`) needs weights in it besides, see `holds_weights`."""
    return step_of(name) is not None and (kind == "directory" or is_weights(name))


def holds_weights(host: Host, folder: str) -> bool:
    """Whether a folder is a checkpoint by what is in it: tensors, or a record that trainers write into one, at its
    top or one level down, and no checkpoint of its own. Raises OSError."""
    names = host.listing(folder)
    if any(name == STAMP_NAME for name, _ in names):
        return True
    if any(kind == "directory" and finished_name(name) for name, kind in names):
        return True  # a part of one, as it is called while it is written
    inner = (host.listing(f"{folder}/{name}") for name, kind in names if kind == "directory" and name[0] != ".")
    levels = (names, *inner)
    if any(is_checkpoint(name, kind) for level in levels for name, kind in level):
        return False
    return any(_has_core(level) for level in levels)


def _has_core(names: Iterable[tuple[str, Kind]]) -> bool:
    """Whether names are of tensors or of a trainer's record. A `.ckpt` is a checkpoint by itself."""
    found = roles(name for name, kind in names if kind in ("file", "link") and not name.endswith(".ckpt"))
    return any(role == "state" or (role == "weights" and name.endswith(WEIGHTS)) for name, role in found.items())


def read_checkpoint(
    host: Host, path: str, run_directory: str | None = None, near: Beside | None = None
) -> Checkpoint | None:
    """The checkpoint at `path`, whatever its name; None for what is neither file nor directory. Raises OSError.

    The stamp of a link lies beside what it leads to. `near` is what is beside it, where that was read already.
    """
    path = path.rstrip("/") or "/"
    folder, name = posixpath.split(path)
    facts, real = host.stat(path), path
    if facts.is_link:
        facts, real = host.stat_target(path), host.realpath(path)
    near = near if near is not None else read_beside(host, folder or "/")
    kind: Literal["file", "directory"]
    if facts.is_directory:
        kind, stamps = "directory", [f"{path}/{STAMP_NAME}"]
        judged = judge(name, files_of(host, path))
    elif facts.is_file:
        kind, stamps = "file", list(dict.fromkeys((real + STAMP_SUFFIX, path + STAMP_SUFFIX)))
        judged = judge_file(name, facts.size, facts.mtime_ns)
    else:
        return None
    step = step_of(name)
    return Checkpoint(
        name=name,
        path=path,
        kind=kind,
        step=step,
        run_directory=run_directory or folder or ".",
        mtime_ns=facts.mtime_ns,
        btime_ns=facts.btime_ns,
        saved_ns=judged.last_ns or 0,
        stamp_path=next((stamp for stamp in stamps if host.find(stamp) is not None), None),
        dated=judged.last_ns is not None,
        incomplete=_unended(name, step, near) or judged.incomplete,
        began_ns=judged.first_ns,
    )


def is_stamp(host: Host, path: str) -> bool:
    """Whether it is a stamp, made for a checkpoint: a fingerprint that somebody put there under that name is none.
    One that cannot be read counts, so that whoever reads it says so."""
    try:
        return parse_json(host.read(path), _Stamped).checkpoint is not None
    except (OSError, ValueError):
        return True


def read_beside(host: Host, folder: str, names: Iterable[str] | None = None) -> Beside:
    """What of a folder tells of the saves in it; nothing where it cannot be read, as a checkpoint in it still can."""
    pointed: dict[str, int] = {}
    try:
        every = frozenset(names if names is not None else (name for name, _ in host.listing(folder)))
        for pointer in POINTERS.keys() & every:
            word = host.read(f"{folder}/{pointer}", 64).strip().decode("ascii", "replace")
            step = int(word) if word.isdecimal() else step_of(word)
            if step is not None:
                pointed[pointer] = step
    except OSError:
        return Beside(frozenset(names or ()), pointed)
    return Beside(every, pointed)


def _unended(name: str, step: int | None, near: Beside) -> str | None:
    """What beside a checkpoint says that its save did not end."""
    for stem in dict.fromkeys((name, re.sub(r"\.(?:ckpt|nemo)$", "", name))):
        if f"{stem}-unfinished" in near.names:
            return f"{stem}-unfinished marks it"
    for pointer, pointed in near.pointed.items():
        if step is not None and step > pointed and name.startswith(POINTERS[pointer]):
            return f"{pointer}, which is written last, still names {pointed}"
    return None


def files_of(host: Host, path: str) -> list[File]:
    """Every file of a checkpoint folder; below its top only where it has folders of its own. Raises OSError."""
    names = [(name, kind) for name, kind in host.listing(path) if not is_stamp_file(name)]
    if any(kind == "directory" for _, kind in names):
        walk = host.walk(path)
        # What another rank renamed while this one looked is no part of the checkpoint.
        walk.refused()
        found = [File(name, facts.size, facts.mtime_ns) for name, facts in walk.entries if facts.is_file]
        return found + _stats(host, path, [name for name, facts in walk.entries if facts.is_link], links=True)
    found = _stats(host, path, [name for name, kind in names if kind == "file"])
    return found + _stats(host, path, [name for name, kind in names if kind == "link"], links=True)


def _stats(host: Host, path: str, names: list[str], links: bool = False) -> list[File]:
    found: list[File] = []
    seen = host.stats(path, names) if names else ()
    for name, size, mtime in zip(names, seen[::4], seen[1::4], strict=True):
        if size >= 0:
            found.append(File(name, size, mtime))
        elif links and size == -errno.ENOENT:
            found.append(File(name, None, 0))
        elif size not in (-errno.ENOENT, -errno.EISDIR):  # ENOENT: renamed meanwhile
            raise OSError(-size, os.strerror(-size), f"{path}/{name}")
    return found
