"""kill -9 at every step of the journal: the next command says so, and the roll-back is exact to the byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore import transaction
from tests.restore.conftest import Swapped, fingerprint, tree

STEPS = ["begun", "staged", "saved", "installing", "installed", "verified"]
# Small files make uv slow enough that a kill lands in the middle of its work.
SMALL_FILES, LARGE = 500, 4 << 20


def heavy_torch(folder: Path, version: str) -> None:
    files = {"torch/__init__.py": b"", "torch/version.py": f"__version__ = '{version}'\n".encode()}
    files |= {
        f"torch/many/m{number % 40}/f{number}.py": f"# {version} {number}\n".encode() for number in range(SMALL_FILES)
    }
    files["torch/lib/large.bin"] = os.urandom(LARGE)
    build_wheel(folder, "torch", version, files, scripts={"torchrun": "torch.run:main"})


@pytest.fixture(scope="module")
def heavy_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heavy")
    for version in ("2.11.0+cu128", "2.11.0+cu130"):
        heavy_torch(folder, version)
    return folder


@pytest.fixture
def heavy(stage: Stage, heavy_wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Swapped:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    for wheel in heavy_wheels.iterdir():
        (stage.wheels / wheel.name).symlink_to(wheel)
    stage.install("torch==2.11.0+cu128")
    before = fingerprint(stage)
    stage.install("torch==2.11.0+cu130")
    made = Swapped(stage, before, stage.project / ".envguard")
    (stage.project / "envguard.toml").write_text("")
    made.save_checkpoint("step_690")
    (stage.site / "torch" / "mine.txt").write_text("a user's own file")
    (stage.site / "mine.pth").write_text("# a user's own path file\n")
    return made


# `envguard …`, which kills itself as soon as a step is in the journal on disk, so that no machine is too slow or too
# fast for the kill to come at that very moment; with a delay it dies while the main thread goes on, and with a number
# of renames in the middle of moving files.
DYING = """
import os, signal, sys, threading
from envguard.cli.app import main
from envguard.restore.transaction import Transaction

step, delay_s, renames, group, *arguments = sys.argv[1:]
write, rename, left = Transaction.write, os.rename, int(renames)

def die():
    (os.killpg if group == "group" else os.kill)(os.getpid(), signal.SIGKILL)

def write_and_die(self, name, **about):
    write(self, name, **about)
    if name == step and left:
        os.rename = rename_and_die
    elif name == step:
        die() if float(delay_s) == 0 else threading.Timer(float(delay_s), die).start()

def rename_and_die(*paths):
    global left
    rename(*paths)
    left -= 1
    if not left:
        die()

Transaction.write = write_and_die
sys.argv = ["envguard", *arguments]
main()
"""


def killed(
    stage: Stage, step: str, *arguments: str, delay_s: float = 0.0, renames: int = 0, group: bool = False
) -> None:
    """Runs `envguard ARGUMENTS…` until `step` is written, and `delay_s` or so many renamed files longer; `group`: its
    children die with it."""
    how = [step, str(delay_s), str(renames), "group" if group else "alone"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", DYING, *how, *arguments],
        cwd=stage.project,
        env=stage.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, f"it ended by itself ({done.returncode}): {done.stderr.decode()}"


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_and_rolled_back(heavy: Swapped, step: str) -> None:
    before = tree(heavy.stage.venv)
    cache = tree(heavy.stage.cache)
    killed(heavy.stage, step, "restore", "step_690", "-y")
    said = heavy.stage.envguard("diff", "live", "live")
    assert "a restore to step_690 was killed" in said.stderr
    undone = heavy.stage.envguard("restore", "--rollback", "-y")
    assert undone.returncode == 0, undone.stderr
    assert tree(heavy.stage.venv) == before
    assert tree(heavy.stage.cache) == cache
    assert not list(heavy.stage.tmp.iterdir())
    assert not transaction.transactions(heavy.state)
    assert "killed" not in heavy.stage.envguard("diff", "live", "live").stderr


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("with_uv", [False, True], ids=["uv outlives it", "uv dies too"])
def test_killed_while_uv_installs_and_restored_by_running_it_again(
    heavy: Swapped, delay_s: float, with_uv: bool
) -> None:
    killed(heavy.stage, "installing", "restore", "step_690", "-y", delay_s=delay_s, group=with_uv)
    again = heavy.stage.envguard("restore", "step_690", "-y")
    assert again.returncode == 0, again.stderr
    assert "undone first" in again.stderr
    assert "+cu128" in heavy.torch_says()
    assert {p.name: p.build for p in fingerprint(heavy.stage).packages} == {
        p.name: p.build for p in heavy.before.packages
    }
    assert (heavy.stage.site / "torch" / "mine.txt").read_text() == "a user's own file"


@pytest.mark.parametrize("renames", [0, 1, 2, SMALL_FILES, SMALL_FILES + 1])
def test_a_roll_back_that_is_killed_is_gone_on_with(heavy: Swapped, renames: int) -> None:
    before = tree(heavy.stage.venv)
    killed(heavy.stage, "installed", "restore", "step_690", "-y")
    killed(heavy.stage, "rolling-back", "restore", "--rollback", "-y", renames=renames)
    undone = heavy.stage.envguard("restore", "--rollback", "-y")
    assert undone.returncode == 0, undone.stderr
    assert tree(heavy.stage.venv) == before
