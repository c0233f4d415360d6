"""Files written whole or not at all, the state folder, and locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from envguard.acquire.seam.collector.contents import read


def write_atomically(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """Writes a temporary file beside `path`, syncs it, renames it over `path`, and syncs the folder.

    A kill at any moment leaves the old content or the new one, and never a `.tmp` that a later run would trip over
    (a leftover has a random name and is ignored). The umask takes from `mode` what it takes from any new file's.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(target.parent)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """A regular file of the state folder, whole: anything else, and one beyond the bound of all reading, is an
    OSError and no hang."""
    data: bytes = read(os.fspath(path))  # type: ignore[no-untyped-call]
    return data


def sync_directory(folder: Path) -> None:
    """Makes a rename in `folder` durable; file systems that cannot sync a directory are let be."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_state(state: Path) -> Path:
    """Makes the state folder with its `.gitignore` of `*`; raises OSError where it cannot be written."""
    state.mkdir(parents=True, exist_ok=True)
    ignore = state / ".gitignore"
    if not ignore.exists():
        write_atomically(ignore, b"*\n")
    return state


@contextlib.contextmanager
def locked(path: Path, shared: bool = False, blocking: bool = True) -> Iterator[int]:
    """An flock on `path` (made if missing); raises BlockingIOError where it is held and `blocking` is False."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if blocking else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)
