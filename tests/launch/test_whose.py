"""Which environment is compared: the one that the command runs in, whatever lies nearest or is active."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage

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
