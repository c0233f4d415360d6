"""What packages stand on: the environment that is meant, its Python, the sources of editable installs, the code."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from tests.interpreters import pythons
from tests.timeline.test_removals import checkpoint, source_tree, timeline, titles


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_wrong_one_of_two_environments_is_named_by_all(torch_stage: Stage) -> None:
    checkpoint(torch_stage, "step_10", stamped=True)
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python.resolve()), str(other))
    where = ("--offline", "--no-index", "--find-links", str(torch_stage.wheels), "--python", str(other))
    torch_stage.uv("pip", "install", *where, "torch==2.11.0+cu130")
    wrong = {"VIRTUAL_ENV": str(other)}
    says = f"step_10 was made in {torch_stage.venv}, another environment, which is still there"

    done = torch_stage.envguard("timeline", "--since-checkpoint", "step_10", extra=wrong)
    assert done.returncode == 1
    assert "1. step_10 was made in another environment" in done.stdout
    assert says in " ".join(done.stdout.split())
    assert "torch replaced" not in done.stdout  # nothing was: this one never had another
    assert says in " ".join(torch_stage.envguard("diff", "step_10", extra=wrong).stderr.split())
    assert says in " ".join(torch_stage.envguard("launch", "--", "true", extra=wrong).stderr.split())
    # Which of the two is meant must be said: the one that only happens to be active is not changed.
    refused = torch_stage.envguard("restore", "step_10", "--dry-run", extra=wrong)
    assert refused.returncode == 2
    assert f"was made in {torch_stage.venv}, and {other} (VIRTUAL_ENV) would be changed" in refused.stderr
    restore = torch_stage.envguard("restore", "step_10", "--dry-run", "--python", str(other), extra=wrong)
    assert says in " ".join(restore.stdout.split())
    assert f"restore of {other} to step_10" in " ".join(restore.stdout.split())

    for command in (("diff", "step_10"), ("restore", "step_10", "--dry-run"), ("launch", "--dry-run", "--", "true")):
        right = torch_stage.envguard(*command)
        assert right.returncode == 0
        assert "another environment" not in right.stdout + right.stderr


def test_a_project_that_was_moved_has_one_environment(torch_stage: Stage) -> None:
    """The old prefix is gone: the stamp speaks of what goes on in the new place."""
    checkpoint(torch_stage, "step_10", stamped=True)
    moved = torch_stage.root / "moved"
    torch_stage.project.rename(moved)
    done = torch_stage.envguard("diff", "step_10", cwd=moved)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_python_goes_before_the_packages_that_go_with_it(torch_stage: Stage) -> None:
    here = torch_stage.python.resolve()
    others = [path for version, path in sorted(pythons().items()) if path.resolve() != here and version >= (3, 8)]
    if not others:
        pytest.skip("one Python alone is installed here")
    checkpoint(torch_stage, "step_10", stamped=True)
    time.sleep(0.6)
    torch_stage.uv("venv", "--quiet", "--clear", "--python", str(others[-1]), str(torch_stage.venv))
    torch_stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_10")
    assert code == 1
    assert titles(answer)[0].startswith("Python replaced ")
    assert "the environment was made anew" in answer["findings"][0]["says"]
    (event,) = (event for event in answer["events"] if event["subject"] == "python")
    assert event["confidence"] == "certain"
    refused = torch_stage.envguard("launch", "--", "true")
    assert f"uv venv --clear --python {event['from']}" in refused.stderr
    # The stamp's builds are of the other Python: no witness against what is installed for this one.
    assert torch_stage.envguard("verify").returncode == 0


def test_an_environment_that_was_made_anew_says_so(torch_stage: Stage) -> None:
    checkpoint(torch_stage, "step_10", stamped=True)
    time.sleep(0.6)
    torch_stage.uv("venv", "--quiet", "--clear", "--python", str(torch_stage.python.resolve()), str(torch_stage.venv))
    torch_stage.install("torch==2.11.0+cu130", "transformers==5.6.0")
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_10")
    assert "The environment was made anew just before" in answer["findings"][0]["says"]


def test_an_editable_install_whose_source_is_gone(stage: Stage) -> None:
    tree = source_tree(stage)
    stage.install("-e", str(tree))
    checkpoint(stage, "step_10", stamped=True)
    shutil.move(tree, stage.root / "elsewhere")
    code, answer = timeline(stage, "--since-checkpoint", "step_10")
    assert (code, titles(answer)) == (1, ["made has lost its source"])
    assert not [item for item in answer["unknown"] if "git history" in item["what"]]
    verify = stage.envguard("verify")
    assert verify.returncode == 1
    assert str(tree) in verify.stdout
    diff = stage.envguard("diff", "step_10")
    assert diff.returncode == 1
    assert "which is not there: whatever imports it fails" in " ".join(diff.stdout.split())
    assert "undetermined" not in diff.stdout
    restore = stage.envguard("restore", "step_10", "--dry-run")
    assert restore.stdout.startswith("no step is known to be needed")


def test_code_that_was_checked_out_or_edited_since(torch_stage: Stage) -> None:
    project = torch_stage.project
    (project / ".gitignore").write_text(".venv\ncheckpoints\n.envguard\n")
    (project / "train.py").write_text("print(1)\n")
    git(project, "init", "--quiet")
    git(project, "add", "-A")
    git(project, "commit", "--quiet", "-m", "first")
    git(project, "checkout", "--quiet", "-b", "other")
    (project / "train.py").write_text("print(2)\n")
    git(project, "commit", "--quiet", "-am", "second")
    git(project, "checkout", "--quiet", "main")
    time.sleep(1.1)  # the reflog knows whole seconds
    checkpoint(torch_stage, "step_10", stamped=True)
    checkpoint(torch_stage, "step_20")
    for name in ("step_10", "step_20"):
        assert timeline(torch_stage, "--since-checkpoint", name)[1]["findings"] == []
    time.sleep(1.1)
    git(project, "checkout", "--quiet", "other")
    for name in ("step_10", "step_20"):
        code, answer = timeline(torch_stage, "--since-checkpoint", name)
        assert (code, titles(answer)) == (1, [f"the code changed after {name}"])
    git(project, "checkout", "--quiet", "main")
    for name in ("step_10", "step_20"):  # there and back is no change
        assert timeline(torch_stage, "--since-checkpoint", name)[1]["findings"] == []
    (project / "train.py").write_text("print(3)\n")
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_20")
    assert "Edited and not committed: train.py." in answer["findings"][0]["says"]
    diff = torch_stage.envguard("diff", "step_10").stdout
    assert diff.splitlines()[0].endswith("uncommitted edits that were not there: train.py")
    assert "none →" not in diff
