"""What git and the file system tell of the training code since a checkpoint, with a stamp and without one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage

WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *WHO, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(params=[True, False], ids=["stamped", "unstamped"])
def project(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """A tree with an edit that the run had, and a checkpoint."""
    (stage.project / ".gitignore").write_text(".venv\ncheckpoints\n.envguard\n")
    for name in ("train", "model", "other"):
        (stage.project / f"{name}.py").write_text("RATE = 1\n")
    git(stage.project, "init", "--quiet")
    git(stage.project, "add", "-A")
    git(stage.project, "commit", "--quiet", "-m", "first")
    (stage.project / "other.py").write_text("RATE = 7\n")
    time.sleep(1.1)  # the reflog knows whole seconds
    (stage.checkpoints / "step_10").mkdir()
    (stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    if request.param:
        assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    time.sleep(1.1)
    return stage


def stamped(stage: Stage) -> bool:
    return (stage.checkpoints / "step_10" / "envguard.json").exists()


def told(stage: Stage) -> tuple[int, str, str]:
    """Exit code, title and text of the only finding."""
    done = stage.envguard("timeline", "--since-checkpoint", "step_10", "--json")
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert len(findings) <= 1
    return done.returncode, *((findings[0]["title"], findings[0]["says"]) if findings else ("", ""))


def test_nothing_happened(project: Stage) -> None:
    assert told(project) == (0, "", "")


def amended(folder: Path) -> None:
    git(folder, "commit", "--quiet", "--amend", "-m", "the same files")


def there_and_back(folder: Path) -> None:
    git(folder, "checkout", "--quiet", "-b", "elsewhere")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    git(folder, "checkout", "--quiet", "-")


def rewritten_alike(folder: Path) -> None:
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text("RATE = 9\n")
    (folder / "train.py").write_text(text)


@pytest.mark.parametrize("happens", [amended, there_and_back, rewritten_alike])
def test_what_leaves_the_files_as_they_were_is_no_change(project: Stage, happens: Callable[[Path], None]) -> None:
    happens(project.project)
    assert told(project) == (0, "", "")
    if stamped(project):
        done = project.envguard("diff", "step_10", "--json")
        assert (done.returncode, json.loads(done.stdout)["match"]) == (0, True)


def test_another_commit_of_other_files(project: Stage) -> None:
    (project.project / "train.py").write_text("RATE = 2\n")
    git(project.project, "commit", "--quiet", "-m", "second", "train.py")
    code, title, says = told(project)
    assert (code, title) == (1, "the code changed after step_10")
    command = says.partition("`")[2].partition("`")[0]
    shown = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "+RATE = 2" in shown.stdout


def test_a_deleted_file_is_not_called_edited(project: Stage) -> None:
    (project.project / "train.py").unlink()
    code, title, says = told(project)
    sure = stamped(project)
    assert (code, title) == (1, f"the code {'changed' if sure else 'may have changed'} after step_10")
    assert says == (
        "Deleted and not committed: train.py."
        if sure
        else "Perhaps after it, since only an inode or a folder is newer: train.py."
    )


def test_a_renamed_file(project: Stage) -> None:
    git(project.project, "mv", "model.py", "net.py")
    code, _, says = told(project)
    assert code == 1
    assert "net.py" in says
    assert "model.py" in says


def test_an_edit_that_keeps_the_time(project: Stage) -> None:
    file = project.project / "train.py"
    subprocess.run(["cp", "-p", str(file), str(project.root / "kept")], check=True)
    file.write_text("RATE = 3\n")
    subprocess.run(["touch", "-r", str(project.root / "kept"), str(file)], check=True)
    code, title, says = told(project)
    assert (code, "train.py" in says) == (1, True)
    assert title == f"the code {'changed' if stamped(project) else 'may have changed'} after step_10"


def test_edits_that_the_run_had_and_that_were_put_away(project: Stage) -> None:
    git(project.project, "stash", "--quiet")
    code, title, says = told(project)
    if stamped(project):
        assert (code, title) == (1, "the code changed after step_10")
        assert says == "Edits that step_10 had, and that are gone: other.py."
    else:  # nobody wrote down that there were any
        assert (code, title) == (0, "")
