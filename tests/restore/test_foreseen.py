"""A dry run gives the code that `-y` gives, and says why; whatever stands against the restore."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore.locks import who_may
from tests.permissions import envguard_held_to_modes
from tests.restore.conftest import Swapped, fingerprint, tree
from tests.restore.test_said_first import flat


def torch_folder_elsewhere(swapped: Swapped) -> str:
    """Somebody moved a package to a larger disk and left a link."""
    return moved(swapped, swapped.stage.site / "torch")


def subfolder_elsewhere(swapped: Swapped) -> str:
    return moved(swapped, swapped.stage.site / "torch" / "nn")


def dist_info_elsewhere(swapped: Swapped) -> str:
    return moved(swapped, next(swapped.stage.site.glob("torch-*.dist-info")))


def moved(swapped: Swapped, folder: Path) -> str:
    elsewhere = swapped.stage.root / "large-disk" / folder.name
    elsewhere.parent.mkdir()
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)
    return f"it leads out of the environment, to {elsewhere}"


def scripts_elsewhere_and_back(swapped: Swapped) -> None:
    """A link within the environment leads out of nothing."""
    inside = swapped.stage.venv / "packages"
    shutil.move(swapped.stage.site / "torch", inside)
    (swapped.stage.site / "torch").symlink_to(inside)


def site_packages_elsewhere(swapped: Swapped) -> None:
    """The environment's own folder may lie on another disk."""
    elsewhere = swapped.stage.root / "site-packages"
    shutil.move(swapped.stage.site, elsewhere)
    swapped.stage.site.symlink_to(elsewhere)


def without_anything(swapped: Swapped) -> None:
    """Nothing stands against it."""


REFUSED = [torch_folder_elsewhere, subfolder_elsewhere, dist_info_elsewhere]
CARRIED_OUT = [scripts_elsewhere_and_back, site_packages_elsewhere, without_anything]


@pytest.mark.parametrize("change", REFUSED, ids=lambda each: each.__name__)
def test_what_leads_out_of_the_environment_is_refused(swapped: Swapped, change: Callable[[Swapped], str]) -> None:
    swapped.save_checkpoint("step_690")
    why = change(swapped)
    before = tree(swapped.stage.root, skip=(".local", "home"))
    plan = swapped.stage.envguard("restore", "step_690", "--dry-run")
    done = swapped.stage.envguard("restore", "step_690", "-y")
    assert (plan.returncode, done.returncode) == (4, 4), plan.stdout + done.stdout
    for said in (plan, done):
        assert why in flat(said.stdout)
        assert "nothing was changed" in said.stdout
    assert tree(swapped.stage.root, skip=(".local", "home")) == before


@pytest.mark.parametrize("change", CARRIED_OUT, ids=lambda each: each.__name__)
def test_what_lies_within_is_restored(swapped: Swapped, change: Callable[[Swapped], None]) -> None:
    swapped.save_checkpoint("step_690")
    change(swapped)
    plan = swapped.stage.envguard("restore", "step_690", "--dry-run")
    done = swapped.stage.envguard("restore", "step_690", "-y")
    assert (plan.returncode, done.returncode) == (0, 0), plan.stdout + plan.stderr + done.stdout + done.stderr
    assert "2.11.0+cu128" in swapped.torch_says()


def test_a_package_that_another_folder_hides(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    hiding = swapped.stage.root / "hiding"
    hiding.mkdir()
    for path in swapped.stage.site.glob("torch*"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, hiding / path.name)
    before = tree(swapped.stage.venv)
    extra = {"PYTHONPATH": str(hiding)}
    plan = swapped.stage.envguard("restore", "step_690", "--dry-run", extra=extra)
    done = swapped.stage.envguard("restore", "step_690", "-y", extra=extra)
    assert (plan.returncode, done.returncode) == (4, 4), plan.stdout + done.stdout
    assert f"{hiding} comes first on sys.path" in flat(plan.stdout)
    assert f"{hiding} comes first on sys.path" in flat(done.stdout)
    assert tree(swapped.stage.venv) == before


@pytest.fixture
def running(swapped: Swapped) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(swapped.stage.python), "-c", "import torch, sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(("more", "code"), [((), 4), (("--force",), 0)], ids=["refused", "forced"])
def test_processes_that_run_from_it(
    swapped: Swapped, running: subprocess.Popen[bytes], more: tuple[str, ...], code: int
) -> None:
    swapped.save_checkpoint("step_690")
    plan = swapped.stage.envguard("restore", "step_690", "--dry-run", *more)
    done = swapped.stage.envguard("restore", "step_690", "-y", *more)
    assert (plan.returncode, done.returncode) == (code, code), plan.stdout + done.stderr
    assert (f"PID {running.pid}" in flat(plan.stdout)) is (code == 4)


def test_an_environment_that_takes_no_writes(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    site = swapped.stage.site
    site.chmod(0o555)
    try:
        plan = envguard_held_to_modes(swapped.stage, "restore", "step_690", "--dry-run")
        done = envguard_held_to_modes(swapped.stage, "restore", "step_690", "-y")
    finally:
        site.chmod(0o755)
    assert (plan.returncode, done.returncode) == (4, 4), plan.stdout + done.stdout
    assert f"{site}: it cannot be written by this user" in flat(done.stdout)


NAMES = ("opencv-python", "opencv-python-headless")


def shared_files(stage: Stage) -> None:
    """Two packages with the same paths, as opencv's are: one file of the same content, two that differ."""
    for name in NAMES:
        content = {"cv2/__init__.py": f"# {name}\n", "cv2/cv2.bin": name * 9, "cv2/same.py": "", f"cv2/{name}.py": ""}
        build_wheel(stage.wheels, name, "4.10", {path: text.encode() for path, text in content.items()})


def owners(stage: Stage, *order: str) -> Swapped:
    """Both installed, one after the other, and stamped."""
    shared_files(stage)
    for name in order:
        stage.install(name)
    before = fingerprint(stage)
    swapped = Swapped(stage, before, stage.root / "state")
    swapped.save_checkpoint("step_10")
    return swapped


def uninstall(stage: Stage, name: str) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), name)


def reinstall(stage: Stage, name: str) -> None:
    stage.install(name, arguments=["--reinstall-package", name])


CHANGES: list[tuple[Callable[[Stage, str], None], int]] = [
    (uninstall, 0),
    (uninstall, 1),
    (reinstall, 0),
    (reinstall, 1),
]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids=["headless last", "headless first"])
@pytest.mark.parametrize(("change", "which"), CHANGES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_two_owners_of_a_file_come_back_as_the_stamp_has_them(
    stage: Stage, order: tuple[str, str], change: Callable[[Stage, str], None], which: int
) -> None:
    swapped = owners(stage, *order)
    content = (stage.site / "cv2" / "cv2.bin").read_bytes()
    assert content == order[1].encode() * 9
    change(stage, order[which])
    plan = stage.envguard("restore", "step_10", "--dry-run")
    done = stage.envguard("restore", "step_10", "-y")
    assert (plan.returncode, done.returncode) == (0, 0), plan.stdout + done.stdout + done.stderr
    assert (stage.site / "cv2" / "cv2.bin").read_bytes() == content
    assert {p.name: p.build for p in fingerprint(stage).packages} == {
        p.name: p.build for p in swapped.before.packages
    }


def test_a_file_of_a_newcomer_that_is_overwritten_is_named(stage: Stage) -> None:
    owners(stage, NAMES[0])
    stage.install(NAMES[1])
    plan = stage.envguard("restore", "step_10", "--dry-run")
    done = stage.envguard("restore", "step_10", "-y")
    assert (plan.returncode, done.returncode) == (0, 0), plan.stdout + done.stdout
    for said in (plan, done):
        text = flat(said.stdout)
        assert f"{NAMES[0]} comes over 2 files of {NAMES[1]}, which is not in the reference and stays" in text
        assert f"{stage.site}/cv2/__init__.py" in said.stdout.replace("\n", "").replace(" ", "")
    hinted = stage.envguard("restore", "step_10", "-y", "--exact")
    assert hinted.returncode == 0, hinted.stdout
    assert stage.envguard("verify").returncode in (0, 3)


def test_owners_that_the_reference_does_not_decide_between(stage: Stage) -> None:
    """A lock names both wheels, and not which was installed last."""
    shared_files(stage)
    entries = ""
    for wheel in sorted(stage.wheels.glob("*.whl")):
        name, digest = wheel.name.split("-")[0].replace("_", "-"), hashlib.sha256(wheel.read_bytes()).hexdigest()
        entries += f'[[packages]]\nname = "{name}"\nversion = "4.10"\nwheels = [{{ name = "{wheel.name}", '
        entries += f'path = "{wheel}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    (stage.project / "pylock.toml").write_text(f'lock-version = "1.0"\ncreated-by = "test"\n{entries}')
    (stage.project / "envguard.toml").write_text(f'find_links = ["{stage.wheels}"]\n')
    before = tree(stage.venv)
    plan = stage.envguard("restore", "pylock.toml", "--dry-run")
    done = stage.envguard("restore", "pylock.toml", "-y")
    assert (plan.returncode, done.returncode) == (4, 4), plan.stdout + done.stdout
    assert "both install it with other content" in flat(plan.stdout)
    assert tree(stage.venv) == before


def another_venv(stage: Stage) -> Path:
    other = stage.root / "venv-b"
    stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    return other


@pytest.mark.parametrize("words", [("-y",), ("--dry-run",), ("-y", "--only", "torch"), ("-y", "--exact", "--force")])
def test_another_environment_that_happens_to_be_active(swapped: Swapped, words: tuple[str, ...]) -> None:
    stage = swapped.stage
    assert stage.envguard("snapshot", "-o", "then.json").returncode in (0, 3)
    other = another_venv(stage)
    before, ours = tree(other), tree(stage.venv)
    refused = stage.envguard("restore", "then.json", *words, extra={"VIRTUAL_ENV": str(other)})
    assert refused.returncode == 2
    text = "".join(refused.stderr.split())
    assert str(other) in text
    assert str(stage.venv) in text
    assert (tree(other), tree(stage.venv)) == (before, ours)
    named = stage.envguard("restore", "then.json", *words, "--python", str(other), extra={"VIRTUAL_ENV": str(other)})
    assert named.returncode in (0, 4), named.stderr  # it is meant; whether it can be had is another question
    assert os.path.isdir(other)


def test_the_active_environment_is_the_reference_s_own(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    extra = {"VIRTUAL_ENV": str(swapped.stage.venv)}
    done = swapped.stage.envguard("restore", "step_690", "-y", extra=extra)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_called_read_only(tmp_path: Path, number: int) -> None:
    assert who_may(tmp_path, OSError(number, "")) == f"make room: `df -h {tmp_path}` shows how full the disk is"


def test_room_is_told_in_a_unit_that_tells_it(swapped: Swapped, monkeypatch: pytest.MonkeyPatch) -> None:
    one_block = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: one_block)
    failure = swapped.restore_or_failure()
    assert re.search(r"has 4.1 kB free and the restore needs [\d.]+ [kM]B", failure), failure
