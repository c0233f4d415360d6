"""What a person has to know before and after a restore: whose environment, who is in the way, what was never met."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.permissions import envguard_held_to_modes
from tests.restore.conftest import Swapped


def flat(text: str) -> str:
    return " ".join(text.split())


def edit_through(stage: Stage) -> Path:
    """Edits an installed file in place, and with it the archive that it is linked from."""
    file = stage.site / "transformers" / "__init__.py"
    assert file.stat().st_nlink > 1
    with file.open("a") as stream:
        stream.write("# patched\n")
    return file


def test_fetch_helps_where_the_only_source_is_the_one_that_was_edited(torch_stage: Stage, story_wheels: Path) -> None:
    (torch_stage.checkpoints / "step_10").mkdir()
    (torch_stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    assert torch_stage.envguard("snapshot", "--into", "step_10").returncode == 0
    file = torch_stage.site / "transformers" / "__init__.py"
    as_installed = file.read_bytes()
    edit_through(torch_stage)
    refused = torch_stage.envguard("restore", "step_10", "-y")
    assert refused.returncode == 4
    assert "error: transformers 5.6.0: its one source on this machine is not sound" in refused.stderr
    assert "`--fetch` downloads" in refused.stderr
    with serve_index(story_wheels) as index:
        done = torch_stage.envguard("restore", "step_10", "-y", "--fetch", extra={"UV_DEFAULT_INDEX": index})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fetched" in done.stdout
    assert file.read_bytes() == as_installed
    assert torch_stage.envguard("diff", "step_10").returncode == 0


def test_an_unstamped_checkpoint_is_older_than_an_edit(torch_stage: Stage) -> None:
    (torch_stage.checkpoints / "step_20").mkdir()
    (torch_stage.checkpoints / "step_20" / "model.bin").write_bytes(b"weights")
    time.sleep(2.1)  # what is written within two seconds of an install is not known to be an edit
    file = torch_stage.site / "transformers" / "__init__.py"
    as_installed = file.read_bytes()
    file.unlink()  # as an editor does that writes a new file: the cache keeps the old one
    file.write_bytes(as_installed + b"# patched\n")
    diff = torch_stage.envguard("diff", "step_20")
    assert diff.returncode == 1
    assert "transformers/__init__.py" in diff.stdout
    done = torch_stage.envguard("restore", "step_20", "-y")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its files were edited after the checkpoint was saved" in flat(done.stdout)
    assert file.read_bytes() == as_installed


def test_what_the_reference_lacked_itself_is_no_new_damage(stage: Stage) -> None:
    build_wheel(stage.wheels, "stamper", "1.0", requires=["click", "rich"])
    build_wheel(stage.wheels, "click", "8.0")
    build_wheel(stage.wheels, "user", "1.0", requires=["stamper>=2"])
    build_wheel(stage.wheels, "stamper", "2.0")
    stage.install("stamper==1.0", arguments=["--no-deps"])
    (stage.checkpoints / "step_10").mkdir()
    (stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    stage.install("user")
    plan = flat(stage.envguard("restore", "step_10", "--dry-run").stdout)
    assert "stamper lacks what it requires, as it did at step_10: click, rich" in plan
    assert plan.count("a requirement will be broken") == 1  # what came later needs stamper 2
    done = flat(stage.envguard("restore", "step_10", "-y").stdout)
    assert "a requirement is broken now: user 1.0 requires `stamper>=2`" in done
    assert "will be broken" not in done


def test_a_plan_says_who_runs_from_the_environment(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    sleeping = [str(swapped.stage.python), "-c", "import torch, time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(sleeping, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        plan = swapped.stage.envguard("restore", "step_690", "--dry-run")
        process.terminate()
    assert plan.returncode == 4
    assert f"process(es) run from {swapped.stage.venv}: PID {process.pid}" in flat(plan.stdout)
    assert swapped.stage.envguard("restore", "step_690", "--dry-run").returncode == 0


def test_a_plan_says_that_the_environment_takes_no_writes(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    swapped.stage.envguard("snapshot")  # makes the state folder
    site = swapped.stage.site
    mode = site.stat().st_mode
    site.chmod(0o555)
    try:
        plan = envguard_held_to_modes(swapped.stage, "restore", "step_690", "--dry-run")
    finally:
        site.chmod(mode)
    assert plan.returncode == 4
    assert f"{site}: it cannot be written by this user" in flat(plan.stdout)


@pytest.mark.parametrize("words", [("restore", "step_690", "-y"), ("snapshot", "--into", "step_690")])
def test_what_may_not_be_written_is_named_as_such(swapped: Swapped, words: tuple[str, ...]) -> None:
    folder = swapped.save_checkpoint("step_690")
    (swapped.stage.project / "envguard.toml").write_text("")
    swapped.stage.envguard("snapshot")
    closed = swapped.stage.project / ".envguard" if words[0] == "restore" else folder
    if words[0] != "restore":
        (folder / "envguard.json").unlink()
        (folder / "model.pt").write_bytes(b"weights")  # newer than the swap
    closed.chmod(0o555)
    try:
        done = envguard_held_to_modes(swapped.stage, *words)
    finally:
        closed.chmod(0o755)
    told = flat(done.stderr)
    if words[0] == "restore":
        assert done.returncode == 4
        assert f"no place for a roll-back point: {closed}: Permission denied; nothing was changed" in told
        assert "hint: " in told
    else:
        assert done.returncode == 2
        assert f"no stamp can be written into {folder}: Permission denied" in told


def test_a_roll_back_that_cannot_be_written_down_says_so(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    (swapped.stage.project / "envguard.toml").write_text("")
    assert swapped.stage.envguard("restore", "step_690", "-y").returncode == 0
    (journal,) = (swapped.stage.project / ".envguard").glob("journal*")
    journal.unlink()
    journal.mkdir()
    done = swapped.stage.envguard("restore", "--rollback", "-y")
    assert done.returncode == 0, done.stderr
    assert "note: the journal cannot be written: Is a directory" in flat(done.stdout)
