"""File modes that hold for root too: the kernel's exemption is dropped from the child, whoever runs the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def held_to_modes(command: Sequence[str]) -> list[str]:
    """The command, to be run as a process that file modes apply to."""
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may read everything, and there is no setpriv to take that away")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """While the block runs, the path has mode 0."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)
