"""What a mistaken or unlucky person meets: a clear error and hint, the right code, nothing changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from tests.permissions import envguard_held_to_modes, unreadable


def state_of(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, size and mtime of everything below `root` outside envguard's own state."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".envguard"]
        for name in [*names, *folders]:
            status = Path(folder, name).lstat()
            found[str(Path(folder, name))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def fails(stage: Stage, *arguments: str, code: int, says: str, cwd: Path | None = None) -> None:
    """The command returns `code`, its first line is an error that says so, a hint follows, nothing has changed."""
    before = state_of(stage.project)
    done = stage.envguard(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: "), done.stderr
    assert says in done.stderr
    assert any(line.startswith("hint: ") for line in lines), done.stderr
    assert "Traceback" not in done.stderr
    assert state_of(stage.project) == before


@pytest.mark.parametrize("command", [["snapshot"], ["timeline"], ["diff", "live", "live"]])
def test_no_environment(tmp_path: Path, command: list[str]) -> None:
    stage = Stage(tmp_path / "stage")
    fails(stage, *command, "--python", str(tmp_path / "nothing"), code=2, says="nothing")


@pytest.mark.parametrize(
    "command",
    [
        ["timeline", "--since-checkpoint", "step_960"],
        ["diff", "step_960"],
        ["restore", "step_960", "-y"],
        ["launch", "--against", "step_960", "--", "true"],
        ["snapshot", "--into", "step_960"],
    ],
    ids=lambda words: words[0],
)
def test_no_checkpoint_of_that_name_lists_the_nearest(torch_stage: Stage, command: list[str]) -> None:
    for step in (100, 690, 950):
        (torch_stage.checkpoints / f"step_{step}").mkdir()
        (torch_stage.checkpoints / f"step_{step}" / "model.bin").write_bytes(b"x")
    fails(torch_stage, *command, code=2, says="step_950")


def test_launch_without_any_reference_says_how_to_begin(torch_stage: Stage) -> None:
    fails(torch_stage, "launch", "--", "true", code=2, says="--baseline")


def test_restore_without_yes_where_nobody_can_be_asked(torch_stage: Stage) -> None:
    (torch_stage.checkpoints / "step_1").mkdir()
    (torch_stage.checkpoints / "step_1" / "model.bin").write_bytes(b"x")
    torch_stage.envguard("snapshot", "--into", "step_1")
    fails(torch_stage, "restore", "step_1", code=2, says="-y")


def test_an_unstamped_checkpoint_is_never_a_match(torch_stage: Stage) -> None:
    (torch_stage.checkpoints / "step_1").mkdir()
    (torch_stage.checkpoints / "step_1" / "model.bin").write_bytes(b"x")
    done = torch_stage.envguard("diff", "step_1", "--json")
    assert done.returncode in (1, 3)
    assert not json.loads(done.stdout)["match"]


def test_a_broken_dist_info_is_a_finding_and_no_crash(torch_stage: Stage) -> None:
    metadata = next(torch_stage.site.glob("transformers-*.dist-info")) / "METADATA"
    metadata.unlink()  # a hard link into the cache is cut, not written through
    metadata.write_bytes(b"")
    done = torch_stage.envguard("snapshot", "--json")
    assert done.returncode in (0, 1), done.stderr
    value = json.loads(done.stdout)
    assert any("transformers" in problem["subject"] + (problem["path"] or "") for problem in value["problems"])
    assert any(package["name"] == "transformers" for package in value["packages"])


def test_an_unreadable_site_packages_is_undetermined_and_named(torch_stage: Stage) -> None:
    with unreadable(torch_stage.site):
        done = envguard_held_to_modes(torch_stage, "snapshot", "--json")
    value = json.loads(done.stdout)
    assert done.returncode == 3
    assert any(str(torch_stage.site) in item["what"] + item["why"] for item in value["unknown"])


def test_a_checkpoint_that_cannot_be_read_is_not_said_to_be_missing(torch_stage: Stage) -> None:
    folder = torch_stage.checkpoints / "step_1"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"x")
    with unreadable(folder):
        done = envguard_held_to_modes(torch_stage, "diff", "step_1")
    assert done.returncode == 2
    assert f"{folder} could not be read: Permission denied" in done.stderr


def test_a_stamp_that_cannot_be_read_counts_as_none_and_is_said(torch_stage: Stage) -> None:
    folder = torch_stage.checkpoints / "step_1"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"x")
    (folder / "envguard.json").write_text("{")
    done = torch_stage.envguard("restore", str(folder), "-y")
    assert "the stamp cannot be read" in done.stdout
    assert torch_stage.envguard("diff", str(folder)).returncode in (1, 3)


def test_a_python_that_is_a_directory_without_interpreter(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    (tmp_path / "empty").mkdir()
    fails(stage, "snapshot", "--python", str(tmp_path / "empty"), code=2, says=str(tmp_path / "empty"))
