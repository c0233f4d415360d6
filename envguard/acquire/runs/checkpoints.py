"""Checkpoints as people's trainers lay them out: found by name, ordered by step, never opened.

    step_690/  step-690/  checkpoint-690/  global_step690/  iter_0000690/     directories
    epoch=3-step=690.ckpt  step_690.pt  step_690.safetensors                  files (the first also as a directory)

What bears a stamp of its own is one whatever it is called (`best/`, `final/`, `last.ckpt`).

A *run directory* directly holds checkpoints: a configured place, or a folder in it. Order is the step in the name,
never the mtime: a copy writes the newest mtime on whatever it copies last.
"""

from __future__ import annotations

import difflib
import errno
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec

from envguard.acquire.seam.host import Host, Kind, Stat
from envguard.model.evidence import Unknown

STAMP_NAME = "envguard.json"
STAMP_SUFFIX = ".envguard.json"

_EXTENSION = re.compile(r"(?:\.(?:ckpt|pt|pth|safetensors|bin|tar))+$")
_LIGHTNING = re.compile(r"(?:^|[^A-Za-z])(?:global_)?step=(\d+)(?!\d)")
_COMMON = re.compile(r"(?:^|.*[_.-])(?:global_?step|step|checkpoint|ckpt|iter|iteration)[_-]?(\d+)$")
# A trainer writes under such a name first and renames: what is still called so was never finished.
_UNFINISHED = re.compile(r"^(?:tmp|temp)[_.-]|[_.-](?:tmp|temp|partial|incomplete)(?:[_.-]|$)", re.IGNORECASE)
# Deep enough for lightning_logs/version_0/checkpoints and for outputs/<date>/<time>/checkpoints.
_DEPTH = 4
_MOST_FOLDERS = 20_000


class _Stamped(msgspec.Struct):
    """Of a stamp, what tells it from any other fingerprint."""

    checkpoint: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. `saved_ns` is the newest mtime among its own files, the stamp left out (ns since the epoch).

    A directory's own mtime moves when a stamp is put into it, so it is not the time of saving.
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
    by_path: frozenset[str] = frozenset()
    """Those that lie in no place to look in, or have no name that tells: only their path finds them again."""

    def reference(self, checkpoint: Checkpoint) -> str:
        """What names this one on a command line."""
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

    def newest_run(self) -> tuple[Checkpoint, ...]:
        """The checkpoints, by step, of the run directory whose newest checkpoint is newest; empty where none is."""
        return max(self.runs().values(), key=lambda run: max(item.saved_ns for item in run), default=())


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None for a name that no checkpoint has.

    >>> [step_of(name) for name in ("iter_0000690", "epoch=3-step=690.ckpt", "step_690.pt", "last.ckpt")]
    [690, 690, 690, None]
    """
    if is_unfinished(name) or name.endswith(STAMP_SUFFIX):
        return None
    stem = _EXTENSION.sub("", name)
    match = _LIGHTNING.search(stem) or _COMMON.match(stem)
    return int(match.group(1)) if match else None


def is_unfinished(name: str) -> bool:
    """Whether a trainer calls so what it still writes."""
    return name.startswith(".") or bool(_UNFINISHED.search(name))


def is_checkpoint(name: str, kind: Kind) -> bool:
    """Whether an entry of that name and kind is a checkpoint: a file needs an extension that weights have."""
    return step_of(name) is not None and (kind == "directory" or bool(_EXTENSION.search(name)))


def find_checkpoints(host: Host, roots: Iterable[str], named: Iterable[str] = ()) -> Checkpoints:
    """Every checkpoint below `roots`, and those that somebody `named` by their paths, wherever they lie; a root that
    is not there is passed over, an unreadable one is `unknown`."""
    search = _Search(host)
    there = tuple(root for root in dict.fromkeys(posixpath.normpath(root) for root in roots) if search.below(root))
    by_path = frozenset(path for path in named if path not in search.found)
    for path in by_path:
        search.add_named(path)
    found = sorted(search.found.values(), key=_order)
    return Checkpoints(tuple(found), tuple(_disorder(found)), there, tuple(search.unknown), by_path)


def _order(checkpoint: Checkpoint) -> tuple[str, int, int, str]:
    """By step; what has none comes before, in the order of saving."""
    step, saved = checkpoint.step, checkpoint.saved_ns
    return checkpoint.run_directory, *((-1, saved) if step is None else (step, 0)), checkpoint.name


def _disorder(found: list[Checkpoint]) -> Iterable[Disorder]:
    for lower, higher in pairwise(found):
        numbered = lower.step is not None and lower.run_directory == higher.run_directory
        if numbered and lower.step != higher.step and higher.saved_ns < lower.saved_ns:
            yield Disorder(lower, higher)


class _Search:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.found: dict[str, Checkpoint] = {}
        self.unknown: list[Unknown] = []
        self.visited: set[tuple[int, int]] = set()
        self.refused = False

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
            self.unknown.append(Unknown.refused(f"checkpoints in {root}", error))
            return True
        self._take(root, names, depth)
        return True

    def _take(self, folder: str, names: tuple[tuple[str, Kind], ...], depth: int) -> None:
        inner = []
        every = {name for name, _ in names}
        if depth and STAMP_NAME in every and self._is_stamp(f"{folder}/{STAMP_NAME}"):
            self._add_stamped(folder)
        for name, kind in names:
            path = f"{folder}/{name}"
            if step_of(name) is not None and self._add(path, name, folder, kind):
                continue
            if kind == "file" and name + STAMP_SUFFIX in every and self._is_stamp(path + STAMP_SUFFIX):
                self._add_stamped(path)
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

    def _is_stamp(self, path: str) -> bool:
        """Whether it is a stamp, made for a checkpoint: a fingerprint that somebody put there under that name is
        none. One that cannot be read counts, so that whoever reads it says so."""
        try:
            return msgspec.json.decode(self.host.read(path), type=_Stamped).checkpoint is not None
        except (OSError, msgspec.MsgspecError):
            return True

    def add_named(self, path: str) -> None:
        """One that a person says is a checkpoint."""
        try:
            checkpoint = read_checkpoint(self.host, path)
        except OSError as error:
            self.unknown.append(Unknown.refused(f"checkpoint {path}", error))
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
            self.unknown.append(Unknown.refused(f"checkpoint {path}", error))
            return
        if checkpoint is not None:
            self.found.setdefault(path, checkpoint)

    def _add(self, path: str, name: str, folder: str, kind: Kind) -> bool:
        try:
            checkpoint = read_checkpoint(self.host, path, folder)
        except FileNotFoundError:
            return kind == "link"  # a dangling link: nothing to resume from
        except OSError as error:
            self.unknown.append(Unknown.refused(f"checkpoint {path}", error))
            return True
        if checkpoint is None or not is_checkpoint(name, checkpoint.kind):
            return False
        self.found[path] = checkpoint
        return True


def read_checkpoint(host: Host, path: str, run_directory: str | None = None) -> Checkpoint | None:
    """The checkpoint at `path`, whatever its name; None for what is neither file nor directory. Raises OSError."""
    path = path.rstrip("/") or "/"
    folder, name = posixpath.split(path)
    facts = host.stat(path)
    if facts.is_link:
        facts = host.stat_target(path)
    kind: Literal["file", "directory"]
    if facts.is_directory:
        kind, stamp = "directory", f"{path}/{STAMP_NAME}"
        saved = _newest_file(host, path, facts)
    elif facts.is_file:
        kind, stamp, saved = "file", path + STAMP_SUFFIX, facts.mtime_ns
    else:
        return None
    return Checkpoint(
        name=name,
        path=path,
        kind=kind,
        step=step_of(name),
        run_directory=run_directory or folder or ".",
        mtime_ns=facts.mtime_ns,
        btime_ns=facts.btime_ns,
        saved_ns=saved,
        stamp_path=stamp if host.find(stamp) is not None else None,
    )


def _newest_file(host: Host, path: str, facts: Stat) -> int:
    names = [
        name
        for name, kind in host.listing(path)
        if kind == "file" and name != STAMP_NAME and not name.startswith(f".{STAMP_NAME}.")
    ]
    times = []
    seen = host.stats(path, names)
    for name, size, mtime in zip(names, seen[::4], seen[1::4], strict=True):
        if size >= 0:
            times.append(mtime)
        elif size != -errno.ENOENT:  # else another rank renamed it while this one looked
            raise OSError(-size, os.strerror(-size), f"{path}/{name}")
    return max(times, default=facts.mtime_ns)


def match_name(checkpoints: Iterable[Checkpoint], name: str) -> tuple[Checkpoint, ...]:
    """The checkpoints that `name` may mean: of that very name (extension left out or not, run directory before it
    or not); where there is none, of that step in whatever layout. Several are for the person to choose from."""
    every = tuple(checkpoints)
    wanted = name.strip("/")
    exact = tuple(item for item in every if _is_called(item, wanted))
    if exact or "/" in wanted:
        return exact
    step = int(wanted) if wanted.isdecimal() else step_of(wanted)
    return tuple(item for item in every if step is not None and item.step == step)


def short_name(checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> str:
    """The shortest that `match_name` takes for this one alone: its name, else folders before it, as in
    `exp1/step_200`, else its path. A command that is proposed has to work where two runs have a step_200."""
    return short_names(checkpoints)[checkpoint.path]


def short_names(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    """Path → the short name of each: where several runs have a step_200, no list is to call them alike."""
    every = tuple(checkpoints)
    # What `match_name` would find under each name, counted once: asked for each of thousands, it takes their square.
    number = Counter(name for item in every for name in {item.name, _EXTENSION.sub("", item.name), *_endings(item)})
    return {item.path: next((name for name in _ways(item) if number[name] == 1), item.path) for item in every}


def _endings(checkpoint: Checkpoint) -> list[str]:
    """The path's last two parts, its last three, and so on, shortest first."""
    parts = checkpoint.path.strip("/").split("/")
    return ["/".join(parts[-count:]) for count in range(2, len(parts) + 1)]


def _ways(checkpoint: Checkpoint) -> list[str]:
    return [checkpoint.name, *_endings(checkpoint)[:-1]]


def _is_called(checkpoint: Checkpoint, wanted: str) -> bool:
    if "/" in wanted:
        return checkpoint.path.endswith(f"/{wanted}")
    return wanted in (checkpoint.name, _EXTENSION.sub("", checkpoint.name))


def nearest_names(checkpoints: Iterable[Checkpoint], name: str, most: int = 4) -> tuple[str, ...]:
    """Names to suggest where `name` is not found: by spelling, then by distance in steps."""
    every = {item.name: item.step for item in checkpoints}
    step = int(name) if name.isdecimal() else step_of(name)
    if step is None:
        close = difflib.get_close_matches(name, every, n=most, cutoff=0.5)
        return tuple(close or sorted(every, key=lambda each: (-(every[each] or 0), each))[:most])
    return tuple(sorted(every, key=lambda each: (abs((every[each] or 0) - step), each))[:most])
