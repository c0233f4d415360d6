"""The Pythons of this machine that a far machine might have: 3.8 and newer."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@functools.cache
def pythons() -> dict[tuple[int, int], Path]:
    """Version → interpreter, oldest first; this one is always among them."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(8, 20)]
    candidates += map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    candidates += map(str, Path("/root/.pyenv/versions").glob("3.*/bin/python3")) if os.geteuid() == 0 else []
    found = {sys.version_info[:2]: Path(sys.executable)}
    for candidate in filter(None, candidates):
        asked = [candidate, "-I", "-c", "import sys; print(*sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0:  # a launcher of pyenv fails for a version that is not chosen
            major, minor = map(int, said.stdout.split())
            found.setdefault((major, minor), Path(candidate))
    return {version: found[version] for version in sorted(found) if version >= (3, 8)}


def python38() -> Path:
    """A Python 3.8; skipped where the machine has none."""
    if (3, 8) not in pythons():
        pytest.skip("no Python 3.8 on this machine")
    return pythons()[3, 8]


@pytest.fixture(params=["oldest", "newest"])
def python(request: pytest.FixtureRequest) -> Path:
    """The oldest and the newest of them."""
    return list(pythons().values())[0 if request.param == "oldest" else -1]
