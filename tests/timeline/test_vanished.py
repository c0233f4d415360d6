"""Packages that a fingerprint of envguard's knows and that were taken out since, where no cache kept a trace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envguard import clock
from envguard.demo import wheels
from envguard.demo.stage import Stage


@pytest.fixture
def stamped(torch_stage: Stage) -> Stage:
    """An environment as pip leaves one, with no archive of anything, and a checkpoint with its stamp."""
    for name in ("extra-a", "extra-b"):
        wheels.build_wheel(torch_stage.wheels, name, "1.0")
    torch_stage.install("extra-a", "extra-b", arguments=["--link-mode", "copy"])
    shutil.rmtree(torch_stage.cache)
    stamp(torch_stage, "step_690")
    return torch_stage


def stamp(stage: Stage, name: str, *arguments: str) -> None:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    done = stage.envguard("snapshot", "--into", str(folder), *arguments)
    assert done.returncode == 0, done.stderr


def uninstall(stage: Stage, *names: str, python: Path | None = None) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python or stage.python)]
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", *names], env=stage.environ(), check=True)


def timeline(stage: Stage, checkpoint: str = "step_690") -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--json", "--since-checkpoint", checkpoint)
    return done.returncode, json.loads(done.stdout)


def removed(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {event["subject"]: event for event in answer["events"] if event["kind"] == "package.removed"}


def test_what_pip_uninstalled_is_told_by_the_stamp(stamped: Stage) -> None:
    uninstall(stamped, "extra-a", "extra-b")
    code, answer = timeline(stamped)
    assert code == 1
    events = removed(answer)
    assert {name: (event["from"], event["confidence"]) for name, event in events.items()} == {
        "extra-a": ("1.0", "strong"),
        "extra-b": ("1.0", "strong"),
    }
    assert [item["witness"] for item in events["extra-a"]["evidence"]] == ["journal", "dist-info"]
    assert events["extra-a"]["time"] < events["extra-a"]["end"]
    [finding] = answer["findings"]
    assert finding["title"] == "extra-a and 1 more removed after step_690"
    assert "extra-a 1.0, extra-b 1.0" in finding["says"]


def test_a_stamp_alone_is_enough_under_whatever_name_it_knew_the_environment(stamped: Stage) -> None:
    shutil.rmtree(stamped.project / ".envguard", ignore_errors=True)
    shutil.rmtree(stamped.home)
    stamped.home.mkdir()
    (stamped.root / "link").symlink_to(stamped.project)
    uninstall(stamped, "extra-a")
    done = stamped.envguard(
        "timeline", "--json", "--since-checkpoint", "step_690", "--python", str(stamped.root / "link/.venv")
    )
    event = removed(json.loads(done.stdout))["extra-a"]
    assert (done.returncode, [item["witness"] for item in event["evidence"]]) == (1, ["stamp", "dist-info"])


def test_a_later_stamp_without_it_bounds_the_removal(stamped: Stage) -> None:
    uninstall(stamped, "extra-a")
    stamp(stamped, "step_700")
    (stamped.site / "another.pth").touch()  # the folder's own time tells nothing any more
    code, answer = timeline(stamped)
    event = removed(answer)["extra-a"]
    saved = next(item for item in answer["events"] if item["subject"] == "step_700")
    assert code == 1
    # The moment of the stamp, which came just after the files.
    assert saved["time"] <= event["end"] <= clock.iso(time.time())
    # What was gone before a checkpoint is not told since it.
    assert timeline(stamped, "step_700")[1]["findings"] == []


def test_what_is_there_again_was_not_removed(stamped: Stage) -> None:
    uninstall(stamped, "extra-a")
    stamped.install("extra-a")
    code, answer = timeline(stamped)
    assert (code, removed(answer), answer["findings"]) == (0, {}, [])


def test_the_stamp_of_another_environment_tells_nothing_of_this_one(stamped: Stage) -> None:
    """Two environments of one project, whose checkpoints lie in one folder: they differ, and nothing was changed."""
    other = stamped.root / "other"
    stamped.uv("venv", "--quiet", "--python", str(stamped.python), str(other))
    for name, version in (("extra-a", "2.0"), ("only-there", "1.0")):
        wheels.build_wheel(stamped.wheels, name, version)
    where = ("--python", str(other / "bin/python"), "--offline", "--no-index", "--find-links", str(stamped.wheels))
    stamped.uv("pip", "install", *where, "extra-a==2.0", "only-there")
    stamp(stamped, "step_695", "--python", str(other))
    stamp(stamped, "step_700")
    code, answer = timeline(stamped)
    assert (code, answer["findings"]) == (0, [])
    assert {event["kind"] for event in answer["events"]} == {"checkpoint.saved", "snapshot.taken"}


def test_the_same_build_installed_again_is_no_swap(stamped: Stage) -> None:
    """Its folder is newer than what requires it, and a stamp has its very build: nothing was replaced."""
    wheels.build_wheel(stamped.wheels, "asks", "1.0", requires=["extra-a"])
    stamped.install("asks")
    stamp(stamped, "step_700")
    stamped.install("--reinstall-package", "extra-a", "extra-a==1.0")
    code, answer = timeline(stamped, "step_700")
    event = next(item for item in answer["events"] if item["subject"] == "extra-a" and "again" in item["summary"])
    assert (code, answer["findings"], event["kind"]) == (0, [], "package.installed")
    assert {"stamp", "journal"} & {item["witness"] for item in event["evidence"]}
