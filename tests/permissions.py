"""File modes that hold for root too: the kernel's exemption is dropped from the child, whoever runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.seam.remote import RemoteHost
from envguard.demo.stage import Stage


def held_to_modes(command: Sequence[str]) -> list[str]:
    """The command, to be run as a process that file modes apply to."""
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may read everything, and there is no setpriv to take that away")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]


def envguard_held_to_modes(stage: Stage, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs envguard on the stage as a process that file modes apply to."""
    return subprocess.run(
        held_to_modes(stage.envguard_command(*arguments)),
        cwd=stage.project,
        env=stage.environ(),
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def held_host() -> Iterator[Host]:
    """This machine, asked by a process that file modes apply to."""
    prefix = held_to_modes([])
    if not prefix:
        yield LiveHost()
        return
    with RemoteHost(" ".join(prefix)) as host:
        yield host


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """While the block runs, the path has mode 0."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)
