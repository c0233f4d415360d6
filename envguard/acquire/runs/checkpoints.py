"""Checkpoints as people's trainers lay them out: found by name, ordered by step, never opened.

    step_690/  step-690/  checkpoint-690/  global_step690/  iter_0000690/     directories
    epoch=3-step=690.ckpt  step_690.pt  step_690.safetensors                  files (the first also as a directory)

    500/  0050000.pt                                                          the step alone, where weights are in it

What bears a stamp of its own is one whatever it is called (`best/`, `final/`, `last.ckpt`).

A *run directory* directly holds checkpoints: a configured place, or a folder in it. Order is the step in the name,
never the mtime: a copy writes the newest mtime on whatever it copies last.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import msgspec

from envguard.acquire.runs.checkpoint_parts import (
    STAMP_NAME,
    STAMP_SUFFIX,
    WEIGHTS,
    File,
    is_stamp_file,
    is_unfinished,
    judge,
    judge_file,
    roles,
)
from envguard.acquire.seam.host import Host, Kind
from envguard.model.evidence import Unknown
from envguard.model.parsing import parse_json

__all__ = [
    "STAMP_NAME",
    "STAMP_SUFFIX",
    "Checkpoint",
    "Checkpoints",
    "find_checkpoints",
    "read_checkpoint",
    "step_of",
]

EXTENSION = re.compile(r"(?:\.(?:ckpt|pt|pth|safetensors|bin|tar)){1,8}$")
_LIGHTNING = re.compile(r"(?:^|[^A-Za-z])(?:global_)?step=(\d+)(?!\d)")
_COMMON = re.compile(r"(?:^|.*[_.-])(?:global_?step|step|checkpoint|ckpt|iter|iteration)[_-]?(\d+)$")
# A date or a time of day in seconds is no step.
_NUMBER = re.compile(r"(?!20\d{6}$)\d{1,9}$")
POINTERS = {"latest_checkpointed_iteration.txt": ("iter_", "global_step"), "latest": ("global_step",)}
"""Text that a trainer writes beside its checkpoints when a save has ended, and which of them it speaks of."""
# Deep enough for lightning_logs/version_0/checkpoints and for outputs/<date>/<time>/checkpoints.
_DEPTH = 4
_MOST_FOLDERS = 20_000


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


@dataclass(frozen=True)
class Disorder:
    """Two checkpoints of one run directory whose files' times contradict their steps: copied, or saved again."""

    lower: Checkpoint
    higher: Checkpoint

    @property
    def says(self) -> str:
        return (
            f"{self.higher.name} has the higher step and the older files than {self.lower.name} in "
            f"{self.lower.run_directory}: copied or saved again; the order taken is the step's"
        )


@dataclass(frozen=True)
class Checkpoints:
    """What was found, by run directory and step; `roots` are the places looked in that exist."""

    found: tuple[Checkpoint, ...]
    disorder: tuple[Disorder, ...]
    roots: tuple[str, ...]
    unknown: tuple[Unknown, ...]
    unseen: tuple[str, ...] = ()
    """Paths of checkpoints and folders that could not be read, each with an entry in `unknown`."""
    by_path: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    """Links, and files of weights, that tell no step: a person may name one by its path."""
    """Those that lie in no place to look in, or have no name that tells: only their path finds them again."""

    def with_times_of(self, dated: Iterable[Checkpoint]) -> Checkpoints:
        """The same with the times that stamps prove, and the disorder that is left then."""
        known = {item.path: item for item in dated}
        found = sorted((known.get(item.path, item) for item in self.found), key=_order)
        return replace(self, found=tuple(found), disorder=tuple(_disorder(found)))

    def reference(self, checkpoint: Checkpoint) -> str:
        """What names this one on a command line."""
        from envguard.acquire.runs.checkpoint_names import short_name

        return checkpoint.path if checkpoint.path in self.by_path else short_name(checkpoint, self.found)

    def disorder_told(self) -> list[tuple[str, str]]:
        """(checkpoint, sentence) once a run directory: one that was copied without its times is in disorder
        throughout, and a sentence for each pair would bury whatever else is to be said."""
        by_run: dict[str, list[Disorder]] = {}
        for item in self.disorder:
            by_run.setdefault(item.higher.run_directory, []).append(item)
        return [
            (first.higher.name, f"{first.says} (and {more} more there)" if more else first.says)
            for first, more in ((each[0], len(each) - 1) for each in by_run.values())
        ]

    def runs(self) -> dict[str, tuple[Checkpoint, ...]]:
        """Checkpoints by run directory, each by step."""
        by_run: dict[str, list[Checkpoint]] = {}
        for checkpoint in self.found:
            by_run.setdefault(checkpoint.run_directory, []).append(checkpoint)
        return {run: tuple(each) for run, each in by_run.items()}

    def newest_run(self, dated: Callable[[Checkpoint], Checkpoint] | None = None) -> tuple[Checkpoint, ...]:
        """The checkpoints, by step, of the run directory whose newest checkpoint is newest; empty where none is.
        `dated` gives a checkpoint the time that its stamp proves: it is asked for the last stamped one of each run,
        which no other of that run was saved after but those of higher steps."""

        def newest(run: tuple[Checkpoint, ...]) -> int:
            if dated is None or len(runs) == 1:
                return max(item.saved_ns for item in run)
            last = next((number for number in reversed(range(len(run))) if run[number].stamp_path is not None), None)
            later = max((item.saved_ns for item in run[last + 1 if last is not None else 0 :]), default=0)
            return max(later, dated(run[last]).saved_ns) if last is not None else later

        runs = self.runs()
        return max(runs.values(), key=newest, default=())


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
    inner = (host.listing(f"{folder}/{name}") for name, kind in names if kind == "directory" and name[0] != ".")
    levels = (names, *inner)
    if any(is_checkpoint(name, kind) for level in levels for name, kind in level):
        return False
    return any(_has_core(level) for level in levels)


def _has_core(names: Iterable[tuple[str, Kind]]) -> bool:
    """Whether names are of tensors or of a trainer's record. A `.ckpt` is a checkpoint by itself."""
    found = roles(name for name, kind in names if kind in ("file", "link") and not name.endswith(".ckpt"))
    return any(role == "state" or (role == "weights" and name.endswith(WEIGHTS)) for name, role in found.items())


def find_checkpoints(
    host: Host, roots: Iterable[str], named: Iterable[str] = (), stamped: Iterable[str] = ()
) -> Checkpoints:
    """Every checkpoint below `roots`, those that somebody `named` by their paths, wherever they lie, and those that
    were `stamped`, with what lies beside them; a root that is not there is passed over, an unreadable one is
    `unknown`."""
    search = _Search(host)
    there = tuple(root for root in dict.fromkeys(posixpath.normpath(root) for root in roots) if search.below(root))
    for path in stamped:
        search.add_stamped_elsewhere(path)
    by_path = frozenset(path for path in named if path not in search.found)
    for path in by_path:
        search.add_named(path)
    found = sorted(search.found.values(), key=_order)
    return Checkpoints(
        tuple(found),
        tuple(_disorder(found)),
        there,
        tuple(search.unknown),
        tuple(search.unseen),
        by_path,
        tuple(search.others),
    )


def _order(checkpoint: Checkpoint) -> tuple[str, int, int, str]:
    """By step; what has none comes before, in the order of saving."""
    step, saved = checkpoint.step, checkpoint.saved_ns
    return checkpoint.run_directory, *((-1, saved) if step is None else (step, 0)), checkpoint.name


def _disorder(found: list[Checkpoint]) -> Iterable[Disorder]:
    for lower, higher in pairwise(found):
        numbered = lower.step is not None and lower.run_directory == higher.run_directory
        if numbered and lower.step != higher.step and higher.dated and higher.saved_ns < lower.saved_ns:
            yield Disorder(lower, higher)


class _Search:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.found: dict[str, Checkpoint] = {}
        self.unknown: list[Unknown] = []
        self.unseen: list[str] = []
        self.others: list[str] = []
        self.visited: set[tuple[int, int]] = set()
        self.refused = False

    def refuse(self, what: str, path: str, error: OSError) -> None:
        self.unknown.append(Unknown.refused(what, error))
        self.unseen.append(path)

    def below(self, root: str, depth: int = 0) -> bool:
        """Searches a folder; False where there is none."""
        try:
            facts = self.host.stat_target(root)
            if not facts.is_directory:
                return False
            if (facts.device, facts.inode) in self.visited:
                return True  # one place configured twice, or a link that leads back up
            self.visited.add((facts.device, facts.inode))
            names = self.host.listing(root)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self.refuse(f"checkpoints in {root}", root, error)
            return True
        self._take(root, names, depth)
        return True

    def _take(self, folder: str, names: tuple[tuple[str, Kind], ...], depth: int) -> None:
        inner = []
        every = {name for name, _ in names}
        near = read_beside(self.host, folder, every)
        if depth and STAMP_NAME in every and is_stamp(self.host, f"{folder}/{STAMP_NAME}"):
            self._add_stamped(folder)
        for name, kind in names:
            path = f"{folder}/{name}"
            if step_of(name) is not None and self._add(path, name, folder, kind, near):
                continue
            if kind == "file" and name + STAMP_SUFFIX in every and is_stamp(self.host, path + STAMP_SUFFIX):
                self._add_stamped(path)
            if kind == "link" or (kind == "file" and is_weights(name)):
                self.others.append(path)
            if kind in ("directory", "link") and not name.startswith((".", "__")):
                inner.append((path, kind))
        # An environment holds thousands of folders and no checkpoint.
        if depth >= _DEPTH or any(name == "pyvenv.cfg" for name, _ in names):
            return
        for path, kind in inner:
            if len(self.visited) >= _MOST_FOLDERS:
                if not self.refused:
                    self.unknown.append(Unknown(f"checkpoints in {folder}", f"more than {_MOST_FOLDERS} folders"))
                self.refused = True
                return
            if kind == "directory" or depth == 0:
                self.below(path, depth + 1)

    def add_stamped_elsewhere(self, path: str) -> None:
        """One that a stamp was put into. What lies beside it may be a later one of the same run."""
        try:
            checkpoint = read_checkpoint(self.host, path) if path not in self.found else None
        except (FileNotFoundError, NotADirectoryError):
            return  # deleted or moved since: a fact
        except OSError as error:
            self.refuse(f"checkpoint {path}", path, error)
            return
        if checkpoint is not None and checkpoint.stamp_path is not None:
            self.below(checkpoint.run_directory, _DEPTH)
            self.found.setdefault(path, checkpoint)

    def add_named(self, path: str) -> None:
        """One that a person says is a checkpoint."""
        try:
            checkpoint = read_checkpoint(self.host, path)
        except OSError as error:
            self.refuse(f"checkpoint {path}", path, error)
            return
        if checkpoint is not None:
            self.found[path] = checkpoint

    def _add_stamped(self, path: str) -> None:
        """What has a stamp and a name without a step; a link is another name of something, and no copy of it."""
        name = posixpath.basename(path)
        try:
            linked = self.host.stat(path).is_link
            checkpoint = None if linked or is_unfinished(name) else read_checkpoint(self.host, path)
        except OSError as error:
            self.refuse(f"checkpoint {path}", path, error)
            return
        if checkpoint is not None:
            self.found.setdefault(path, checkpoint)

    def _add(self, path: str, name: str, folder: str, kind: Kind, near: Beside) -> bool:
        try:
            if name.isdecimal() and kind != "file" and not holds_weights(self.host, path):
                return False
            checkpoint = read_checkpoint(self.host, path, folder, near)
        except FileNotFoundError:
            return kind == "link"  # a dangling link: nothing to resume from
        except OSError as error:
            self.refuse(f"checkpoint {path}", path, error)
            return True
        if checkpoint is None or not is_checkpoint(name, checkpoint.kind):
            return False
        self.found[path] = checkpoint
        return True


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
        judged = judge(name, _files(host, path))
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


def _files(host: Host, path: str) -> list[File]:
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
