"""What a restore refuses, and what survives one that fails: with real processes, locks, disks and file attributes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_struct

from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.errors import RestoreError, RollbackError, UsageError
from envguard.model.fingerprint import Code, Package
from envguard.restore import service, undoing, uv
from envguard.restore.locks import exclusive
from envguard.restore.wanted import from_fingerprint
from tests.restore.conftest import Swapped, fingerprint, tree


@pytest.fixture
def running(swapped: Swapped) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [swapped.stage.python, "-c", "import torch, sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=swapped.stage.environ(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


def test_refused_while_a_process_runs_from_the_environment(
    swapped: Swapped, running: subprocess.Popen[bytes]
) -> None:
    before = tree(swapped.stage.venv)
    with pytest.raises(RestoreError, match=f"PID {running.pid}"):
        swapped.restore()
    assert tree(swapped.stage.venv) == before
    outcome = swapped.restore(force=True)
    assert outcome.verified
    assert any(f"PID {running.pid}" in note for note in outcome.notes)


def test_refused_while_uv_holds_the_environment(swapped: Swapped) -> None:
    before = tree(swapped.stage.venv)
    with (swapped.stage.venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RestoreError, match="is held"):
            swapped.restore()
    after = tree(swapped.stage.venv)
    assert {path for path in after if after[path] != before.get(path)} <= {".lock"}


def test_a_second_uv_is_kept_out_for_as_long_as_a_restore_lasts(swapped: Swapped) -> None:
    command = [uv.find_uv(), "pip", "uninstall", "--python", str(swapped.stage.python), "triton"]
    with exclusive(str(swapped.stage.venv)):
        waiting = subprocess.Popen(command, env=swapped.stage.environ(), stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.7)
        assert (swapped.stage.site / "triton").is_dir()
    assert waiting.wait(30) == 0
    assert not (swapped.stage.site / "triton").is_dir()


def externally_managed(tmp_path: Path) -> Path:
    """A prefix as a distribution lays it out: its own interpreter, and the marker of PEP 668."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = tmp_path / "usr"
    (prefix / "bin").mkdir(parents=True)
    # A copy: a link to the tester's interpreter starts, and names, the tester's own prefix.
    shutil.copyfile(Path(sys.executable).resolve(), prefix / "bin" / version)
    (prefix / "bin" / version).chmod(0o755)
    (prefix / "bin" / "python3").symlink_to(version)
    library = prefix / "lib" / version
    library.mkdir(parents=True)
    (library / "os.py").write_text("")
    (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=use apt\n")
    (prefix / "lib" / "python3" / "dist-packages").mkdir(parents=True)
    return prefix


def test_a_debian_managed_python_is_refused_in_plain_words(swapped: Swapped, tmp_path: Path) -> None:
    swapped.save_checkpoint("step_690")
    prefix = externally_managed(tmp_path)
    before = tree(prefix)
    interpreter = str(prefix / "bin" / "python3")
    assert locate(LiveHost(), interpreter, "/").prefix == str(prefix)  # nothing else may be restored into
    done = swapped.stage.envguard("restore", "step_690", "-y", "--json", "--python", interpreter)
    assert done.returncode == 4, done.stderr
    assert "EXTERNALLY-MANAGED" in done.stderr
    assert json.loads(done.stdout)["schema"] == "envguard.restore"
    assert tree(prefix) == before


def test_a_file_that_cannot_be_removed_rolls_back(swapped: Swapped) -> None:
    if os.geteuid() == 0:
        stuck = swapped.stage.site / "torch" / "version.py"
        # The cache's inode is shared; an attribute must not reach into it.
        data, mode = stuck.read_bytes(), stuck.stat()
        stuck.unlink()
        stuck.write_bytes(data)
        os.utime(stuck, ns=(mode.st_mtime_ns, mode.st_mtime_ns))
        locking = subprocess.run(["chattr", "+i", str(stuck)], capture_output=True, check=False)
        if locking.returncode != 0:
            pytest.skip("chattr +i does not work on this file system")
        free = ["chattr", "-i", str(stuck)]
    else:
        folder = swapped.stage.site / "torch" / "nn"
        folder.chmod(0o555)
        free = ["chmod", "755", str(folder)]
    before = tree(swapped.stage.venv)
    try:
        outcome = swapped.restore()
        assert not outcome.verified
        assert outcome.rolled_back
        assert outcome.failure is not None
        assert tree(swapped.stage.venv) == before
    finally:
        subprocess.run(free, check=True)


def test_a_full_disk_is_said_before_anything_changes(swapped: Swapped, small_disk: Path) -> None:
    before = tree(swapped.stage.venv)
    tight = Swapped(swapped.stage, swapped.before, small_disk / "state")
    (small_disk / "filler").write_bytes(bytes((_free(small_disk) - (1 << 20)) // 4096 * 4096))
    outcome = tight.restore()
    assert not outcome.applied
    assert "free and the restore needs" in (outcome.failure or "") or "No space" in (outcome.failure or "")
    assert tree(swapped.stage.venv) == before
    assert not list((small_disk / "state" / "restore").iterdir())


def test_a_disk_that_fills_up_while_uv_installs_rolls_back(
    small_disk: Path, story_wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "stage")
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    stage.venv = small_disk / "venv"
    stage.make_venv()
    for wheel in story_wheels.iterdir():
        (stage.wheels / wheel.name).symlink_to(wheel)
    stage.install("torch==2.11.0+cu128")
    before_fingerprint = fingerprint(stage)
    build_wheel(stage.wheels, "torch", "2.12.0", {"torch/version.py": b"__version__ = '2.12.0'\n"})
    stage.install("torch==2.12.0")
    before = tree(stage.venv)
    each = Swapped(stage, before_fingerprint, tmp_path / "state")
    request = each.request()
    plan = service.find_and_plan(request)
    # Room for what is counted beforehand is taken away by somebody else once the install has begun.
    filler = small_disk / "filler"

    class Greedy:
        def begin(self, phase: str, total: int) -> None:
            if phase == "install":
                filler.write_bytes(bytes(_free(small_disk) // 4096 * 4096))

        def advance(self, count: int) -> None: ...

        def end(self) -> None: ...

    outcome = service.carry_out(request, plan, Greedy())
    assert not outcome.verified
    assert outcome.rolled_back
    assert tree(stage.venv) == before


def _free(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "envguard-test", str(mount)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_what_is_not_uvs_survives(swapped: Swapped, tmp_path: Path) -> None:
    source = tmp_path / "mine"
    (source / "mine").mkdir(parents=True)
    (source / "mine" / "__init__.py").write_text("value = 1\n")
    site, binaries = swapped.stage.site, swapped.stage.venv / "bin"
    (site / "_editable_mine.pth").write_text(f"{source}\n")
    (site / "torch" / "notes.txt").write_text("mine")
    (site / "loose.py").write_text("x = 1\n")
    (binaries / "my-script").write_text("#!/bin/sh\n")
    (swapped.stage.venv / "share").mkdir()
    (swapped.stage.venv / "share" / "data.bin").write_bytes(b"\0" * 100)
    added = [
        site / "_editable_mine.pth",
        site / "torch" / "notes.txt",
        site / "loose.py",
        binaries / "my-script",
        swapped.stage.venv / "share" / "data.bin",
    ]
    before = {path: (path.read_bytes(), path.stat()) for path in added}
    assert swapped.restore().verified
    for path, (data, status) in before.items():
        assert path.read_bytes() == data
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )


def test_an_undo_does_not_overwrite_what_came_after(swapped: Swapped) -> None:
    assert swapped.restore().verified
    swapped.stage.install("torch==2.11.0+cu130", arguments=["--no-deps"])
    with pytest.raises(RestoreError, match="changed after the restore"):
        undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert undoing.roll_back(str(swapped.stage.venv), swapped.state, force=True).rolled_back


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_an_undo_does_not_overwrite_what_was_installed_again_after_it_went(swapped: Swapped, version: str) -> None:
    for each in ("1.0", "2.0"):
        build_wheel(swapped.stage.wheels, "newcomer", each)
    swapped.stage.install("newcomer==1.0")
    assert swapped.restore(exact=True).verified
    swapped.stage.install(f"newcomer=={version}")
    before = tree(swapped.stage.venv)
    with pytest.raises(RestoreError, match="changed after the restore: newcomer"):
        undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert tree(swapped.stage.venv) == before


def test_an_undo_leaves_another_package_that_came_after(swapped: Swapped) -> None:
    assert swapped.restore().verified
    build_wheel(swapped.stage.wheels, "newcomer", "1.0")
    swapped.stage.install("newcomer==1.0")
    report = undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert any("newcomer" in path for path in report.differs)
    assert (swapped.stage.site / "newcomer" / "__init__.py").exists()


def test_a_roll_back_that_cannot_finish_says_what_is_where(swapped: Swapped) -> None:
    assert swapped.restore().verified
    (transaction,) = (swapped.state / "restore").glob("*/point")
    for kept in (transaction / "files").iterdir():
        kept.unlink()
    with pytest.raises(RollbackError) as error:
        undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert error.value.code == 5
    assert str(transaction) in (error.value.hint or "")


def test_another_python_is_refused(swapped: Swapped) -> None:
    request = swapped.request()
    assert request.target.python is not None
    elsewhere = replace(request, env=replace(request.env, version="3.99.0"))
    with pytest.raises(RestoreError, match=r"3\.99"):
        service.find_and_plan(elsewhere)


def test_only_and_exact(swapped: Swapped) -> None:
    with pytest.raises(UsageError, match="no package toch"):
        service.find_and_plan(swapped.request(only=("toch",)))
    outcome = swapped.restore(exact=True)
    assert outcome.verified
    assert {p.name for p in fingerprint(swapped.stage).packages} == {p.name for p in swapped.before.packages}
    assert not (swapped.stage.site / "sglang").exists()
    undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert (swapped.stage.site / "sglang").exists()


def test_a_torn_install_without_record_is_replaced(swapped: Swapped) -> None:
    (record,) = swapped.stage.site.glob("torch-*.dist-info/RECORD")
    record.unlink()
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert "2.11.0+cu128" in swapped.torch_says()
    assert len(list(swapped.stage.site.glob("torch-*.dist-info"))) == 1


def test_two_dist_infos_of_one_package_become_one(swapped: Swapped) -> None:
    (info,) = swapped.stage.site.glob("torch-*.dist-info")
    shutil.copytree(info, info.with_name("torch-2.10.0.dist-info"))
    before = tree(swapped.stage.venv)
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert [path.name for path in swapped.stage.site.glob("torch-*.dist-info")] == ["torch-2.11.0+cu128.dist-info"]
    undoing.roll_back(str(swapped.stage.venv), swapped.state)
    assert tree(swapped.stage.venv) == before


def test_emptied_metadata_and_missing_files_are_mended(swapped: Swapped) -> None:
    assert swapped.restore().verified
    (info,) = swapped.stage.site.glob("torch-*.dist-info")
    (info / "METADATA").write_bytes(b"")
    (swapped.stage.site / "torch" / "nn" / "__init__.py").unlink()
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    torch = fingerprint(swapped.stage).package("torch")
    assert torch == swapped.before.package("torch") or (torch is not None and not torch.departs)


def test_an_editable_install_is_left_and_its_commit_said(swapped: Swapped, tmp_path: Path) -> None:
    tree_path = str(tmp_path / "mine")
    editable = Package(
        name="mine", version="0.1", build="b", installer="uv", location="", editable=tree_path, commit="a" * 40
    )
    before = replace_struct(swapped.before, packages=(*swapped.before.packages, editable))
    plan = service.find_and_plan(swapped.request(from_fingerprint("step_690", before)))
    assert not plan.missing
    assert any(f"git -C {tree_path} checkout {'a' * 40}" in note for note in plan.notes)


def test_what_is_no_package_is_said_with_its_command(swapped: Swapped) -> None:
    then = Code(path="/somewhere/repo", commit="b" * 40, branch="main", dirty=False, diff_digest=None)
    before = replace_struct(swapped.before, code=(then,))
    request = swapped.request(from_fingerprint("step_690", before))
    report = service.report_of(request, service.find_and_plan(request))
    assert any(f"git -C /somewhere/repo checkout {'b' * 40}" in note for note in report.notes)
