"""What is compared is what runs: a command that starts another environment's interpreter is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from envguard.acquire.packages.starts import started_by
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.launch.test_launch import launch

SAYS = "import sys; print(sys.prefix)"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A recorded first start of `.venv`, and a second environment, `other`, beside the project."""
    stage = Stage(tmp_path_factory.mktemp("two") / "stage")
    stage.make_venv()
    build_wheel(stage.wheels, "tool", "1.0", scripts={"tool": "sys:exit"})
    stage.install("tool")
    stage.uv("venv", "--quiet", "--python", str(stage.python.resolve()), str(stage.root / "other"))
    stage.uv(
        "pip", "install", "--python", str(stage.root / "other"), "--offline", "--no-index", "--find-links",
        str(stage.wheels), "tool",
    )  # fmt: skip
    (stage.project / "envguard.toml").write_text("")
    assert launch(stage, "--baseline", "--", "true").returncode == 0
    return stage


def path_of(stage: Stage, prefix: Path) -> str:
    return f"{prefix}/bin:{stage.environ()['PATH']}"


def test_python_of_another_environment_is_refused_and_the_hint_works(two: Stage) -> None:
    other = two.root / "other"
    done = launch(two, "--", "python", "-c", SAYS, PATH=path_of(two, other))
    assert (done.returncode, done.stdout) == (2, "")
    told = " ".join(done.stderr.split())
    assert f"python runs {other}/bin/python of the environment {other}" in told
    assert f"the environment compared here is {two.venv}" in told
    assert f"write {two.python} or activate" in told
    assert launch(two, "--", str(two.python), "-c", SAYS).stdout.strip() == str(two.venv)
    activated = launch(two, "--", "python", "-c", SAYS, PATH=path_of(two, two.venv))
    assert (activated.returncode, activated.stdout.strip()) == (0, str(two.venv))


def test_a_script_of_another_environment_is_refused(two: Stage) -> None:
    other = two.root / "other"
    done = launch(two, "--", "tool", PATH=path_of(two, other))
    assert done.returncode == 2
    assert str(other) in done.stderr
    assert launch(two, "--", "tool", PATH=path_of(two, two.venv)).returncode == 0


def test_a_dry_run_says_it_too(two: Stage) -> None:
    assert launch(two, "--dry-run", "--", "python", PATH=path_of(two, two.root / "other")).returncode == 2


def test_a_path_names_the_environment_that_is_compared(two: Stage) -> None:
    for program in ("python", "tool"):
        done = launch(two, "--dry-run", "--json", "--", str(two.root / "other" / "bin" / program))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["reference"] is not None


def test_what_a_shell_starts_is_refused_where_it_is_not_determined_and_the_hint_works(two: Stage) -> None:
    marker = two.root / "started"
    words = ("--", "sh", "-c", f"if true; then touch {marker}; exit 5; fi")
    done = launch(two, *words, PATH=path_of(two, two.venv))
    assert (done.returncode, marker.exists()) == (3, False)
    assert "name the environment with --python" in " ".join(done.stderr.split())
    assert launch(two, "--python", str(two.venv), *words).returncode == 5
    waived = launch(two, "--waive", "unknown:interpreter of the command", "--because", "known", *words)
    assert waived.returncode == 5


def test_variables_of_the_command_are_those_that_are_compared(two: Stage) -> None:
    python = str(two.python)
    assert launch(two, "--dry-run", "--", "env", "NCCL_ALGO=Ring", python).returncode == 78
    assert launch(two, "--dry-run", "--", python, NCCL_ALGO="Ring").returncode == 78
    for words in (("env", "-u", "NCCL_ALGO", python), ("sh", "-c", f"unset NCCL_ALGO; {python}")):
        assert launch(two, "--dry-run", "--", *words, NCCL_ALGO="Ring").returncode == 0


def test_a_version_manager_is_no_interpreter_of_the_environment(two: Stage) -> None:
    shims = two.root / "shims"
    shims.mkdir()
    (shims / "python").write_text("#!/usr/bin/env bash\nexec true\n")
    (shims / "python").chmod(0o755)
    done = launch(two, "--", "python", PATH=f"{shims}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert "chooses an interpreter only when it runs" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!{python} -I\n",
        "#!/usr/bin/env {python}\n",
        "#!/usr/bin/env -S X=1 {python} -u\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_first_lines_of_scripts(stage: Stage, tmp_path: Path, head: str) -> None:
    script = tmp_path / "torchrun"
    script.write_text(head.format(python=stage.python) + SAYS)
    script.chmod(0o755)
    if "env" not in head:  # the machine agrees; `env -S` is not everywhere
        out = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
        assert out == str(stage.venv)
    found = started_by(LiveHost(), str(script))
    assert found is not None
    assert (found.interpreter, found.prefix) == (str(stage.python), str(stage.venv))


def test_a_program_that_is_no_python_starts_none(tmp_path: Path) -> None:
    assert started_by(LiveHost(), "/bin/true") is None
    (tmp_path / "run.sh").write_text("#!/bin/sh\npython train.py\n")
    assert started_by(LiveHost(), str(tmp_path / "run.sh")) is None
    assert started_by(LiveHost(), str(tmp_path / "missing")) is None
