"""Exclusive use of an environment: envguard's lock, uv's own lock, and nobody running from it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envguard.acquire.packages.environment import Environment
from envguard.acquire.processes.live_processes import EnvironmentProcess, read_processes
from envguard.acquire.seam.host import Host
from envguard.errors import RestoreError
from envguard.state.files import locked

LOCK_FILE = ".envguard-lock"
# NFS makes a POSIX lock of it, which takes a descriptor that is open for writing.
_NO_DIRECTORY_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class Held:
    """The open lock files, for a child that is to hold them too; `made` is a lock file that was not there before."""

    files: tuple[int, ...]
    made: str | None


@contextlib.contextmanager
def exclusive(prefix: str, patience_s: float = 0.0) -> Iterator[Held]:
    """Holds the environment at `prefix`; raises `RestoreError` where somebody else does.

    The lock is an flock on the prefix directory itself: it needs no file and no right to make one, and its key is the
    inode, so that two projects, users or containers that see one environment by different paths exclude each other.
    A file system that locks no directory (NFS) gets a lock file in the prefix instead. uv takes `<venv>/.lock` for
    every install into a venv, so that holding it too keeps a second uv out for as long as the restore lasts. Our own
    uv is told not to wait for it (`UV_LOCK_TIMEOUT=0`), which it reports and then goes on. With `patience_s` a uv
    that a killed restore left behind is waited for. A lock file that was made for this goes when the block ends.
    """
    root = Path(os.path.realpath(prefix))
    of_uv = root / ".lock"
    wanted = [root, *([of_uv] if (root / "pyvenv.cfg").exists() else [])]
    made = str(of_uv) if of_uv in wanted and not os.path.lexists(of_uv) else None
    held = []
    with contextlib.ExitStack() as stack:
        for path in wanted:
            try:
                held.append(stack.enter_context(_locked(path, patience_s)))
            except BlockingIOError as error:
                raise RestoreError(
                    f"{path} is held: an installer or another restore is at work in {prefix}",
                    "wait for it to end, and try again",
                ) from error
            except OSError as error:
                raise RestoreError(
                    f"{path} cannot be locked: {error.strerror or error}; nothing was changed", who_may(path, error)
                ) from error
        try:
            yield Held(tuple(held), made)
        finally:
            remove_unused(made)


def remove_unused(path: str | None) -> None:
    """Removes a lock file that was made for a restore and that this process holds, unless somebody waits for it.

    Who waits would get the lock of a file that is no longer there, and the next one would make another.
    """
    with contextlib.suppress(OSError):
        if path is not None and os.stat(path).st_size == 0 and not _waited_for(path):
            os.unlink(path)


def _waited_for(path: str) -> bool:
    inode = os.stat(path).st_ino
    waiting = (line for line in Path("/proc/locks").read_text().splitlines() if " -> " in line)
    return any(f":{inode} " in line for line in waiting)


def who_may(path: Path, error: OSError | None = None) -> str:
    """What to do about a file or its folder that refuses this user, with `error` where one was met."""
    there = path if path.exists() else path.parent
    if error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"make room: `df -h {shlex.quote(str(there))}` shows how full the disk is"
    owner = there.stat().st_uid if there.exists() else os.geteuid()
    if owner == os.geteuid() or os.geteuid() == 0:
        return f"is it mounted or marked read-only? `findmnt -T {there}` and `lsattr -d {there}` show that"
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"#{owner}"
    return f"it belongs to {name}, who can restore it: `sudo -u {name} …`"


@contextlib.contextmanager
def _locked(path: Path, patience_s: float) -> Iterator[int]:
    deadline = time.monotonic() + patience_s
    with contextlib.ExitStack() as stack:
        while True:
            try:
                descriptor = stack.enter_context(_directory(path) if path.is_dir() else locked(path, blocking=False))
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.05)
        yield descriptor


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.ExitStack() as stack:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY_LOCKS:
                    raise
                yield stack.enter_context(locked(path / LOCK_FILE, blocking=False))
            else:
                yield descriptor
    finally:
        os.close(descriptor)


def occupants(host: Host, env: Environment) -> tuple[EnvironmentProcess, ...]:
    """Living processes that run from the environment, other than this one."""
    return read_processes(host, env, frozenset({os.getpid()})).value
