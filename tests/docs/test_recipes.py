"""The recipes of docs/recipes run: their commands, on a stage, with the answer that the page promises."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envguard.demo.stage import Stage

RECIPES = Path(__file__).parent.parent.parent / "docs" / "recipes"


@pytest.fixture
def project(torch_stage: Stage) -> Stage:
    """A stage with `envguard` on PATH, the environment recorded, and a trainer that prints its torch."""
    command = torch_stage.root / "bin" / "envguard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m envguard "$@"\n')
    command.chmod(0o755)
    (torch_stage.project / "train.py").write_text("import sys; print('trained', *sys.argv[1:])\n")
    done = torch_stage.envguard("snapshot", "-o", "environment.json")
    assert done.returncode in (0, 3), done.stderr
    return torch_stage


def run(stage: Stage, *words: str, shell: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = stage.environ({"VIRTUAL_ENV": str(stage.venv), **extra})
    environ["PATH"] = f"{stage.root / 'bin'}:{stage.venv / 'bin'}:{environ['PATH']}"
    command = ["bash", "-e", "-c", shell] if shell is not None else list(words)
    return subprocess.run(command, cwd=stage.project, env=environ, capture_output=True, text=True, check=False)


def swap(stage: Stage) -> None:
    stage.install("torch==2.11.0+cu130")


def test_the_prolog_of_slurm_lets_a_match_pass_and_names_a_drift(project: Stage) -> None:
    script = str(RECIPES / "slurm-prolog.sh")
    reference = {"REFERENCE": "environment.json", "SLURMD_NODENAME": "node3"}
    fine = run(project, "bash", script, **reference)
    assert fine.returncode == 0, fine.stdout + fine.stderr
    assert fine.stdout == "print envguard: node3 matches environment.json\n"
    swap(project)
    drifted = run(project, "bash", script, **reference)
    assert drifted.returncode == 1
    assert drifted.stdout.startswith("print envguard: node3 differs (exit 1): ")
    assert run(project, "bash", script).returncode != 0  # without a reference it does not pass in silence


def test_the_steps_of_the_github_action(project: Stage) -> None:
    steps = yaml.safe_load((RECIPES / "github-action.yml").read_text())["jobs"]["drift"]["steps"]
    verify, diff, timeline = (step["run"] for step in steps if "run" in step)
    assert run(project, shell=verify).returncode == 0
    assert run(project, shell=diff).returncode == 0
    swap(project)
    assert run(project, shell=diff).returncode == 1
    assert json.loads((project.project / "drift.json").read_text())["match"] is False
    assert run(project, shell=timeline).returncode == 0
    assert "torch" in (project.project / "timeline.html").read_text()


def test_the_hook_of_pre_commit(project: Stage) -> None:
    hook = yaml.safe_load((RECIPES / "pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]
    assert run(project, *shlex.split(hook["entry"])).returncode == 0
    swap(project)
    assert run(project, *shlex.split(hook["entry"])).returncode == 1


def test_the_entry_point_of_the_image(project: Stage) -> None:
    lines = (RECIPES / "Dockerfile").read_text().splitlines()
    recorded = next(line for line in lines if line.startswith("RUN envguard")).removeprefix("RUN ")
    there = str(project.root / "environment.json")
    assert run(project, shell=recorded.replace("/srv/environment.json", there)).returncode in (0, 3)
    words = [
        word.replace("/srv/environment.json", there)
        for name in ("ENTRYPOINT ", "CMD ")
        for word in json.loads(next(line for line in lines if line.startswith(name)).removeprefix(name))
    ]
    started = run(project, *words)
    assert (started.returncode, started.stdout) == (0, "trained\n"), started.stderr
    swap(project)
    assert run(project, *words).returncode == 78


def test_the_unit_of_systemd(project: Stage, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(RECIPES / "drafter.service")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].startswith(service["WorkingDirectory"])
    against = [*words[1 : words.index("--")], "--against", "environment.json", *words[words.index("--") :]]
    started = run(project, "envguard", *[word for word in against if word not in ("--resume", "latest")])
    assert (started.returncode, started.stdout) == (0, "trained\n"), started.stderr
    swap(project)
    refused = run(project, "envguard", *[word for word in against if word not in ("--resume", "latest")])
    assert str(refused.returncode) in service["RestartPreventExitStatus"].split()
    assert "75" not in service["RestartPreventExitStatus"].split()
    if shutil.which("systemd-analyze"):
        here = tmp_path / "drafter.service"
        text = (RECIPES / "drafter.service").read_text()
        text = text.replace("/srv/drafter/.venv/bin/envguard", str(project.root / "bin" / "envguard"))
        here.write_text(text.replace("/srv/drafter", str(project.project)))
        words = ["systemd-analyze", "verify", str(here)]
        checked = subprocess.run(words, capture_output=True, text=True, check=False)
        assert "drafter.service:" not in checked.stderr, checked.stderr


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (78, False)])
def test_the_job_of_slurm_asks_for_another_start_only_where_that_helps(
    project: Stage, code: int, requeued: bool
) -> None:
    for name, text in (("envguard", f"exit {code}"), ("scontrol", f'echo "$@" >> {project.root}/asked')):
        path = project.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    done = run(project, "bash", str(RECIPES / "slurm.sbatch"), SLURM_JOB_ID="41")
    assert done.returncode == code
    assert os.path.exists(project.root / "asked") is requeued
