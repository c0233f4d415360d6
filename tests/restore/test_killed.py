"""kill -9 at every step of the journal: the next command says so, and the roll-back is exact to the byte."""

from __future__ import annotations

import os
import signal
import subprocess
import time
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


def start(stage: Stage) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        stage.envguard_command("restore", "step_690", "-y"),
        cwd=stage.project,
        env=stage.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_step(state: Path, step: str, child: subprocess.Popen[bytes]) -> None:
    """Returns as soon as the journal on disk holds the step."""
    deadline = time.monotonic() + 60
    word = f'"step":"{step}"'.encode()
    while time.monotonic() < deadline:
        for journal in state.glob("restore/*/journal.jsonl"):
            if word in journal.read_bytes():
                return
        if child.poll() is not None:
            pytest.fail(f"the restore ended with {child.returncode} before step {step}")
        time.sleep(0.0005)
    pytest.fail(f"step {step} was never reached")


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_and_rolled_back(heavy: Swapped, step: str) -> None:
    before = tree(heavy.stage.venv)
    cache = tree(heavy.stage.cache)
    child = start(heavy.stage)
    wait_for_step(heavy.state, step, child)
    child.send_signal(signal.SIGKILL)
    child.wait()
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
    child = start(heavy.stage)
    wait_for_step(heavy.state, "installing", child)
    time.sleep(delay_s)
    if with_uv:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.send_signal(signal.SIGKILL)
    child.wait()
    again = heavy.stage.envguard("restore", "step_690", "-y")
    assert again.returncode == 0, again.stderr
    assert "undone first" in again.stderr
    assert "+cu128" in heavy.torch_says()
    assert {p.name: p.build for p in fingerprint(heavy.stage).packages} == {
        p.name: p.build for p in heavy.before.packages
    }
    assert (heavy.stage.site / "torch" / "mine.txt").read_text() == "a user's own file"


def test_a_roll_back_that_is_killed_is_gone_on_with(heavy: Swapped) -> None:
    before = tree(heavy.stage.venv)
    child = start(heavy.stage)
    wait_for_step(heavy.state, "installed", child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    undoing = subprocess.Popen(
        heavy.stage.envguard_command("restore", "--rollback", "-y"),
        cwd=heavy.stage.project,
        env=heavy.stage.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_step(heavy.state, "rolling-back", undoing)
    time.sleep(0.02)
    undoing.send_signal(signal.SIGKILL)
    undoing.wait()
    undone = heavy.stage.envguard("restore", "--rollback", "-y")
    if "nothing to roll back" not in undone.stderr:
        assert undone.returncode == 0, undone.stderr
    assert tree(heavy.stage.venv) == before
