"""What a uv that was cut short leaves, and what others change meanwhile: the whole tree is compared, not the plan."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envguard.demo.index import serve_index
from envguard.restore import service, undoing, uv
from envguard.restore.uv import Ran
from tests.restore.conftest import Swapped, fingerprint, tree
from tests.restore.test_killed import killed


def temporary_file(swapped: Swapped) -> Path:
    path = swapped.stage.site / "torch" / ".tmpq1W2e3"
    path.write_bytes(b"half of a file")
    return path


def temporary_script(swapped: Swapped) -> Path:
    path = swapped.stage.venv / "bin" / ".tmpZZZZZZ"
    path.write_bytes(b"#!")
    return path


def temporary_folder(swapped: Swapped) -> Path:
    path = swapped.stage.site / ".tmpAbCdEf"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "file").write_bytes(b"")
    return path


def data_folder(swapped: Swapped) -> Path:
    path = swapped.stage.site / "torch-2.11.0+cu128.data"
    (path / "scripts").mkdir(parents=True)
    (path / "scripts" / "torchrun").write_bytes(b"#!python\n")
    return path


def temporary_in_a_deep_folder(swapped: Swapped) -> Path:
    path = swapped.stage.site / "torch" / "nn" / ".tmp000000"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    return path


LITTER = [temporary_file, temporary_script, temporary_folder, data_folder, temporary_in_a_deep_folder]


@pytest.fixture
def from_an_index(swapped: Swapped, story_wheels: Path) -> Swapped:
    """The wanted build in uv's cache under a pointer, so that it is installed by lock first."""
    with serve_index(story_wheels) as index:
        swapped.stage.install("torch==2.11.0+cu128", "transformers==5.6.0", index=index, arguments=["--reinstall"])
    swapped.before = fingerprint(swapped.stage)
    swapped.stage.install("sglang")
    return swapped


def uv_that_dies(monkeypatch: pytest.MonkeyPatch, times: int, leave: Callable[[], object]) -> list[Sequence[str]]:
    """Makes so many runs of uv end by a kill that leaves something; returns the command lines of all runs."""
    run, ran = uv.run, []

    def dying(arguments: Sequence[str], cache: Path, hold: tuple[int, ...] = ()) -> Ran:
        ran.append(arguments)
        done = run(arguments, cache, hold)
        if len(ran) > times:
            return done
        leave()
        return Ran(-signal.SIGKILL, "")

    monkeypatch.setattr(uv, "run", dying)
    return ran


@pytest.mark.parametrize("litter", LITTER, ids=lambda each: each.__name__)
def test_uv_alone_is_killed_and_another_attempt_goes_through(
    from_an_index: Swapped, monkeypatch: pytest.MonkeyPatch, litter: Callable[[Swapped], Path]
) -> None:
    ran = uv_that_dies(monkeypatch, 1, lambda: litter(from_an_index))
    outcome = from_an_index.restore()
    assert (outcome.failure, outcome.verified, outcome.differs) == (None, True, ())
    assert len(ran) == 2
    left = [path for path in tree(from_an_index.stage.venv) if ".tmp" in path or ".data" in path]
    assert not left


@pytest.mark.parametrize("litter", LITTER, ids=lambda each: each.__name__)
def test_uv_is_killed_for_good(
    from_an_index: Swapped, monkeypatch: pytest.MonkeyPatch, litter: Callable[[Swapped], Path]
) -> None:
    before = tree(from_an_index.stage.venv)
    uv_that_dies(monkeypatch, 99, lambda: litter(from_an_index))
    outcome = from_an_index.restore()
    assert (outcome.applied, outcome.rolled_back, outcome.differs) == (False, True, ())
    assert tree(from_an_index.stage.venv) == before


@pytest.mark.parametrize("litter", LITTER, ids=lambda each: each.__name__)
def test_what_a_killed_restore_leaves_is_gone_after_the_roll_back(
    swapped: Swapped, litter: Callable[[Swapped], Path]
) -> None:
    (swapped.stage.project / "envguard.toml").write_text("")
    swapped.save_checkpoint("step_690")
    before = tree(swapped.stage.venv)
    killed(swapped.stage, "installed", "restore", "step_690", "-y")
    litter(swapped)
    undone = swapped.stage.envguard("restore", "--rollback", "-y")
    assert undone.returncode == 0, undone.stderr
    assert "is as it was before the restore" in undone.stdout
    assert tree(swapped.stage.venv) == before


def test_a_temporary_file_that_was_there_before_stays(swapped: Swapped) -> None:
    mine = [swapped.stage.site / ".tmpMine01", swapped.stage.venv / ".tmpMine02"]
    for path in mine:
        path.write_text("a user's own")
    assert swapped.restore().verified
    assert undoing.roll_back(str(swapped.stage.venv), swapped.state).rolled_back
    assert all(path.read_text() == "a user's own" for path in mine)


def add_a_file(swapped: Swapped) -> Path:
    path = swapped.stage.site / "added.py"
    path.write_text("x = 1\n")
    return path


def edit_a_file(swapped: Swapped) -> Path:
    path = swapped.stage.site / "transformers" / "__init__.py"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data + b"# edited\n")
    return path


def change_a_mode(swapped: Swapped) -> Path:
    path = swapped.stage.venv / "pyvenv.cfg"
    path.chmod(0o600)
    return path


def remove_a_file(swapped: Swapped) -> Path:
    path = swapped.stage.venv / "bin" / "activate"
    path.unlink()
    return path


def turn_a_link(swapped: Swapped) -> Path:
    path = swapped.stage.venv / "lib64"
    path.unlink()
    path.symlink_to("nowhere")
    return path


@pytest.mark.parametrize(
    "change", [add_a_file, edit_a_file, change_a_mode, remove_a_file, turn_a_link], ids=lambda each: each.__name__
)
def test_what_others_change_while_a_restore_fails_is_named(
    swapped: Swapped, monkeypatch: pytest.MonkeyPatch, change: Callable[[Swapped], Path]
) -> None:
    changed: list[Path] = []
    uv_that_dies(monkeypatch, 99, lambda: changed.append(change(swapped)) if not changed else None)
    request = swapped.request()
    plan = service.find_and_plan(request)
    outcome = service.carry_out(request, plan)
    assert outcome.rolled_back
    assert outcome.differs == (str(changed[0]),)
    assert undoing.pending(str(swapped.stage.venv), swapped.state) is None


def test_a_restored_tree_with_a_file_of_others_is_said(swapped: Swapped, monkeypatch: pytest.MonkeyPatch) -> None:
    run = uv.run

    def beside(arguments: Sequence[str], cache: Path, hold: tuple[int, ...] = ()) -> Ran:
        add_a_file(swapped)
        return run(arguments, cache, hold)

    monkeypatch.setattr(uv, "run", beside)
    outcome = swapped.restore()
    assert outcome.verified
    assert outcome.differs == (str(swapped.stage.site / "added.py"),)


def spoil_a_kept_copy(swapped: Swapped) -> None:
    """Of the same size, mode and time: only the content tells."""
    (point,) = (swapped.state / "restore").glob("*/point")
    for kept in (point / "files").iterdir():
        if b"2.11.0+cu130" in kept.read_bytes():
            status = kept.stat()
            kept.write_bytes(kept.read_bytes().replace(b"2.11.0+cu130", b"2.11.0+cu131"))
            os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_roll_back_is_held_against_content(swapped: Swapped) -> None:
    assert swapped.restore().verified
    spoil_a_kept_copy(swapped)
    with pytest.raises(Exception, match="torch is not by content what it was") as error:
        undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert getattr(error.value, "code", None) == 5


@pytest.mark.parametrize("nested", ["envs/other/conda-meta/history", "pkgs/cache/urls.txt"])
def test_other_environments_in_a_conda_base_are_not_listed(swapped: Swapped, nested: str) -> None:
    from envguard.restore.listing import list_tree

    (swapped.stage.venv / "conda-meta").mkdir()
    path = swapped.stage.venv / nested
    path.parent.mkdir(parents=True)
    path.write_text("")
    found = list_tree([str(swapped.stage.venv)])
    assert str(path) not in found.of
    assert str(swapped.stage.site / "torch" / "version.py") in found.of
    shutil.rmtree(swapped.stage.venv / "conda-meta")


def without_a_lock_file(swapped: Swapped) -> None:
    """As `python -m venv` makes it, and pip installs into it."""
    (swapped.stage.venv / ".lock").unlink(missing_ok=True)
    (swapped.stage.project / "envguard.toml").write_text("")
    swapped.save_checkpoint("step_690")


@pytest.mark.parametrize("step", ["begun", "saved", "installing", "installed"])
def test_no_lock_file_is_left_where_there_was_none(swapped: Swapped, step: str) -> None:
    without_a_lock_file(swapped)
    before = tree(swapped.stage.venv)
    killed(swapped.stage, step, "restore", "step_690", "-y")
    undone = swapped.stage.envguard("restore", "--rollback", "-y")
    assert undone.returncode == 0, undone.stderr
    assert tree(swapped.stage.venv) == before


def test_a_lock_file_that_an_installer_holds_stays(swapped: Swapped) -> None:
    without_a_lock_file(swapped)
    killed(swapped.stage, "begun", "restore", "step_690", "-y")
    with (swapped.stage.venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        undone = swapped.stage.envguard("restore", "--rollback", "-y")
        assert undone.returncode == 0, undone.stderr
        assert (swapped.stage.venv / ".lock").exists()
