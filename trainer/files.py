"""Files that are either whole or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import TrainerError


@contextmanager
def locked(path: Path, refusal: TrainerError | None = None) -> Iterator[None]:
    """Holds the lock file ``path``; waits for it, or raises ``refusal`` while another process holds it.

    The kernel lifts the lock with the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
        except BlockingIOError as error:
            raise (refusal or error) from error
        yield


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds ``path`` to an error that says nothing of where: of a full disk, the system names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of ``path`` to fill; it becomes ``path`` only when the block succeeds.

    Contents are on disk before the name is: a crash leaves either nothing or all of it. Raises
    FileExistsError where ``path`` has come to exist meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                # safetensors writes for its owner alone, which would shut out a server under another user.
                Path(folder, name).chmod(0o666 & ~_umask())
                _sync(Path(folder, name))
            _sync(Path(folder))
        temporary.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would shut out other readers of a shared disk
        if path.exists():
            raise FileExistsError(path)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replaces a file's content at once; its parent is made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with naming(path), os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def cut_torn_line(path: Path) -> None:
    """Cuts off the unfinished last line that a killed writer left in a file of lines."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and b"\n" not in tail:
            step = min(end, 1 << 16)
            end -= step
            file.seek(end)
            tail = file.read(step) + tail
        file.truncate(end + tail.rfind(b"\n") + 1)
