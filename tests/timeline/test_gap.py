"""The eleven-minute gap on a stage: a real uv, a real venv and cache, a real process that maps the library."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.demo import story, wheels
from envguard.demo.stage import Stage
from envguard.model.schema import schema


def run_until_saved(stage: Stage) -> subprocess.Popen[bytes]:
    """The training loop, alive, with an unstamped step_690 on disk."""
    with (stage.root / "train.out").open("wb") as output:
        command = story.loop_command(stage, "--first", "685", "--pause", "0.05", "--work", "4000", "--save", "690")
        process = subprocess.Popen(command, cwd=stage.project, env=stage.environ(), stderr=output)
    story.wait_for(stage.checkpoints / "step_690", process, stage)
    return process


def timeline(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`envguard timeline --json …`: its exit code and its answer, held against the schema."""
    done = stage.envguard("timeline", "--json", *arguments)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(answer, schema("timeline"))
    return done.returncode, answer


def event_of(answer: dict[str, Any], kind: str, subject: str) -> dict[str, Any]:
    found = [event for event in answer["events"] if (event["kind"], event["subject"]) == (kind, subject)]
    assert len(found) == 1, found
    return found[0]


class Swapped:
    """A stage after the swap, with the loop still running on the old build."""

    def __init__(self, stage: Stage, forced: bool) -> None:
        story.set_up(stage, forced)
        self.stage = stage
        self.process = run_until_saved(stage)
        time.sleep(1.2)
        story.swap(stage, forced)


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapped]:
    made = Swapped(Stage(tmp_path_factory.mktemp("gap") / "stage"), forced=True)
    yield made
    made.process.kill()
    made.process.wait()


def test_the_swap_is_named_with_both_builds_and_two_independent_witnesses(swapped: Swapped) -> None:
    code, answer = timeline(swapped.stage, "--since-checkpoint", "step_690")
    assert code == 1
    torch = event_of(answer, "package.replaced", "torch")
    assert (torch["from"], torch["to"]) == (story.GOOD, story.BAD)
    assert torch["confidence"] == "certain"
    assert {"dist-info", "uv-cache", "process"} <= {item["witness"] for item in torch["evidence"]}
    (change,) = [package for package in answer["transactions"][0]["packages"] if package["name"] == "torch"]
    before = change["previous"][0]
    assert (before["version"], before["cuda"], before["witnesses"]) == (story.GOOD, "12.8", ["process", "removal"])
    assert before["restorable"].startswith(str(swapped.stage.cache))


def test_one_transaction_with_the_root_and_the_requirement_that_forced_it(swapped: Swapped) -> None:
    _, answer = timeline(swapped.stage, "--since-checkpoint", "step_690")
    (run,) = answer["transactions"]
    assert run["roots"] == ["sglang"]
    assert run["tool"] == "uv"
    packages = {package["name"]: package for package in run["packages"]}
    assert packages["torch"]["forced_by"] == [
        {"package": "sglang", "version": "0.5.6", "requires": "torch==2.11.0+cu130"}
    ]
    assert packages["torch"]["allowed_by"] == []
    assert packages["flashinfer-python"]["from"] is None
    assert packages["flashinfer-python"]["forced_by"][0]["requires"] == "flashinfer-python>=0.6"


def test_the_gap_sentence_counts_from_the_checkpoint_to_the_swap(swapped: Swapped) -> None:
    _, answer = timeline(swapped.stage, "--since-checkpoint", "step_690")
    finding = answer["findings"][0]
    assert finding["title"].startswith("torch replaced ")
    assert finding["title"].endswith(" s after step_690")
    because = [answer["events"][index] for index in finding["because"]]
    assert [event["kind"] for event in because] == ["checkpoint.saved", "package.replaced"]
    assert answer["checkpoint"]["time"] == because[0]["time"] < because[1]["time"]


def test_the_living_loop_is_named_as_still_on_the_old_build(swapped: Swapped) -> None:
    _, answer = timeline(swapped.stage, "--since-checkpoint", "step_690")
    stale = event_of(answer, "process.stale", str(swapped.process.pid))
    assert "still runs torch 2.11.0+cu128" in stale["summary"]
    assert stale["time"] <= event_of(answer, "package.replaced", "torch")["time"]


def test_an_event_has_one_id_however_often_one_looks(swapped: Swapped) -> None:
    def ids() -> list[str]:
        # The loop goes on logging meanwhile, so that levels of its rate may come out anew.
        return [event["id"] for event in timeline(swapped.stage)[1]["events"] if event["kind"] != "run.throughput"]

    first = ids()
    time.sleep(0.1)
    assert first == ids()
    assert len(set(first)) == len(first)


def test_a_swap_that_every_requirement_allowed_is_said_to_be_permitted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = Swapped(Stage(tmp_path_factory.mktemp("allowed") / "stage"), forced=False)
    try:
        _, answer = timeline(made.stage, "--since-checkpoint", "step_690")
    finally:
        made.process.kill()
        made.process.wait()
    packages = {package["name"]: package for run in answer["transactions"] for package in run["packages"]}
    assert packages["torch"]["forced_by"] == []
    assert packages["torch"]["allowed_by"] == [{"package": "sglang", "version": "0.5.6", "requires": "torch==2.11.0"}]
    assert "Permitted, not forced" in answer["findings"][0]["says"]


def test_a_name_that_is_no_checkpoint_is_refused_with_the_nearest(swapped: Swapped) -> None:
    done = swapped.stage.envguard("timeline", "--since-checkpoint", "step_609", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["hint"] == "the nearest: step_690"


def test_a_package_that_was_only_taken_out_is_told_by_its_inodes(torch_stage: Stage) -> None:
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(0.6)
    torch_stage.uv("pip", "uninstall", "--python", str(torch_stage.python), "triton")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert code == 1
    gone = event_of(answer, "package.removed", "triton")
    assert (gone["from"], gone["to"], gone["confidence"]) == ("3.6.0", None, "weak")
    assert "torch still requires it" in gone["summary"]
    assert answer["findings"][0]["title"].startswith("triton perhaps removed ")


def test_a_sync_that_drops_packages_names_them_in_its_run(torch_stage: Stage) -> None:
    """The CUDA build becomes the CPU build and triton goes, all in one run."""
    wheels.stand_in_torch(torch_stage.wheels, "2.11.0+cpu", triton=None)
    lock = torch_stage.project / "cpu.txt"
    lock.write_text("torch==2.11.0+cpu\ntransformers==5.6.0\n")
    time.sleep(0.6)
    where = ("--offline", "--no-index", "--find-links", str(torch_stage.wheels), "--python", str(torch_stage.python))
    torch_stage.uv("pip", "sync", *where, str(lock))
    _, answer = timeline(torch_stage)
    torch = event_of(answer, "package.replaced", "torch")
    assert (torch["from"], torch["to"]) == ("2.11.0+cu128", "2.11.0+cpu")
    (run,) = [run for run in answer["transactions"] if run["id"] == torch["transaction"]]
    assert {(package["name"], package["from"], package["to"]) for package in run["packages"]} == {
        ("torch", "2.11.0+cu128", "2.11.0+cpu"), ("triton", "3.6.0", None)
    }  # fmt: skip
    # Nobody wrote down that triton was here: the cache lost it in that second, and others may share the cache.
    perhaps = "Perhaps removed, here or from another environment that shares the cache: triton."
    assert perhaps in answer["findings"][0]["says"]


def test_what_a_stamp_saw_and_a_sync_dropped_was_removed(torch_stage: Stage) -> None:
    wheels.stand_in_torch(torch_stage.wheels, "2.11.0+cpu", triton=None)
    lock = torch_stage.project / "cpu.txt"
    lock.write_text("torch==2.11.0+cpu\ntransformers==5.6.0\n")
    assert torch_stage.envguard("snapshot").returncode == 0
    time.sleep(0.6)
    where = ("--offline", "--no-index", "--find-links", str(torch_stage.wheels), "--python", str(torch_stage.python))
    torch_stage.uv("pip", "sync", *where, str(lock))
    _, answer = timeline(torch_stage)
    assert " Removed: triton." in answer["findings"][0]["says"]


def test_what_a_restore_put_back_is_told_as_a_restore_and_not_as_a_swap(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    story.set_up(stage)
    (stage.checkpoints / "step_690").mkdir()
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(1.2)
    story.swap(stage)
    assert timeline(stage, "--since-checkpoint", "step_690")[0] == 1
    restored = stage.envguard("restore", "step_690", "-y")
    assert restored.returncode == 0, restored.stdout + restored.stderr
    _, answer = timeline(stage, "--since-checkpoint", "step_690")
    assert [finding["title"] for finding in answer["findings"]] == ["torch was brought back by envguard"]
    torch = event_of(answer, "package.replaced", "torch")
    assert (torch["from"], torch["to"]) == (story.BAD, story.GOOD)
