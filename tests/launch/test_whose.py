"""Which environment is compared: the one that the command runs in, whatever lies nearest or is active."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.launch.whose import runs_on

NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def other(torch_stage: Stage) -> Path:
    """A second environment of the same project, with another torch; the first start was recorded in the first."""
    (torch_stage.project / "envguard.toml").write_text("")
    done = torch_stage.envguard("launch", "--baseline", "--", "true", extra=NO_GPUS)
    assert done.returncode == 0, done.stderr
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python), str(other))
    where = (
        "--python",
        str(other / "bin/python"),
        "--offline",
        "--no-index",
        "--find-links",
        str(torch_stage.wheels),
    )
    torch_stage.uv("pip", "install", *where, "torch==2.11.0+cu130")
    return other


def launch(stage: Stage, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return stage.envguard("launch", *words, extra={**NO_GPUS, **extra})


def changed(done: subprocess.CompletedProcess[str]) -> list[str]:
    answer: dict[str, Any] = json.loads(done.stdout)
    return [drift["subject"] for drift in answer["drifts"] if drift["severity"] == "block"]


def test_an_interpreter_of_another_environment_is_compared_and_refused(torch_stage: Stage, other: Path) -> None:
    marker = torch_stage.root / "started"
    done = launch(torch_stage, "--json", "--", str(other / "bin/python"), "-c", f"open({str(marker)!r}, 'w')")
    assert (done.returncode, marker.exists()) == (78, False)
    assert "torch" in changed(done)
    # What is active, and what lies in the project, is the first one all the while.
    own = launch(torch_stage, "--dry-run", "--", str(torch_stage.python), "-c", "pass", VIRTUAL_ENV=str(other))
    assert own.returncode == 0, own.stdout


def test_a_named_environment_is_compared_and_the_difference_said(torch_stage: Stage, other: Path) -> None:
    named = ("--python", str(torch_stage.venv))
    done = launch(torch_stage, "--dry-run", *named, "--", str(other / "bin/python"), "-c", "pass")
    assert done.returncode == 0
    assert f"the command runs in {other}," in " ".join((done.stdout + done.stderr).split())
    for command in (str(torch_stage.python), "true"):
        done = launch(torch_stage, "--dry-run", *named, "--", command)
        assert "the command runs in" not in done.stdout + done.stderr


def test_whose_interpreter_a_command_runs_on(torch_stage: Stage, other: Path) -> None:
    bin_, host = other / "bin", LiveHost()
    python = str(bin_ / "python")
    (bin_ / "torchrun").write_text(f"#!{python}\nimport torch\n")
    # As pip and uv write it where the path is too long, or holds a space.
    (bin_ / "accelerate").write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport torch\n")
    (bin_ / "poetry").write_text(f"#!{python}\nimport poetry\n")
    for name in ("torchrun", "accelerate", "poetry"):
        (bin_ / name).chmod(0o755)
    environ = {"PATH": f"{bin_}:/usr/bin:/bin"}
    runs_on_it = (
        ["python", "train.py"],
        ["torchrun", "--nproc-per-node", "2", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["env", "NCCL_DEBUG=INFO", "python", "-m", "trainer"],
        ["nohup", "nice", "-n", "5", "torchrun", "train.py"],
    )
    for command in runs_on_it:
        runner = runs_on(host, command, environ)
        assert runner is not None, command
        assert runner.started.prefix == str(other), command
    # Whoever starts something else in an environment of its own choice tells nothing by its own interpreter.
    for command in (["poetry", "run", "python", "train.py"], ["bash", "run.sh"], ["uv", "run", "python", "x.py"], []):
        assert runs_on(host, command, environ) is None, command
    (other / "uv-receipt.toml").touch()
    assert runs_on(host, ["accelerate", "launch", "train.py"], environ) is None
