"""Our own records and the project's locks, each replaced by what is none: named, and the rest is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.project.watched_files import read_locks
from envguard.acquire.runs.own_records import read_journal, read_run_records
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.model.evidence import Unknown
from envguard.state import journal

HOST = LiveHost()
ODD: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "folder": os.mkdir,
    "hole": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_journal_of_another_host_that_is_none_is_named(tmp_path: Path, odd: str) -> None:
    journal.append(tmp_path, "snapshot", {"id": "a"})
    other = tmp_path / "journal-zz.jsonl"
    ODD[odd](other)
    unknown: list[Unknown] = []
    found = read_journal(HOST, str(tmp_path), unknown)
    assert found is not None
    assert [entry.fields["id"] for entry in found] == ["a"]
    assert [(item.what, item.reason) for item in unknown] == [(str(other), "refused")]


@pytest.mark.parametrize("odd", [*ODD, "nested", "digits", "garbage", "empty"])
def test_a_run_record_that_is_none_is_named(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "runs" / "a.json"
    path.parent.mkdir()
    content = {"nested": b'{"id": ' + b"[" * 100_000, "digits": b'{"supervisor": ' + b"9" * 5000 + b"}",
               "garbage": b"\xff\x00", "empty": b""}  # fmt: skip
    path.write_bytes(content[odd]) if odd in content else ODD[odd](path)
    unknown: list[Unknown] = []
    assert read_run_records(HOST, str(tmp_path), unknown) == ()
    assert [(item.what, item.reason) for item in unknown] == [(str(path), "refused")]


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml", "poetry.lock"])
@pytest.mark.parametrize("odd", ODD)
def test_a_lock_that_is_none_is_named(tmp_path: Path, odd: str, name: str) -> None:
    ODD[odd](tmp_path / name)
    (tmp_path / "requirements.txt").write_text("torch\n")
    unknown: list[Unknown] = []
    found = read_locks(HOST, str(tmp_path), unknown)
    assert [lock.content for lock in found if lock.path.endswith("requirements.txt")] == [b"torch\n"]
    assert [(item.what, item.reason) for item in unknown] == [(str(tmp_path / name), "refused")]


def test_a_lock_behind_a_link_is_a_lock(tmp_path: Path) -> None:
    (tmp_path / "shared.lock").write_text("version = 1\n")
    (tmp_path / "uv.lock").symlink_to("shared.lock")
    unknown: list[Unknown] = []
    (found,) = read_locks(HOST, str(tmp_path), unknown)
    assert (found.content, unknown) == (b"version = 1\n", [])


@pytest.mark.parametrize("odd", [*ODD, "nested", "digits"])
def test_a_configuration_of_uv_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    path = tmp_path / "uv.toml"
    content = {"nested": b"a = " + b"[" * 100_000, "digits": b"a = " + b"9" * 5000}
    path.write_bytes(content[odd]) if odd in content else ODD[odd](path)
    (tmp_path / "pyproject.toml").write_text('[tool.uv]\ncache-dir = "cache"\n')
    monkeypatch.chdir(tmp_path)
    unknown: list[Unknown] = []
    assert f"{os.path.realpath(tmp_path)}/cache" in cache_directories(HOST, None, Config(), unknown)
    assert [item.what for item in unknown] == [f"uv cache named by {path}"]
