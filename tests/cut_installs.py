"""Installs by the real pip and uv that are killed half-way, for tests of every room that looks at what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uv

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel, torch_version_py

BIG = 48 << 20
"""Bytes of the one large file: an install that is killed when it begins to write it never gets to its end."""
OLD, NEW = "2.10.0", "2.11.0"


def build_large_torch(folder: Path) -> None:
    """Two versions of a torch with a large library in the middle; the newer one has a file that the older lacks."""
    for version in (OLD, NEW):
        files = {"torch/__init__.py": f"# {version}\n".encode(), "torch/version.py": torch_version_py(version)}
        files |= {f"torch/ops/part{number:03}/op.py": f"# {number} {version}\n".encode() for number in range(600)}
        files["torch/lib/libtorch.bin"] = version.encode() * (BIG // len(version))
        files |= {f"torch/zz{number:02}.py": f"# {number} {version}\n".encode() for number in range(40)}
        files["torchgen/__init__.py"] = f"# generators of {version}\n".encode()
        if version == NEW:
            files["torch/only_new.py"] = b"# came with the new one\n"
        build_wheel(folder, "torch", version, files, scripts={"torchrun": "torch:main"})


def take_wheels(stage: Stage, wheels: Path) -> None:
    """Puts them into the stage's folder."""
    for wheel in wheels.iterdir():
        (stage.wheels / wheel.name).symlink_to(wheel)


def pip(stage: Stage, *words: str) -> list[str]:
    """The command of a pip that works on the stage's venv."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(stage.python), *words]


def pip_install(stage: Stage, *requirements: str) -> list[str]:
    """`pip install` from the stage's wheels."""
    return pip(stage, "install", "--no-index", "--no-compile", "--find-links", str(stage.wheels), *requirements)


def uv_install(stage: Stage, *requirements: str) -> list[str]:
    """`uv pip install` from the stage's wheels; files are copied, which takes time enough to be killed in."""
    where = ["--offline", "--no-index", "--find-links", str(stage.wheels), "--link-mode", "copy"]
    return [uv.find_uv_bin(), "pip", "install", "--python", str(stage.python), *where, *requirements]


def run(stage: Stage, command: list[str]) -> None:
    """Runs an installer to its end."""
    subprocess.run(command, cwd=stage.project, env=stage.environ(), check=True, capture_output=True)


def kill(stage: Stage, command: list[str], when: Callable[[], bool]) -> None:
    """Runs an installer and kills it, as `kill -9` and the OOM killer do, as soon as `when` holds."""
    process = subprocess.Popen(
        command,
        cwd=stage.project,
        env=stage.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if when():
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.0002)
    assert process.wait() == -signal.SIGKILL, "the installer ended before it could be killed"


def copying(stage: Stage) -> Callable[[], bool]:
    """Whether the large file is being written: pip writes it in place, uv beside it under a name of its own."""
    folder, whole = stage.site / "torch" / "lib", BIG - BIG % len(NEW)

    def begun() -> bool:
        try:
            names = os.listdir(folder)
            return any(name.startswith(".tmp") or (folder / name).stat().st_size < whole for name in names)
        except FileNotFoundError:
            return False

    return begun


def stamp(stage: Stage, name: str = "step_10") -> None:
    """A checkpoint with a stamp of what is installed now."""
    checkpoint = stage.checkpoints / name
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"x")
    (stage.project / "envguard.toml").touch()
    taken = stage.envguard("snapshot", "--into", name)
    assert taken.returncode == 0, taken.stderr
