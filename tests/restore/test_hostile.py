"""Archives that somebody made to do harm, or that a tool left in no wheel's shape: refused, and nothing changes."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.packages.record_file import Row, record_hash
from envguard.restore.archive import Folder, Zipped, copy_checked, open_zip, write_wheel
from envguard.restore.progress import Silent
from tests.restore.conftest import Swapped, tree

HASH = "sha256=" + "A" * 43


def archive_of(swapped: Swapped) -> Path:
    (found,) = (
        path.parents[1]
        for path in swapped.stage.cache.glob("archive-v0/*/torch/version.py")
        if "+cu128" in path.read_text()
    )
    return found


def add_row(archive: Path, row: str) -> None:
    (record,) = archive.glob("*.dist-info/RECORD")
    text = record.read_text()
    record.unlink()  # a link of its own: the environment's RECORD is not to change with it
    record.write_text(text + row + "\n")


def escaping(archive: Path) -> None:
    add_row(archive, f"../../../../escaped.py,{HASH},0")


def hidden_in_the_middle(archive: Path) -> None:
    add_row(archive, f"torch/../../escaped.py,{HASH},0")


def absolute(archive: Path) -> None:
    add_row(archive, f"{archive.parents[2]}/escaped.py,{HASH},0")


def backslashed(archive: Path) -> None:
    add_row(archive, f"torch\\..\\..\\escaped.py,{HASH},0")


def unhashed(archive: Path) -> None:
    (archive / "torch" / "extra.py").write_text("import os\n")
    add_row(archive, "torch/extra.py,,")


def linked_file(archive: Path) -> None:
    version = archive / "torch" / "version.py"
    elsewhere = archive.parents[2] / "elsewhere.py"
    elsewhere.write_bytes(version.read_bytes())
    version.unlink()
    version.symlink_to(elsewhere)


def pipe(archive: Path) -> None:
    version = archive / "torch" / "version.py"
    version.unlink()
    os.mkfifo(version)


def twice_with_another_hash(archive: Path) -> None:
    add_row(archive, f"torch/version.py,{HASH},1")


def of_many_rows(archive: Path) -> None:
    """All outside: they are no part of the identity, so that it is this archive that is tried."""
    add_row(archive, "\n".join(f"../m{number}.py,{HASH},1" for number in range(100_000)))


@pytest.mark.parametrize(
    "harm",
    [
        escaping, hidden_in_the_middle, absolute, backslashed, unhashed, linked_file, pipe, twice_with_another_hash,
        of_many_rows,
    ],
)  # fmt: skip
def test_refused_and_nothing_has_changed(swapped: Swapped, harm: Callable[[Path], None]) -> None:
    harm(archive_of(swapped))
    swapped.save_checkpoint("step_690")
    (swapped.stage.project / "envguard.toml").touch()
    before = tree(swapped.stage.root, skip=(".envguard", "state", "tmp", "uv-cache"))
    done = swapped.stage.envguard("restore", "step_690", "-y")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "internal" not in done.stderr
    assert "fault in envguard" not in done.stderr
    assert "torch 2.11.0+cu128" in done.stdout
    assert len(done.stdout.splitlines()) < 100
    assert tree(swapped.stage.root, skip=(".envguard", "state", "tmp", "uv-cache")) == before


def test_a_row_given_twice_is_one_file(swapped: Swapped) -> None:
    archive = archive_of(swapped)
    (record,) = archive.glob("*.dist-info/RECORD")
    add_row(archive, next(line for line in record.read_text().splitlines() if line.startswith("torch/version.py")))
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True), outcome
    assert "2.11.0+cu128" in swapped.torch_says()


def test_a_folder_that_is_a_link_gives_its_files_and_not_itself(swapped: Swapped) -> None:
    folder = archive_of(swapped) / "torch" / "nn"
    folder.rename(swapped.stage.root / "elsewhere")
    folder.symlink_to(swapped.stage.root / "elsewhere")
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True), outcome
    assert not (swapped.stage.site / "torch" / "nn").is_symlink()


def test_a_file_that_unpacks_to_more_than_record_says_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "bomb.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.py", bytes(64 << 20))
    read = 0

    class Counting(Silent):
        def advance(self, count: int) -> None:
            nonlocal read
            read += count

    with open_zip(str(path)) as files:
        assert isinstance(files, Zipped)
        fault = copy_checked(files, Row("bomb.py", HASH, 10), None, Counting())
    assert fault is not None
    assert fault.kind == "modified"
    assert read <= 1 << 20


def test_a_wheel_is_made_with_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"1")
    info = tmp_path / "a-1.dist-info"
    info.mkdir()
    row = f"a.py,{record_hash('sha256', hashlib.sha256(b'1').digest())},1\n"
    (info / "RECORD").write_text(row + row + "a-1.dist-info/RECORD,,\n")
    target = tmp_path / "a-1-py3-none-any.whl"
    assert write_wheel(Folder(tmp_path), "a-1.dist-info", target, Silent()) == ()
    with zipfile.ZipFile(target) as wheel:
        assert wheel.namelist() == ["a.py", "a-1.dist-info/RECORD"]
