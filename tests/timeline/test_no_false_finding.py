"""Negative controls: what did not happen to this environment is not told of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage


def save_checkpoint(stage: Stage, name: str = "step_690") -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    return folder


def timeline(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--json", *arguments)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_an_untouched_environment(torch_stage: Stage) -> None:
    save_checkpoint(torch_stage)
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"], answer["transactions"]) == (0, [], [])
    assert [event["kind"] for event in answer["events"]] == ["checkpoint.saved"]


def test_a_whole_history_without_a_replacement_has_no_finding(torch_stage: Stage) -> None:
    code, answer = timeline(torch_stage)
    assert (code, answer["findings"]) == (0, [])
    assert {event["kind"] for event in answer["events"] if event["subject"] == "torch"} == {"package.installed"}


def test_an_addition_that_replaces_nothing(torch_stage: Stage) -> None:
    save_checkpoint(torch_stage)
    time.sleep(0.6)
    torch_stage.install("flashinfer-python")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"]) == (0, [])
    assert [run["roots"] for run in answer["transactions"]] == [["flashinfer-python"]]


def test_another_venv_that_swaps_torch_in_the_same_cache(torch_stage: Stage) -> None:
    """The old build's inode moves its ctime when the other venv lets go of it; here nothing was replaced."""
    save_checkpoint(torch_stage)
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python), str(other))
    where = (
        "--offline",
        "--no-index",
        "--find-links",
        str(torch_stage.wheels),
        "--python",
        str(other / "bin/python"),
    )
    torch_stage.uv("pip", "install", *where, "torch==2.11.0+cu128")
    time.sleep(0.3)
    torch_stage.uv("pip", "install", *where, "torch==2.11.0+cu130")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"]) == (0, [])
    assert [event["kind"] for event in answer["events"]] == ["checkpoint.saved"]


def test_another_venv_that_removes_a_package_of_both(torch_stage: Stage) -> None:
    save_checkpoint(torch_stage)
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python), str(other))
    python = ("--python", str(other / "bin/python"))
    torch_stage.uv(
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--find-links",
        str(torch_stage.wheels),
        *python,
        "torch==2.11.0+cu128",
    )
    torch_stage.uv("pip", "uninstall", *python, "torch")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"]) == (0, [])


def test_another_venv_that_is_deleted_just_before_an_install_here(torch_stage: Stage) -> None:
    """What only the shared cache lost in that second is not said to have been removed from here."""
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python), str(other))
    where = ("--offline", "--no-index", "--find-links", str(torch_stage.wheels))
    torch_stage.uv("pip", "install", *where, "--python", str(other / "bin/python"), "sglang", "--no-deps")
    save_checkpoint(torch_stage)
    time.sleep(2.2)
    shutil.rmtree(other)
    torch_stage.uv("pip", "install", *where, "--python", str(torch_stage.python), "torch==2.11.0+cu130", "--no-deps")
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert " Removed: " not in answer["findings"][0]["says"]
    assert "shares the cache: sglang." in answer["findings"][0]["says"]


@pytest.mark.parametrize("keep_times", [True, False])
def test_a_copied_venv(torch_stage: Stage, keep_times: bool) -> None:
    save_checkpoint(torch_stage)
    time.sleep(2.2)
    copy = torch_stage.project / "copied"
    subprocess.run(["cp", "-a" if keep_times else "-r", str(torch_stage.venv), str(copy)], check=True)
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690", "--python", str(copy))
    # Nothing happened to the copy, and nothing in it is as old as the checkpoint: what that ran on it cannot tell.
    assert (code, answer["findings"]) == (3, [])
    assert "what changed since step_690" in [item["what"] for item in answer["unknown"]]
    if keep_times:
        _, whole = timeline(torch_stage, "--python", str(copy))
        torch = next(event for event in whole["events"] if event["subject"] == "torch")
        assert torch["confidence"] == "weak"
        assert "copied here later" in torch["summary"]


def test_a_moved_venv_keeps_its_times(torch_stage: Stage) -> None:
    before = next(event for event in timeline(torch_stage)[1]["events"] if event["subject"] == "torch")
    moved = torch_stage.project / "moved"
    shutil.move(torch_stage.venv, moved)
    after = next(
        event for event in timeline(torch_stage, "--python", str(moved))[1]["events"] if event["subject"] == "torch"
    )
    assert (after["time"], after["end"], after["id"]) == (before["time"], before["end"], before["id"])


def test_touched_files(torch_stage: Stage) -> None:
    """A payload and an INSTALLER that were touched: neither an edit nor an install."""
    torch_stage.uv("cache", "clean")  # else the touched inode is the cache's own
    save_checkpoint(torch_stage)
    time.sleep(2.2)
    os.utime(torch_stage.site / "torch" / "version.py")
    os.utime(next(torch_stage.site.glob("torch-*.dist-info")) / "INSTALLER")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"]) == (0, [])
    assert [event["kind"] for event in answer["events"]] == ["checkpoint.saved"]


def test_an_edit_inside_site_packages_is_a_finding_and_names_what_it_reaches(torch_stage: Stage) -> None:
    save_checkpoint(torch_stage)
    time.sleep(2.2)
    with (torch_stage.site / "torch" / "_inductor" / "__init__.py").open("a") as stream:
        stream.write("# patched\n")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert code == 1
    (patched,) = [event for event in answer["events"] if event["kind"] == "file.patched"]
    assert "2 hard links: the uv cache and every environment that shares it have it too" in patched["summary"]


def test_a_reinstall_of_the_same_build_is_no_replacement(torch_stage: Stage) -> None:
    save_checkpoint(torch_stage)
    time.sleep(0.6)
    torch_stage.install("torch==2.11.0+cu128", arguments=("--reinstall",))
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_690")
    assert (code, answer["findings"]) == (0, [])
    assert {event["kind"] for event in answer["events"]} == {"checkpoint.saved", "package.installed"}


def test_a_checkpoint_of_the_future_is_no_clean_answer(torch_stage: Stage) -> None:
    """Everything would seem to be older than it: "no finding" there is not known, and not 0."""
    saved = torch_stage.checkpoints / "step_690"
    saved.mkdir()
    (saved / "model.bin").write_bytes(b"w")
    os.utime(saved / "model.bin", (4_000_000_000, 4_000_000_000))
    done = torch_stage.envguard("timeline", "--since-checkpoint", "step_690", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 3
    assert answer["unknown"][0]["what"] == "what changed since step_690"
    assert "lies in the future" in answer["unknown"][0]["why"]
    assert answer["events"][0]["confidence"] == "weak"
