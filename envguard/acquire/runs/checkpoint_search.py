"""Checkpoints below the places where they are looked for, by run directory and step.

A *run directory* directly holds checkpoints: a configured place, or a folder in it. Order is the step in the name,
never the mtime: a copy writes the newest mtime on whatever it copies last.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from envguard.acquire.runs.checkpoint_names import short_name
from envguard.acquire.runs.checkpoint_parts import STAMP_NAME, STAMP_SUFFIX, is_unfinished
from envguard.acquire.runs.checkpoints import (
    Beside,
    Checkpoint,
    holds_weights,
    is_checkpoint,
    is_stamp,
    is_weights,
    read_beside,
    read_checkpoint,
    step_of,
)
from envguard.acquire.seam.host import Host, Kind
from envguard.model.evidence import Unknown

# Deep enough for lightning_logs/version_0/checkpoints and for outputs/<date>/<time>/checkpoints.
_DEPTH = 4
_MOST_FOLDERS = 20_000


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
    """Those that lie in no place to look in, or have no step in their name: only their path finds them again."""
    others: tuple[str, ...] = ()
    """Links, and files of weights, without a step in their name: a person may name one by its path."""

    def with_times_of(self, dated: Iterable[Checkpoint]) -> Checkpoints:
        """The same with the times that stamps prove, and the disorder that is left then."""
        known = {item.path: item for item in dated}
        found = sorted((known.get(item.path, item) for item in self.found), key=_order)
        return replace(self, found=tuple(found), disorder=tuple(_disorder(found)))

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
