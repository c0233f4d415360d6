"""Which archive of a uv cache holds a file that a process has mapped: one answer, by inode and device together."""

from __future__ import annotations

from pathlib import Path

from envguard.acquire.packages.archive_of_library import archive_of
from envguard.acquire.packages.cached_archives import archive_folders, holds
from envguard.acquire.processes.own_process import MappedFile
from envguard.acquire.seam.host import LiveHost

HOST = LiveHost()
LIBRARY = "torch/lib/libtorch_cpu.so"


def archive(cache: Path, identity: str) -> Path:
    folder = cache / "archive-v0" / identity
    (folder / LIBRARY).parent.mkdir(parents=True)
    (folder / LIBRARY).write_bytes(identity.encode())
    info = folder / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    (info / "RECORD").write_text(f"{LIBRARY},sha256={identity},3\n")
    return folder


def test_every_folder_of_every_archive_bucket_and_nothing_else(tmp_path: Path) -> None:
    wanted = {str(archive(tmp_path / cache, name)) for cache in ("a", "b") for name in ("One", "Two")}
    (tmp_path / "a" / "archive-v0" / ".git").write_text("")
    (tmp_path / "a" / "archive-version" / "x").mkdir(parents=True)
    (tmp_path / "a" / "wheels-v8" / "x").mkdir(parents=True)
    caches = [str(tmp_path / name) for name in ("a", "missing", "b")]
    assert set(archive_folders(HOST, caches)) == wanted


def test_the_archive_of_a_mapped_library(tmp_path: Path) -> None:
    one, _ = archive(tmp_path, "One"), archive(tmp_path, "Two")
    facts = (one / LIBRARY).stat()
    found = archive_of(HOST, [str(tmp_path)], "torch", (MappedFile(LIBRARY, facts.st_ino, None, facts.st_dev),))
    assert found is not None
    assert (found.path, found.by, found.version) == (str(one), "inode", "2.11.0")


def test_an_equal_inode_number_of_another_file_system_names_no_archive(tmp_path: Path) -> None:
    one = archive(tmp_path, "One")
    facts = (one / LIBRARY).stat()
    assert holds(HOST, str(one), LIBRARY, facts.st_ino, None)
    assert not holds(HOST, str(one), LIBRARY, facts.st_ino, facts.st_dev + 1)
    elsewhere = (MappedFile(LIBRARY, facts.st_ino, None, facts.st_dev + 1),)
    assert archive_of(HOST, [str(tmp_path)], "torch", elsewhere) is None
