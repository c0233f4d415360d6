"""The transaction: a folder with a journal that says at every moment what a killed restore has left where.

    <state>/restore/<id>/journal.jsonl   one step a line, synced before the step's work begins
                        /point/          the restore point (envguard.restore.point)
                        /work/           wheels, uv's temporary cache, uv's TMPDIR; gone when the restore ends
                        /lock            held while the restore lives, so that a killed one is told from a slow one

The environment's register (envguard.restore.register) names the folder before anything in the environment changes,
and until the roll-back point is dropped.

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
from envguard.restore import listing, point, register
from envguard.restore.copying import sync_filesystem
from envguard.restore.listing import Listing
from envguard.restore.locks import who_may
from envguard.restore.point import Saved
from envguard.restore.progress import Progress
from envguard.restore.register import Registered
from envguard.state.files import locked, open_state, read_file, sync_directory

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

    @property
    def gone(self) -> tuple[str, ...]:
        """The packages that the restore took away."""
        return tuple(self.entries[-1].about.get("gone", ())) if self.entries else ()

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

    def save(
        self, paths: Collection[str], copies: Collection[str], tree: Listing, progress: Progress
    ) -> tuple[Saved, ...]:
        """Keeps `paths` as they are, and how the whole `tree` was; what was copied is durable when this returns."""
        self.point.mkdir(exist_ok=True)
        listing.save(tree, self.point)
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

    @property
    def began(self) -> str:
        """When, ISO."""
        return self.entries[0].time if self.entries else ""

    @property
    def prefix(self) -> str:
        """The environment, by the path that it was named by."""
        return str(self.about.get("prefix", ""))

    def is_of(self, prefix: str) -> bool:
        """Whether it is a restore of the environment at `prefix`: of what lies there now, and not of an environment
        that lay there before. One of an envguard that kept no register names the prefix alone."""
        if not self.prefix or register.real(self.prefix) != register.real(prefix):
            return False
        inode = self.about.get("inode")
        return inode is None or inode == _inode(prefix) or self.registered

    @property
    def registered(self) -> bool:
        """Whether the environment names it."""
        try:
            return any(each.folder == str(self.folder) for each in register.read(self.prefix))
        except OSError:
            return False

    @property
    def undoable(self) -> bool:
        """Whether it was carried out and can be undone: what another restore came over is registered no more."""
        whole = self.step == "done" and (self.point / point.MANIFEST).exists()
        return whole and (self.registered or "inode" not in self.about)

    def discard(self) -> None:
        """Removes the transaction; the journal goes last, so that a kill in between leaves it pending."""
        with contextlib.suppress(OSError):  # a line of the register that names no folder counts for nothing
            register.strike(self.prefix, self.folder)
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
        lines = read_file(journal).splitlines()
    except FileNotFoundError:
        return ()
    entries = []
    for line in lines:
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return tuple(entries)


def _root(state: Path) -> Path:
    return state / "restore"


@contextlib.contextmanager
def begin(state: Path, prefix: str, about: dict[str, Any]) -> Iterator[Transaction]:
    """A new transaction of the environment at `prefix`, locked until the block ends. Raises `RestoreError` where the
    state folder or the environment cannot be written."""
    status = os.stat(register.real(prefix))
    about = {"prefix": prefix, "inode": status.st_ino, "mtime_ns": status.st_mtime_ns, **about}
    folder: Path | None = None
    with contextlib.ExitStack() as stack:
        try:
            root = _root(open_state(state))
            root.mkdir(exist_ok=True)
            folder = root / f"{clock.now()[:19].replace(':', '')}-{uuid.uuid4().hex[:6]}"
            folder.mkdir()
            (folder / "work").mkdir()
            sync_directory(root)
            lock = stack.enter_context(locked(folder / "lock"))
            transaction = Transaction(folder)
            transaction.lock = lock
            transaction.write("begun", **about)
        except OSError as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise RestoreError(
                f"no place for a roll-back point: {state}: {error.strerror or error}; nothing was changed",
                "`state = ` in envguard.toml names another folder",
            ) from error
        try:
            register.enter(prefix, _registered(transaction))
        except OSError as error:
            transaction.discard()
            with contextlib.suppress(OSError):
                os.utime(register.real(prefix), ns=(status.st_atime_ns, status.st_mtime_ns))
            raise RestoreError(
                f"{prefix} cannot be written: {error.strerror or error}; nothing was changed",
                who_may(Path(prefix), error),
            ) from error
        yield transaction


def _registered(transaction: Transaction) -> Registered:
    about, first = transaction.about, transaction.entries[0]
    return Registered(
        folder=str(transaction.folder),
        environment=register.real(transaction.prefix),
        reference=str(about.get("reference", "?")),
        begun=first.time,
        step="done" if transaction.step == "done" else "begun",
    )


def _inode(prefix: str) -> int | None:
    try:
        return os.stat(prefix).st_ino
    except OSError:
        return None


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
    """All whose folders are kept in a state folder, oldest first."""
    try:
        folders = sorted(path for path in _root(state).iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(Transaction(folder) for folder in folders)


def of_environment(prefix: str, state: Path) -> tuple[Transaction, ...]:
    """The environment's transactions, oldest first: those that it names, wherever they are kept, and those in `state`
    of which it is the environment. Raises OSError where the register cannot be read."""
    named = [Transaction(Path(each.folder)) for each in register.read(prefix)]
    found = {each.folder: each for each in (*named, *transactions(state)) if each.is_of(prefix)}
    return tuple(sorted(found.values(), key=lambda each: (each.began, each.folder.name)))


def out_of_reach(prefix: str) -> tuple[Registered, ...]:
    """Restores that were begun and whose folders cannot be read from here, so that they cannot be undone from here.

    They are kept by another user, on another machine, or were deleted with their project; or this environment is a
    copy of theirs. Raises OSError where the register cannot be read.
    """
    found = []
    for each in register.read(prefix):
        elsewhere = each.environment != register.real(prefix)
        if each.step != "done" and (elsewhere or not _readable(Path(each.folder))):
            found.append(each)
    return tuple(found)


def _readable(folder: Path) -> bool:
    """Whether the journal can be read, or is gone as a transaction's is that has ended."""
    try:
        (folder / "journal.jsonl").read_bytes()
    except FileNotFoundError:
        return _root_is_there(folder.parent)
    except OSError:
        return False
    return True


def _root_is_there(root: Path) -> bool:
    try:
        return root.is_dir() and os.access(root, os.R_OK | os.X_OK)
    except OSError:
        return False


def is_running(transaction: Transaction) -> bool:
    """Whether it is being carried out now."""
    return transaction.pending and transaction.alive() and transaction.writer_lives()


def was_killed(transaction: Transaction) -> bool:
    """Whether a kill left it unfinished."""
    return transaction.pending and not is_running(transaction)


def note_done(transaction: Transaction) -> None:
    """Says in the register that a restore was carried out, for those who cannot read its folder."""
    with contextlib.suppress(OSError):
        register.enter(transaction.prefix, _registered(transaction))


def forget_older(state: Path, keep: Transaction) -> None:
    """Drops the environment's finished transactions other than `keep`: each holds a copy of what it replaced."""
    try:
        others = of_environment(keep.prefix, state)
    except OSError:
        return
    for transaction in others:
        if transaction.folder != keep.folder and not transaction.pending:
            transaction.discard()
    stay = {str(each.folder) for each in others if each.pending} | {str(keep.folder)}
    with contextlib.suppress(OSError):
        for entry in register.read(keep.prefix):
            if entry.folder not in stay:
                register.strike(keep.prefix, Path(entry.folder))
    _forget_replaced(state)


def _forget_replaced(state: Path) -> None:
    """Drops what is kept of restores of environments that were made anew since. One that was not finished stays, and
    so does one whose environment is not there: its disk may be mounted again."""
    for transaction in transactions(state):
        gone = os.path.isdir(transaction.prefix) and not transaction.is_of(transaction.prefix)
        never_begun = not transaction.entries and not transaction.alive()
        if never_begun or (gone and transaction.step == "done"):
            shutil.rmtree(transaction.folder, ignore_errors=True)
