"""The whole path on real parts: stamp, swap underneath, timeline, diff, refused launch, restore, launch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.demo import story
from envguard.demo.stage import Stage
from envguard.model.evidence import WRITERS
from envguard.model.schema import schema


def answer(stage: Stage, *arguments: str, code: int) -> dict[str, Any]:
    """The one JSON object of a command, held to its schema and its exit code."""
    done = stage.envguard(arguments[0], "--json", *arguments[1:])
    assert done.returncode == code, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(value, schema(value["schema"].removeprefix("envguard.")))
    return value


def contents(root: Path) -> dict[str, tuple[str, int]]:
    """Every file below `root` with its content's digest and its mode; links by where they lead."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(root))] = (hashlib.sha256(data).hexdigest(), path.lstat().st_mode)
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["forced", "allowed"])
def gap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The story up to the swap, once for each way that it can come about; what the living run looked like is kept."""
    stage = Stage(tmp_path_factory.mktemp("gap") / "stage")
    story.set_up(stage, forced=request.param)
    with story.training(stage) as process:
        before = contents(stage.site)
        story.swap(stage, forced=request.param)
        while_running = answer(stage, "timeline", "--since-checkpoint", "step_690", code=1)
        pid = process.pid
    return {"stage": stage, "forced": request.param, "timeline": while_running, "pid": pid, "before": before}


def torch_change(timeline: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The transaction that replaced torch, and its change of torch."""
    for transaction in timeline["transactions"]:
        for change in transaction["packages"]:
            if change["name"] == "torch" and change["from"] is not None:
                return transaction, change
    raise AssertionError("no transaction replaced torch")


def test_the_timeline_names_torch_both_builds_sglang_and_its_requirement(gap: dict[str, Any]) -> None:
    transaction, change = torch_change(gap["timeline"])
    assert (change["from"], change["to"]) == (story.GOOD, story.BAD)
    assert "sglang" in transaction["roots"]
    assert transaction["tool"] == "uv"
    requirement = {"package": "sglang", "version": "0.5.6"}
    if gap["forced"]:
        assert change["forced_by"] == [{**requirement, "requires": f"torch=={story.BAD}"}]
    else:
        assert change["forced_by"] == []
        assert {**requirement, "requires": "torch==2.11.0"} in change["allowed_by"]


def test_the_checkpoint_is_older_than_the_swap_and_unstamped(gap: dict[str, Any]) -> None:
    checkpoint = gap["timeline"]["checkpoint"]
    assert (checkpoint["name"], checkpoint["step"], checkpoint["stamped"]) == ("step_690", 690, False)
    transaction, _ = torch_change(gap["timeline"])
    assert checkpoint["time"] < transaction["start"]


def test_every_event_rests_on_evidence_and_certainty_on_two_writers(gap: dict[str, Any]) -> None:
    for event in gap["timeline"]["events"]:
        assert event["evidence"], event
        if event["confidence"] == "certain":
            assert len({WRITERS[item["witness"]] for item in event["evidence"]}) >= 2, event


def test_the_still_running_loop_is_named_as_on_the_old_build(gap: dict[str, Any]) -> None:
    stale = [event for event in gap["timeline"]["events"] if event["kind"] == "process.stale"]
    assert [event["subject"] for event in stale] == [str(gap["pid"])]
    assert story.GOOD in stale[0]["summary"]


def test_the_stamp_holds_the_build_that_the_process_had_loaded(gap: dict[str, Any]) -> None:
    stamp = json.loads((gap["stage"].checkpoints / "step_680" / "envguard.json").read_text())
    jsonschema.validate(stamp, schema("fingerprint"))
    assert stamp["torch"]["version"] == story.GOOD
    assert stamp["checkpoint"]["name"] == "step_680"
    assert stamp["origin"] == "loaded"


def test_diff_blocks_on_torch_and_launch_refuses_before_and_goes_after_the_restore(gap: dict[str, Any]) -> None:
    stage: Stage = gap["stage"]
    drifts = answer(stage, "diff", "step_680", code=1)["drifts"]
    assert [(d["a"], d["b"], d["severity"]) for d in drifts if d["subject"] == "torch"] == [
        (story.GOOD, story.BAD, "block")
    ]
    marker = stage.project / "started"
    child = ("--", "sh", "-c", f"echo ran > {marker}; exit 7")
    refused = answer(stage, "launch", "--against", "step_680", "--dry-run", *child, code=78)
    assert refused["decision"] == "refuse"
    assert stage.envguard("launch", "--against", "step_680", *child).returncode == 78
    assert not marker.exists()

    cache_before, others = contents(stage.cache), contents(stage.checkpoints)
    restored = answer_of_restore(stage)
    assert (restored["applied"], restored["verified"], restored["rolled_back"]) == (True, True, False)
    assert story.cuda_on_disk(stage) == "12.8"
    assert contents(stage.cache) == cache_before
    assert contents(stage.checkpoints) == others
    torch_files = {
        path: value
        for path, value in gap["before"].items()
        if path.startswith("torch/") and "__pycache__" not in path
    }
    assert torch_files
    now = contents(stage.site)
    assert {path: now[path] for path in torch_files} == torch_files

    went = stage.envguard("launch", "--against", "step_680", *child)
    assert went.returncode == 7, went.stdout + went.stderr
    assert marker.read_text() == "ran\n"


def answer_of_restore(stage: Stage) -> dict[str, Any]:
    """`restore step_680`, with nothing left in the temporary folder behind it."""
    value = answer(stage, "restore", "step_680", "-y", code=0)
    assert list(stage.tmp.iterdir()) == []
    plan = {item["package"]: item for item in value["plan"]}
    assert (plan["torch"]["from"], plan["torch"]["to"]) == (story.BAD, story.GOOD)
    return value


def test_the_demo_tells_the_story_and_takes_its_stage_down(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "envguard", "demo", "--json"],
        capture_output=True, text=True, check=False, env=environ, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["seconds"] < 60
    assert [step["code"] for step in report["steps"]] == [1, 1, 78, 0, 0]
    assert (report["cuda_before"], report["cuda_swapped"], report["cuda_restored"]) == ("12.8", "13.0", "12.8")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "envguard", "demo", "--keep", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
