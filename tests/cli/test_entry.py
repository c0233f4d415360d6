"""An envguard that was installed for its stamps alone, with a whole one further down PATH and without one."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from packaging.requirements import Requirement

from envguard.cli import entry, requirements
from envguard.demo.stage import Stage
from envguard.model.schema import schema

SCRIPT = "import sys\nfrom envguard.cli.entry import main\nsys.exit(main())\n"


def test_every_requirement_is_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == requirements.REQUIRED.keys()
    assert project["scripts"] == {"envguard": "envguard.cli.entry:main"}


@pytest.fixture
def lent(stage: Stage) -> Path:
    """The environment's own `envguard`, with msgspec and packaging beside it and nothing else."""
    stage.lend_envguard()
    own = stage.venv / "bin/envguard"
    own.write_text(f"#!{stage.python}\n{SCRIPT}")
    own.chmod(0o755)
    return own


def test_it_hands_over_to_the_next_on_path(stage: Stage, lent: Path, tmp_path: Path) -> None:
    whole = tmp_path / "tools/envguard"
    whole.parent.mkdir()
    whole.write_text(f'#!/bin/sh\necho whole "$@"\nexec {sys.executable} -P -m envguard "$@"\n')
    whole.chmod(0o755)
    before = stage.root / "before"
    before.mkdir()
    (before / "envguard").symlink_to(lent)  # the same one by another name is none
    for first in (lent.parent, before):
        environ = {**stage.environ(), "PATH": f"{first}:{lent.parent}:{whole.parent}:/usr/bin:/bin"}
        done = subprocess.run(["envguard", "--version"], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "whole --version"), done.stderr
        assert done.stdout.splitlines()[1].startswith("envguard ")


def test_without_another_it_says_what_it_lacks(stage: Stage, lent: Path) -> None:
    environ = {**stage.environ(), "PATH": f"{lent.parent}:/usr/bin:/bin"}
    done = subprocess.run([str(lent), "diff", "--json"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema("error"))
    assert "typer" in answer["error"]
    assert f"installed into {stage.venv} without what its commands require" in answer["error"]
    assert "uv tool install" in done.stderr.splitlines()[1]
    # `python -m` begins at the same place, and a stamp needs none of it.
    module = subprocess.run(
        [str(stage.python), "-m", "envguard", "log"], env=environ, capture_output=True, text=True, check=False
    )
    assert (module.returncode, module.stderr.splitlines()[1]) == (2, done.stderr.splitlines()[1])


def test_only_what_comes_later_is_handed_to(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "envguard").write_text("#!/bin/sh\n")
        (tmp_path / name / "envguard").chmod(0o755)
    path = f"{tmp_path}/a:{tmp_path}/none::{tmp_path}/b:{tmp_path}/c"
    found = [entry.next_on_path(f"{tmp_path}/{name}/envguard", path) for name in ("a", "b", "c")]
    assert found == [f"{tmp_path}/b/envguard", f"{tmp_path}/c/envguard", None]
    assert entry.next_on_path("/elsewhere/envguard/__main__.py", path) == f"{tmp_path}/a/envguard"


def test_what_is_installed_here_fits() -> None:
    assert requirements.unmet() == []
