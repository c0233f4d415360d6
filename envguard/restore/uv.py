"""The one place that runs uv: which binary, with which environment, and what it said.

uv gets nothing from the user's configuration or variables: `UV_INDEX_URL` or `UV_COMPILE_BYTECODE` in somebody's
shell must not decide what a restore installs.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envguard.errors import RestoreError

# The first of which it is known that it heeds UV_LOCK_TIMEOUT: 0.9.0 waits for ever for a lock that its caller holds.
OLDEST = (0, 9, 30)
# Long enough for 10 GB on a slow disk; a uv that hangs on a lock must not hang the restore for ever.
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Ran:
    """How uv ended, and what it printed on stderr."""

    code: int
    says: str

    @property
    def reason(self) -> str:
        """Its last words, in one line, for a message to a person."""
        lines = [line.strip() for line in self.says.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("error", "cause", "Caused by", "×", "╰"))] or lines[-3:]
        return " — ".join(told[:4]) or f"exit code {self.code}"


@functools.cache
def find_uv() -> str:
    """The uv that envguard depends on, else the one on PATH. Raises `RestoreError` where there is none that can be
    told not to wait for the lock that we hold."""
    try:
        import uv

        found: str | None = str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise RestoreError("uv is not here, and nothing else installs", "install it: `pip install uv`")
    version = _version(found)
    if version < OLDEST:
        shown, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        raise RestoreError(f"{found} is uv {shown}, and a restore needs {oldest} or newer", "`pip install -U uv`")
    return found


def _version(path: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RestoreError(f"{path} cannot be run: {error}") from error
    match = re.match(r"uv (\d+)\.(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise RestoreError(f"{path} does not say which uv it is: {done.stdout[:80]!r}")
    return tuple(int(part) for part in match.groups())


def clean_environment(environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The caller's environment without anything that steers uv or pip, with a cache of our own."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("UV_", "PIP_"))}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        kept.pop(name, None)
    # We hold the environment's lock ourselves for as long as the transaction lasts; uv must not wait for it.
    return {**kept, "UV_CACHE_DIR": str(cache), "UV_LOCK_TIMEOUT": "0", "NO_COLOR": "1", "TMPDIR": str(cache.parent)}


def run(arguments: Sequence[str], cache: Path, hold: tuple[int, ...] = ()) -> Ran:
    """Runs `uv ARGUMENTS…`, offline and without configuration, with `cache` as its cache.

    uv inherits the open lock files in `hold`: where this process is killed, nobody takes the environment over while
    uv still writes to it.
    """
    command = [find_uv(), *arguments, "--offline", "--no-config", "--no-python-downloads"]
    try:
        done = subprocess.run(
            command,
            env=clean_environment(os.environ, cache),
            cwd=cache.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
            pass_fds=hold,
        )
    except subprocess.TimeoutExpired:
        return Ran(124, f"error: uv gave no answer within {TIMEOUT_S} s")
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace"))
