"""Exclusive use of an environment: uv's own lock, envguard's lock, and nobody running from it."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

from envguard.acquire.packages.environment import Environment
from envguard.acquire.processes.live_processes import EnvironmentProcess, read_processes
from envguard.acquire.seam.host import Host
from envguard.errors import RestoreError
from envguard.state.files import locked, open_state


@contextlib.contextmanager
def exclusive(prefix: str, state: Path, patience_s: float = 0.0) -> Iterator[tuple[int, ...]]:
    """Holds uv's lock of the venv at `prefix` and envguard's own; raises `RestoreError` where either is taken.

    uv takes `<venv>/.lock` for every install, so that holding it keeps a second uv out for as long as the restore
    lasts. Our own uv is told not to wait for it (`UV_LOCK_TIMEOUT=0`), which it reports and then goes on. Yields the
    open lock files, for a child that is to hold them too. With `patience_s` a uv that a killed restore left behind is
    waited for.
    """
    with contextlib.ExitStack() as stack:
        try:
            wanted = [open_state(state) / "restore.lock"]
        except OSError as error:
            raise RestoreError(
                f"{state} cannot be written: {error.strerror or error}; nothing was changed", who_may(state)
            ) from error
        if (Path(prefix) / "pyvenv.cfg").exists():
            wanted.append(Path(prefix) / ".lock")
        held = []
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
                    f"{path} cannot be locked: {error.strerror or error}; nothing was changed", who_may(path)
                ) from error
        yield tuple(held)


def who_may(path: Path) -> str:
    """What to do about a file or its folder that refuses this user."""
    there = path if path.exists() else path.parent
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
                descriptor = stack.enter_context(locked(path, blocking=False))
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.05)
        yield descriptor


def occupants(host: Host, env: Environment) -> tuple[EnvironmentProcess, ...]:
    """Living processes that run from the environment, other than this one."""
    return read_processes(host, env, frozenset({os.getpid()})).value
