"""The transaction: a folder with a journal that says at every moment what a killed restore has left where.

    <state>/restore/<id>/journal.jsonl   one step a line, synced before the step's work begins
                        /point/          the restore point (envguard.restore.point)
                        /work/           wheels, uv's temporary cache, uv's TMPDIR; gone when the restore ends
                        /lock            held while the restore lives, so that a killed one is told from a slow one

Steps: begun → staged → saved → installing → installed → verified → done, or from anywhere → rolling-back →
rolled-back. Until `installing` the environment is untouched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from envguard import clock
from envguard.errors import RestoreError
from envguard.restore import point
from envguard.restore.copying import sync_filesystem
from envguard.restore.point import Saved
from envguard.restore.progress import Progress
from envguard.state.files import locked, open_state, sync_directory

StepName = Literal[
    "begun", "staged", "saved", "installing", "installed", "verified", "done", "rolling-back", "rolled-back"
]
FINAL = ("done", "rolled-back")
TOUCHED = ("installing", "installed", "verified", "rolling-back")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a transaction's journal."""

    step: StepName
    time: str
    pid: int
    about: dict[str, Any] = {}


class Transaction:
    """One restore's folder. `entries` are the steps so far; a torn last line is a step that did not happen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal.jsonl"
        self.point = folder / "point"
        self.work = folder / "work"
        self.entries = _read(self.journal)
        self.lock: int | None = None
        """The open lock file, for a child that must keep the transaction from being taken over while it lives."""

    @property
    def step(self) -> StepName | None:
        return self.entries[-1].step if self.entries else None

    @property
    def about(self) -> dict[str, Any]:
        """What was said at the beginning: prefix, reference, plan."""
        return self.entries[0].about if self.entries else {}

    @property
    def pending(self) -> bool:
        """Begun and neither done nor rolled back."""
        return self.step not in FINAL

    @property
    def touched(self) -> bool:
        """Whether the environment may differ from what it was."""
        return any(entry.step in TOUCHED for entry in self.entries)

    def marks(self) -> dict[str, str | None]:
        """The restored packages' RECORD files as they were when the restore was done."""
        return dict(self.entries[-1].about.get("marks", {})) if self.entries else {}

    def write(self, step: StepName, **about: Any) -> None:
        """Appends a step and syncs it: when this returns, a kill finds the step in the journal."""
        entry = Entry(step=step, time=clock.now(), pid=os.getpid(), about=about)
        descriptor = os.open(self.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            data = msgspec.json.encode(entry) + b"\n"
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a kill tore the last line; it must not swallow this one
            if os.write(descriptor, data) != len(data):
                raise OSError(f"{self.journal} could not be written whole")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.entries = (*self.entries, entry)

    def save(self, paths: Collection[str], copies: Collection[str], progress: Progress) -> tuple[Saved, ...]:
        """Keeps `paths` as they are; what was copied is durable when this returns."""
        saved = point.save(paths, copies, self.point, progress)
        if copies:
            sync_filesystem(str(self.point))
        return saved

    def put_back(self, progress: Progress) -> list[str]:
        """Makes the environment what it was; returns what could not be done."""
        return point.put_back(point.load(self.point), self.point, progress)

    def clear_work(self) -> None:
        """Removes wheels and uv's cache; what cannot be removed is left to the next restore."""
        shutil.rmtree(self.work, ignore_errors=True)

    def discard(self) -> None:
        """Removes the transaction; the journal goes last, so that a kill in between leaves it pending."""
        for name in (self.work, self.point):
            shutil.rmtree(name, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def writer_lives(self) -> bool:
        """Whether there is a process with the number of the one that wrote last."""
        return bool(self.entries) and os.path.exists(f"/proc/{self.entries[-1].pid}")

    def alive(self) -> bool:
        """Whether somebody holds the transaction: the restore itself, or a uv that it left behind."""
        try:
            with locked(self.folder / "lock", blocking=False):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False


def mark_of(path: str) -> str | None:
    """What tells that a file is still the one that was written: its inode and change time; None where it is gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return f"{status.st_ino}:{status.st_ctime_ns}"


def _read(journal: Path) -> tuple[Entry, ...]:
    try:
        lines = journal.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    entries = []
    for line in lines:
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.MsgspecError:
            continue
    return tuple(entries)


def _root(state: Path) -> Path:
    return state / "restore"


@contextlib.contextmanager
def begin(state: Path, about: dict[str, Any]) -> Iterator[Transaction]:
    """A new transaction, locked until the block ends. Raises `RestoreError` where the state cannot be written."""
    try:
        root = _root(open_state(state))
        root.mkdir(exist_ok=True)
        folder = root / f"{clock.now()[:19].replace(':', '')}-{uuid.uuid4().hex[:6]}"
        folder.mkdir()
        (folder / "work").mkdir()
        sync_directory(root)
    except OSError as error:
        raise RestoreError(
            f"no place for a roll-back point: {state}: {error.strerror or error}",
            "`state = ` in envguard.toml names another folder",
        ) from error
    with locked(folder / "lock") as lock:
        transaction = Transaction(folder)
        transaction.lock = lock
        transaction.write("begun", **about)
        yield transaction


@contextlib.contextmanager
def reopen(transaction: Transaction, patience_s: float = 60.0) -> Iterator[None]:
    """Takes over a transaction that its process left; raises `RestoreError` where that process still lives.

    A uv that outlives a killed restore holds the transaction's lock: it is waited for, since it still writes.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with locked(transaction.folder / "lock", blocking=False) as lock:
                transaction.lock = lock
                yield
                return
        except BlockingIOError as error:
            if transaction.writer_lives() or time.monotonic() > deadline:
                pid = transaction.entries[-1].pid if transaction.entries else "?"
                raise RestoreError(f"a restore is running (PID {pid})", "wait for it to end") from error
        time.sleep(0.05)


def transactions(state: Path) -> tuple[Transaction, ...]:
    """All that are kept, oldest first."""
    try:
        folders = sorted(path for path in _root(state).iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(Transaction(folder) for folder in folders)


def pending_transaction(state: Path) -> Transaction | None:
    """The transaction that a kill left unfinished."""
    for transaction in reversed(transactions(state)):
        if transaction.pending and not (transaction.alive() and transaction.writer_lives()):
            return transaction
    return None


def running_transaction(state: Path) -> Transaction | None:
    """The transaction that is being carried out now."""
    for transaction in reversed(transactions(state)):
        if transaction.pending and transaction.alive() and transaction.writer_lives():
            return transaction
    return None


def last_done(state: Path) -> Transaction | None:
    """The newest restore that was carried out and whose restore point is still kept."""
    for transaction in reversed(transactions(state)):
        if transaction.step == "done" and (transaction.point / point.MANIFEST).exists():
            return transaction
    return None


def forget_older(state: Path, keep: Transaction) -> None:
    """Drops finished transactions other than `keep`: each holds a copy of what it replaced."""
    for transaction in transactions(state):
        if transaction.folder != keep.folder and not transaction.pending:
            shutil.rmtree(transaction.folder, ignore_errors=True)
