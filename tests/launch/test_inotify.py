"""inotify as the watch uses it: what changes is told, what is read is not, and no folder that comes is missed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envguard.launch.inotify import Inotify

Begin = Callable[..., Inotify]


@pytest.fixture
def begin() -> Iterator[Begin]:
    made: list[Inotify] = []

    def watch(*roots: Path, recursive: bool = True) -> Inotify:
        made.append(Inotify(map(str, roots), recursive))
        return made[-1]

    yield watch
    for item in made:
        item.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "pkg" / "sub").mkdir(parents=True)
    (tree / "pkg" / "__pycache__").mkdir()
    (tree / "pkg" / "sub" / "m.py").write_text("x = 1")
    return tree


def seen(notify: Inotify) -> set[str]:
    found = notify.wait(5)
    assert found is not None
    return found


def test_reading_listing_and_bytecode_wake_nobody(tree: Path, begin: Begin) -> None:
    notify = begin(tree)
    assert (tree / "pkg" / "sub" / "m.py").read_text()
    assert list(tree.rglob("*"))
    (tree / "pkg" / "__pycache__" / "m.cpython-311.pyc").write_bytes(b"")
    assert notify.wait(0.3) == set()


def test_each_way_to_change_a_file_is_told(tree: Path, begin: Begin) -> None:
    notify, folder = begin(tree), tree / "pkg" / "sub"
    (folder / "m.py").write_text("x = 2")
    assert seen(notify) == {str(folder / "m.py")}
    (folder / "new.py").write_text("")
    os.replace(folder / "new.py", folder / "m.py")
    assert seen(notify) == {str(folder / "new.py"), str(folder / "m.py")}
    os.link(folder / "m.py", folder / "linked.py")
    assert seen(notify) == {str(folder / "linked.py")}
    (folder / "m.py").unlink()
    assert seen(notify) == {str(folder / "m.py")}


def test_a_tree_that_comes_is_told_whole_and_watched(tree: Path, begin: Begin, tmp_path: Path) -> None:
    notify = begin(tree)
    shutil.copytree(tree / "pkg", tmp_path / "made" / "deep")
    os.rename(tmp_path / "made", tree / "made")
    assert str(tree / "made" / "deep" / "sub" / "m.py") in seen(notify)
    (tree / "made" / "deep" / "sub" / "m.py").write_text("x = 3")
    assert seen(notify) == {str(tree / "made" / "deep" / "sub" / "m.py")}


def test_a_folder_that_was_moved_away_is_not_told_under_its_old_path(
    tree: Path, begin: Begin, tmp_path: Path
) -> None:
    notify = begin(tree)
    os.rename(tree / "pkg", tmp_path / "away")
    assert seen(notify) == {str(tree / "pkg")}
    (tmp_path / "away" / "sub" / "m.py").write_text("x = 3")
    assert notify.wait(0.3) == set()


def test_single_folders_are_watched_without_what_is_below(tree: Path, begin: Begin) -> None:
    notify = begin(tree / "pkg", recursive=False)
    (tree / "pkg" / "sub" / "m.py").write_text("x = 2")
    (tree / "other.py").write_text("")
    assert notify.wait(0.3) == set()
    (tree / "pkg" / "m.py").write_text("")
    assert seen(notify) == {str(tree / "pkg" / "m.py")}


def test_a_folder_that_a_checkout_takes_away_and_brings_back_is_watched_again(tree: Path, begin: Begin) -> None:
    notify = begin(tree / "pkg", tree / "pkg" / "sub", recursive=False)
    shutil.rmtree(tree / "pkg" / "sub")
    assert str(tree / "pkg" / "sub") in seen(notify)
    (tree / "pkg" / "sub").mkdir()
    assert str(tree / "pkg" / "sub") in seen(notify)
    (tree / "pkg" / "sub" / "m.py").write_text("")
    assert seen(notify) == {str(tree / "pkg" / "sub" / "m.py")}


def test_a_circle_of_links_ends_and_a_linked_folder_is_watched(tree: Path, begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree / "linked").symlink_to(tmp_path / "elsewhere")
    (tree / "pkg" / "circle").symlink_to(tree)
    notify = begin(tree)
    (tmp_path / "elsewhere" / "m.py").write_text("")
    assert seen(notify) == {str(tree / "linked" / "m.py")}


def test_names_that_are_no_text_are_told(tree: Path, begin: Begin) -> None:
    notify, name = begin(tree), os.fsdecode(b"\xd3\xff.py")
    (tree / name).write_text("")
    assert seen(notify) == {str(tree / name)}


def test_what_the_kernel_dropped_is_said_and_everything_is_told(tree: Path, begin: Begin) -> None:
    notify = begin(tree)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"this machine keeps {most} events: more files than a test should make")
    for number in range(most + 2):
        (tree / f"{number % 2}.py").write_text("")  # the same event twice in a row is one to the kernel
    found: set[str] = set()
    while batch := seen(notify) if not found else notify.wait(0.6):
        found |= batch
    assert notify.overflowed
    assert str(tree) in found
    (tree / "late.py").write_text("")
    assert seen(notify) == {str(tree / "late.py")}


def test_a_wait_is_ended_from_another_thread(tree: Path, begin: Begin) -> None:
    notify = begin(tree)
    threading.Timer(0.1, notify.stop).start()
    assert notify.wait(30) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
def test_a_folder_that_may_not_be_looked_into_is_named() -> None:
    program = (
        "import os, sys; from envguard.launch.inotify import Inotify; os.setgroups([]); os.setgid(65534); "
        "os.setuid(65534); print(Inotify([sys.argv[1]], True).unseen)"
    )
    with tempfile.TemporaryDirectory() as folder:  # not in a folder of pytest's, which are closed to others
        hidden = Path(folder, "pkg", "hidden")
        hidden.mkdir(parents=True)
        hidden.chmod(0)
        Path(folder).chmod(0o755)
        done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([str(hidden)])
