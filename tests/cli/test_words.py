"""What people type by habit works: git's, uv's and ruff's ways of saying the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from envguard.cli.app import COMMANDS
from envguard.cli.words import as_meant
from envguard.demo.stage import Stage


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("help", "--help"),
        ("help diff", "diff --help"),
        ("-V", "--version"),
        ("--json diff", "diff --json"),
        ("-q --color never diff a b", "diff -q --color never a b"),
        ("--color=never -v timeline", "timeline --color=never -v"),
        ("log -5", "log --last 5"),
        ("log --json -12", "log --json --last 12"),
        ("diff -5", "diff -5"),
        ("launch -- python -V", "launch -- python -V"),
        ("launch -- log -5", "launch -- log -5"),
        ("--json", "--json"),
        ("--json nonsense", "--json nonsense"),
        ("", ""),
    ],
)
def test_one_form_is_meant(typed: str, meant: str) -> None:
    assert as_meant(typed.split(), COMMANDS) == meant.split()


def test_the_habits_work(stage: Stage) -> None:
    version = stage.envguard("-V")
    assert (version.returncode, version.stdout.split()[0]) == (0, "envguard")
    assert stage.envguard("help", "diff").stdout == stage.envguard("diff", "--help").stdout
    assert stage.envguard("help").stdout == stage.envguard("--help").stdout
    early = stage.envguard("--json", "log")
    assert early.stdout.startswith('{"schema":"envguard.log"')
    assert stage.envguard("log", "-5").returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_each_shell(stage: Stage, shell: str) -> None:
    script = stage.envguard("completion", shell)
    assert script.returncode == 0
    assert "_ENVGUARD_COMPLETE" in script.stdout
    asked = {"_ENVGUARD_COMPLETE": f"{shell}_complete", "COMP_WORDS": "envguard ti", "COMP_CWORD": "1"}
    if shell == "fish":
        asked["COMP_CWORD"] = "ti"
    offered = stage.envguard(extra=asked)
    assert "timeline" in offered.stdout, offered.stderr
    options = stage.envguard(extra={**asked, "COMP_WORDS": "envguard timeline --since-",
                                    "COMP_CWORD": "--since-" if shell == "fish" else "2"})  # fmt: skip
    assert "--since-checkpoint" in options.stdout


def test_the_completion_of_bash_works_in_bash(stage: Stage, tmp_path: object) -> None:
    binary = stage.root / "bin" / "envguard"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m envguard "$@"\n')
    binary.chmod(0o755)
    program = (
        'eval "$(envguard completion bash)"; COMP_WORDS=(envguard res); COMP_CWORD=1; '
        '_envguard_completion envguard; echo "${COMPREPLY[@]}"'
    )
    environ = {**stage.environ(), "PATH": f"{binary.parent}:{stage.environ()['PATH']}"}
    done = subprocess.run(["bash", "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "restore", done.stderr


def test_a_shell_that_is_none_is_refused(stage: Stage) -> None:
    refused = stage.envguard("completion", "tcsh")
    assert refused.returncode == 2
    assert "bash" in refused.stderr


@pytest.fixture
def saved(torch_stage: Stage) -> Stage:
    """A stamped checkpoint, and nothing that happened after it."""
    step = torch_stage.checkpoints / "step_90"
    step.mkdir()
    (step / "model.safetensors").write_bytes(b"w" * 64)
    done = torch_stage.envguard("snapshot", "--into", "step_90")
    assert done.returncode in (0, 3), done.stderr
    return torch_stage


@pytest.mark.parametrize(
    "words", [("step_90",), ("--since", "step_90"), ("--since-checkpoint", "step_90"), ("checkpoints/step_90",)]
)
def test_a_timeline_begins_at_a_checkpoint_however_it_is_named(saved: Stage, words: tuple[str, ...]) -> None:
    answer = json.loads(saved.envguard("timeline", *words, "--json").stdout)
    assert answer["checkpoint"]["name"] == "step_90"


@pytest.mark.parametrize("words", [("yesterday",), ("--since", "yesterday"), ("3h",), ("--since", "today")])
def test_a_timeline_begins_at_a_time_however_it_is_named(saved: Stage, words: tuple[str, ...]) -> None:
    answer = json.loads(saved.envguard("timeline", *words, "--json").stdout)
    assert answer["checkpoint"] is None
    assert any(event["subject"] == "torch" for event in answer["events"])


@pytest.mark.parametrize(
    "words", [("step_90", "--since-checkpoint", "step_90"), ("3h", "--since", "2h"), ("stepp_90",)]
)
def test_two_beginnings_or_none_are_refused(saved: Stage, words: tuple[str, ...]) -> None:
    assert saved.envguard("timeline", *words).returncode == 2
