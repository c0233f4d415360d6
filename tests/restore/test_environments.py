"""Locks, roll-back points and what a kill leaves belong to an environment: whichever project, path or user asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.packages.restore_register import REGISTER
from envguard.demo.stage import Stage
from envguard.errors import RestoreError
from envguard.restore import service, transaction, undoing
from envguard.restore.locks import exclusive
from tests.restore.conftest import Swapped, fingerprint, tree
from tests.restore.test_killed import killed
from tests.restore.test_said_first import flat


@pytest.fixture
def project(swapped: Swapped) -> Swapped:
    """The story in a project that keeps its own state."""
    (swapped.stage.project / "envguard.toml").write_text("")
    swapped.save_checkpoint("step_690")
    return Swapped(swapped.stage, swapped.before, swapped.stage.project / ".envguard")


def another_project(project: Swapped) -> Path:
    """A second project that restores the first one's environment."""
    folder = project.stage.root / "another"
    folder.mkdir()
    (folder / "envguard.toml").write_text('checkpoints = ["../project/checkpoints"]\n')
    return folder


def by_itself(stage: Stage) -> str:
    return str(stage.venv)


def by_a_link(stage: Stage) -> str:
    link = stage.root / "linked"
    link.symlink_to(stage.venv)
    return str(link)


def by_its_interpreter(stage: Stage) -> str:
    return str(stage.python)


def by_a_linked_parent(stage: Stage) -> str:
    link = stage.root / "linked-project"
    link.symlink_to(stage.project)
    return str(link / ".venv")


def is_whole(project: Swapped) -> bool:
    """Whether every package is of the reference's build, by the content of each file."""
    now = {package.name: package.build for package in fingerprint(project.stage).packages}
    return all(now[package.name] == package.build for package in project.before.packages)


NAMES = [by_itself, by_a_link, by_its_interpreter, by_a_linked_parent]


@pytest.mark.parametrize("name", NAMES, ids=lambda each: each.__name__)
def test_a_killed_restore_is_said_and_undone_from_anywhere(project: Swapped, name: Callable[[Stage], str]) -> None:
    before = tree(project.stage.venv)
    killed(project.stage, "installing", "restore", "step_690", "-y")
    python = name(project.stage)
    elsewhere = another_project(project)
    said = project.stage.envguard("diff", "live", "live", "--python", python, cwd=elsewhere)
    assert "a restore to step_690 was killed" in said.stderr
    undone = project.stage.envguard("restore", "--rollback", "-y", "--python", python, cwd=elsewhere)
    assert undone.returncode == 0, undone.stderr
    assert tree(project.stage.venv) == before
    assert "killed" not in project.stage.envguard("diff", "live", "live").stderr
    assert not transaction.transactions(project.state)


def test_a_killed_restore_of_another_environment_is_named_with_its_command(project: Swapped) -> None:
    killed(project.stage, "installing", "restore", "step_690", "-y")
    other = project.stage.root / "venv-b"
    project.stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    said = flat(project.stage.envguard("diff", "live", "live", "--python", str(other)).stderr)
    command = f"envguard restore --rollback -y --python {project.stage.venv}"
    assert f"`{command}` puts it right" in said
    undone = project.stage.envguard(*command.split()[1:])
    assert undone.returncode == 0, undone.stderr
    assert undoing.pending(str(project.stage.venv), project.state) is None


def test_a_roll_back_of_one_environment_leaves_the_other(project: Swapped) -> None:
    assert project.restore().verified
    other = project.stage.root / "venv-b"
    project.stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    restored = tree(project.stage.venv)
    refused = project.stage.envguard("restore", "--rollback", "-y", "--python", str(other))
    assert refused.returncode == 4
    assert f"no restore of {other} was begun or carried out" in flat(refused.stderr)
    assert tree(project.stage.venv) == restored


def test_a_restore_of_one_environment_keeps_the_others_roll_back_point(project: Swapped) -> None:
    before = tree(project.stage.venv)
    assert project.restore().verified
    first, second = project.stage.venv, project.stage.root / "venv-b"
    project.stage.venv = second
    project.stage.make_venv()
    project.stage.install("torch==2.11.0+cu130")
    before_b = tree(second)
    assert project.restore().verified
    assert undoing.roll_back(str(first), project.state).rolled_back
    assert tree(first) == before
    assert undoing.roll_back(str(second), project.state).rolled_back
    assert tree(second) == before_b


def test_the_last_restore_of_an_environment_is_undone_whichever_project_made_it(project: Swapped) -> None:
    assert project.restore().verified
    stage, elsewhere = project.stage, another_project(project)
    stage.install("transformers==5.8.1", arguments=["--no-deps"])
    between = tree(stage.venv)
    done = stage.envguard("restore", "step_690", "-y", "--python", str(stage.venv), cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    undone = stage.envguard("restore", "--rollback", "-y")
    assert undone.returncode == 0, undone.stderr
    assert tree(stage.venv, skip=("__pycache__",)) == {
        path: entry for path, entry in between.items() if path != REGISTER
    }
    again = stage.envguard("restore", "--rollback", "-y")
    assert again.returncode == 4  # the older point went with the newer restore


def test_two_projects_do_not_restore_one_environment_at_once(project: Swapped) -> None:
    before = tree(project.stage.venv)
    elsewhere = another_project(project)
    link = by_a_linked_parent(project.stage)
    with exclusive(link):
        done = project.stage.envguard("restore", "step_690", "-y", "--python", str(project.stage.venv), cwd=elsewhere)
        undone = project.stage.envguard("restore", "--rollback", "-y")
    assert done.returncode == 4
    assert "another restore is at work" in flat(done.stderr)
    assert undone.returncode == 4
    assert tree(project.stage.venv) == before


def without_venv_marker(stage: Stage) -> None:
    """Makes the prefix one that uv locks nothing in, as conda's and the system's are."""
    (stage.venv / "conda-meta").mkdir()


def test_restores_at_the_same_time_end_whole(project: Swapped) -> None:
    """Two projects, one prefix, started together: one restores, the other is refused or finds it done."""
    without_venv_marker(project.stage)
    stage, elsewhere = project.stage, another_project(project)
    command = stage.envguard_command("restore", "step_690", "-y", "--python", str(stage.venv))
    running = [
        subprocess.Popen(command, cwd=cwd, env=stage.environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for cwd in (stage.project, elsewhere)
    ]
    said = [process.communicate()[0].decode() for process in running]
    codes = sorted(process.returncode for process in running)
    assert codes in ([0, 0], [0, 4]), said
    assert is_whole(project)


def delete_state(project: Swapped) -> None:
    shutil.rmtree(project.state)


def copy_environment(project: Swapped) -> None:
    """The environment itself is gone, and a copy of it lies elsewhere."""
    copy = project.stage.root / "copy"
    shutil.copytree(project.stage.venv, copy, symlinks=True)
    shutil.rmtree(project.stage.venv)
    project.stage.venv = copy


@pytest.mark.parametrize("lose", [delete_state, copy_environment], ids=lambda each: each.__name__)
def test_a_killed_restore_whose_roll_back_point_is_out_of_reach(
    project: Swapped, lose: Callable[[Swapped], None]
) -> None:
    stage = project.stage
    killed(stage, "installing", "restore", "step_690", "-y")
    lose(project)
    python = ("--python", str(stage.venv))
    said = flat(stage.envguard("diff", "live", "live", *python).stderr)
    assert "may be half-installed" in said
    for words in (("restore", "step_690", "-y"), ("restore", "--rollback", "-y")):
        refused = stage.envguard(*words, *python)
        assert refused.returncode == 4
        assert "`envguard restore step_690 --force`" in flat(refused.stderr)
    done = stage.envguard("restore", "step_690", "--force", "-y", *python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_whole(project)
    assert "half-installed" not in stage.envguard("diff", "live", "live", *python).stderr


def test_an_environment_that_was_made_anew_has_no_past_restore(project: Swapped) -> None:
    killed(project.stage, "installing", "restore", "step_690", "-y")
    shutil.move(project.stage.venv, project.stage.root / "old-venv")
    project.stage.make_venv()
    assert undoing.pending(str(project.stage.venv), project.state) is None
    with pytest.raises(RestoreError, match="nothing to roll back"):
        undoing.roll_back(str(project.stage.venv), project.state)


def test_a_roll_back_point_of_an_envguard_without_a_register_is_read(project: Swapped) -> None:
    before = tree(project.stage.venv)
    assert project.restore().verified
    (kept,) = transaction.transactions(project.state)
    lines = kept.journal.read_text().splitlines(keepends=True)
    first = lines[0].replace(f'"inode":{os.stat(project.stage.venv).st_ino},', "")
    assert first != lines[0]
    kept.journal.write_text("".join([first, *lines[1:]]))
    (project.stage.venv / REGISTER).unlink()
    assert undoing.roll_back(str(project.stage.venv), project.state).rolled_back
    assert tree(project.stage.venv) == before


def test_an_environment_that_cannot_be_written_is_left_as_it_is(project: Swapped) -> None:
    request = project.request()
    plan = service.find_and_plan(request)
    (project.stage.venv / REGISTER).mkdir()
    with pytest.raises(RestoreError, match="nothing was changed"):
        service.carry_out(request, plan)
    assert not transaction.transactions(project.state)


def test_no_test_can_restore_into_the_interpreter_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "prefix").symlink_to(sys.base_prefix)
    with pytest.raises(RestoreError, match="is at work"), exclusive(str(tmp_path / "prefix")):
        pass
