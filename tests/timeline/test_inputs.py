"""Configured data and configuration that changed after a checkpoint."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage

CONFIGURED = 'data = ["data", "shards-*"]\nconfig = ["train.yaml"]\n'


@pytest.fixture(params=[True, False], ids=["stamped", "unstamped"])
def project(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    root = stage.project
    for folder in ("data", "shards-1"):
        (root / folder).mkdir()
        for name in ("a", "b"):
            (root / folder / f"{name}.bin").write_bytes(b"x" * 1000)
    (stage.root / "far.bin").write_bytes(b"y" * 500)
    (root / "data" / "linked.bin").symlink_to(stage.root / "far.bin")
    (root / "train.yaml").write_text("rate: 1\n")
    (root / "envguard.toml").write_text(CONFIGURED)
    (stage.checkpoints / "step_10").mkdir()
    (stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    if request.param:
        assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    time.sleep(0.1)
    return stage


def stamped(stage: Stage) -> bool:
    return (stage.checkpoints / "step_10" / "envguard.json").exists()


def told(stage: Stage) -> tuple[int, list[dict[str, Any]]]:
    done = stage.envguard("timeline", "--since-checkpoint", "step_10", "--json")
    return done.returncode, json.loads(done.stdout)["findings"]


def test_what_nobody_wrote_is_no_finding(project: Stage) -> None:
    assert told(project) == (0, [])


def test_another_configuration(project: Stage) -> None:
    (project.project / "train.yaml").write_text("rate: 2\n")
    code, (finding,) = told(project)
    assert (code, finding["title"]) == (1, "the configuration changed after step_10")
    assert finding["says"].startswith(f"{project.project}/train.yaml was written at ")


def rewritten(root: Path) -> None:
    (root / "data/a.bin").write_bytes(b"z" * 1000)


def more(root: Path) -> None:
    (root / "shards-1/c.bin").write_bytes(b"x" * 1000)


@pytest.mark.parametrize("happens", [rewritten, more])
def test_other_data(project: Stage, happens: Callable[[Path], None]) -> None:
    happens(project.project)
    code, (finding,) = told(project)
    assert (code, finding["title"]) == (1, "the data changed after step_10")
    if happens is more and stamped(project):
        held = "shards-1 holds 3 files of 3.0 kB, and held 2 files of 2.0 kB by the stamp of step_10."
        assert finding["says"].endswith(held)
    assert ("envguard diff" in finding["caveats"][0]) == stamped(project)


def one_less(root: Path) -> None:
    (root / "data/b.bin").unlink()


def none(root: Path) -> None:
    shutil.rmtree(root / "data")


@pytest.mark.parametrize("happens", [one_less, none])
def test_what_went_leaves_no_newer_file_and_is_told_by_the_stamp(
    project: Stage, happens: Callable[[Path], None]
) -> None:
    happens(project.project)
    code, findings = told(project)
    if not stamped(project):
        assert findings == []
        return
    (finding,) = findings
    had = "3 files of 2.5 kB by the stamp of step_10."
    assert (code, finding["says"].endswith(had)) == (1, True)
    assert ("is not there, and was" in finding["says"]) == (happens is none)
