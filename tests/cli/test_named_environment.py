"""`verify` and `diff` name the environment that they judge, and say where nobody chose it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.demo.stage import Stage

BASE = Path(sys.base_prefix)


def judged(stage: Stage, folder: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environ = {**stage.environ(), "PATH": f"{BASE}/bin:{os.environ['PATH']}", **extra}
    environ.pop("VIRTUAL_ENV", None) if "VIRTUAL_ENV" not in extra else None
    done = stage.envguard_command(*words)
    return subprocess.run(done, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_verify_names_the_environment(stage: Stage) -> None:
    done = judged(stage, stage.project, "verify")
    assert f"of {stage.venv}" in done.stdout
    assert "no virtual environment" not in done.stderr
    answer = json.loads(judged(stage, stage.project, "verify", "--json").stdout)
    assert (answer["prefix"], answer["kind"]) == (str(stage.venv), "venv")


@pytest.mark.parametrize("words", [("verify", "pip"), ("diff", "live", "live")])
def test_without_a_venv_the_python_of_path_is_said_to_be_judged(
    stage: Stage, tmp_path: Path, words: tuple[str, ...]
) -> None:
    nowhere = tmp_path / "nowhere"
    done = judged(stage, nowhere, *words)
    assert f"no virtual environment is active or beside this folder: the Python on PATH is examined, {BASE}" in (
        done.stderr
    )
    named = judged(stage, nowhere, *words, "--python", str(BASE / "bin/python3"))
    assert "no virtual environment" not in named.stderr


def test_diff_names_the_environment_of_both_sides(stage: Stage) -> None:
    done = judged(stage, stage.project, "diff", "live", "live")
    assert f"both of {stage.venv}" in done.stdout
