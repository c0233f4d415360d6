"""Fixtures that every room's tests share: a private home, and a stage with a real uv, venv and cache."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envguard.demo import wheels
from envguard.demo.stage import Stage
from tests.cut_installs import build_large_torch, take_wheels

# Variables that would let the tester's own set-up change what a test sees, or a test reach what is the tester's.
_FOREIGN = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "NO_COLOR", "FORCE_COLOR", "XDG_CONFIG_HOME")
_FOREIGN_PREFIXES = ("ENVGUARD_", "UV_", "PIP_", "TORCHINDUCTOR_", "TRITON_")


@pytest.fixture(autouse=True, scope="session")
def held_interpreter() -> Iterator[None]:
    """No test restores into the interpreter that runs it, by whatever link: its prefix is locked as a restore does.

    A restore wants that lock for itself alone and is refused. Test runs share it.
    """
    descriptor = os.open(os.path.realpath(sys.base_prefix), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a uv cache of the test's own; the tester's variables are out of sight."""
    for name in list(os.environ):
        if name in _FOREIGN or name.startswith(_FOREIGN_PREFIXES):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("UV_CACHE_DIR", str(home / "uv-cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return home


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage with a fresh venv and no packages."""
    made = Stage(tmp_path / "stage")
    made.make_venv()
    return made


@pytest.fixture(scope="session")
def story_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story's wheels, built once: both torch builds, triton, flashinfer, and an sglang that forces the swap."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels.build_story_wheels(folder)
    return folder


@pytest.fixture(scope="session")
def large_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of a torch that takes long enough to install to be killed in the middle, built once."""
    folder = tmp_path_factory.mktemp("large-wheels")
    build_large_torch(folder)
    return folder


@pytest.fixture
def large_stage(stage: Stage, large_wheels: Path) -> Stage:
    """A stage with those wheels, and nothing installed."""
    take_wheels(stage, large_wheels)
    return stage


@pytest.fixture
def torch_stage(stage: Stage, story_wheels: Path) -> Stage:
    """A stage as in the story before 20:52: torch 2.11.0+cu128 and transformers installed by uv."""
    take_wheels(stage, story_wheels)
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    return stage
