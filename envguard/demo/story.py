"""The eleven-minute gap on a stage: a run, a checkpoint, an install underneath it, and what envguard says and does.

Each act does one thing to the stage with real tools (uv, a venv, a process); the demo narrates them, the tests play
the same acts and look closer. Minutes are seconds here; everything else is as it happened.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from envguard.demo import loop, wheels
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
from envguard.errors import Error

STAMPED, UNSTAMPED = "step_680", "step_690"
GOOD, BAD = "2.11.0+cu128", "2.11.0+cu130"
# The loop is asked to pause a little in each step, so that it does not hold a core while envguard is being shown.
_LOOP = ("--first", "670", "--pause", "0.05", "--work", "4000")


class DemoError(Error):
    """Something on the stage did not happen that should have."""

    code = 1


def set_up(stage: Stage, forced: bool = True) -> None:
    """Wheels, a venv with torch +cu128 fetched from a real index on the loopback address, the training loop.

    `forced` decides what sglang requires: `torch==2.11.0+cu130`, which +cu128 fails, or `torch==2.11.0`, which both
    builds meet.
    """
    wheels.build_story_wheels(stage.wheels, f"=={BAD}" if forced else "==2.11.0")
    stage.make_venv()
    with serve_index(stage.wheels) as index:
        stage.install(f"torch=={GOOD}", "transformers==5.6.0", index=index)
    stage.lend_envguard()
    shutil.copyfile(loop.__file__, stage.project / "train.py")
    (stage.project / "envguard.toml").write_text('checkpoints = ["checkpoints"]\n')


def loop_command(stage: Stage, *arguments: str) -> list[str]:
    """The training loop as a command line of the stage's own interpreter."""
    return [str(stage.python), "train.py", *arguments]


@contextlib.contextmanager
def training(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """The run of the story: saves step_680 with a stamp and step_690 without, and goes on until it is told to end."""
    saves = ("--save", "680", "690", "--stamp", "680", "--compile")
    with (stage.root / "train.out").open("wb") as output:
        process = subprocess.Popen(
            loop_command(stage, *_LOOP, *saves),
            cwd=stage.project,
            env=stage.environ(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(stage.checkpoints / UNSTAMPED, process, stage)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for(path: Path, process: subprocess.Popen[bytes], stage: Stage, seconds: float = 40) -> None:
    """Until the path is there; raises `DemoError` with the run's own output where it never comes."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            output = (stage.root / "train.out").read_text(errors="replace")
            raise DemoError(f"the training loop did not save {path.name}:\n{output}")
        time.sleep(0.05)


def swap(stage: Stage, forced: bool = True) -> str:
    """Installs sglang into the venv while the run lives; its dependencies replace torch. Returns uv's own words.

    Where nothing forces the swap a plain install leaves torch alone; `--upgrade` then takes the newest build.
    """
    arguments = () if forced else ("--upgrade",)
    with serve_index(stage.wheels) as index:
        return stage.install("sglang", index=index, arguments=arguments).stderr


def cuda_on_disk(stage: Stage) -> str:
    """What the installed `torch/version.py` says of CUDA."""
    text = (stage.site / "torch" / "version.py").read_text()
    return next(line.partition("=")[2].strip(" '") for line in text.splitlines() if line.startswith("cuda"))
