"""Configured files and data sets: digests, rows, and what an unchanged set costs."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envguard.acquire.project.filesets import read_filesets
from envguard.acquire.project.parquet import CorruptParquet, read_rows
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Section
from envguard.model.fingerprint import FileSet
from tests.acquire.made_up import MadeUp

HOST = LiveHost()
# Written by pyarrow: one int64 column, the numbers 0 to 4, no compression.
PARQUET = bytes.fromhex(
    "504152311500155c155c2c150a1500150615061c000000020000000a01000000000000000001000000000000000200000000"
    "000000030000000000000004000000000000001504192c35001806736368656d611502001504250218016e00160a191c191c"
    "26001c1504192506001918016e1500160a1682011682012608491c150015001502003c29061926000a000000168201160a26"
    "08168201002820706172717565742d6370702d6172726f772076657273696f6e2032362e302e31191c1c0000007e00000050"
    "415231"
)


def read(
    base: Path, *paths: str, memo: dict[str, str] | None = None, budget: int | None = None
) -> Section[tuple[FileSet, ...]]:
    return read_filesets(HOST, "data", paths, str(base), {} if memo is None else memo, budget=budget)


def only(section: Section[tuple[FileSet, ...]]) -> FileSet:
    assert (section.problems, section.unknown) == ((), ())
    (found,) = section.value
    return found


def test_one_file_has_its_own_digest_and_rows(tmp_path: Path) -> None:
    data = b'{"a": 1}\n\n{"a": 2}\r\n{"a": 3}'
    (tmp_path / "train.jsonl").write_bytes(data)
    found = only(read(tmp_path, "train.jsonl"))
    assert found == FileSet(
        path="train.jsonl", files=1, bytes=len(data), rows=3, digest=hashlib.sha256(data).hexdigest()
    )


def test_a_folder_is_one_set(tmp_path: Path) -> None:
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "a.jsonl").write_bytes(b"{}\n{}\n")
    (tmp_path / "set" / "deep" / "b.parquet").write_bytes(PARQUET)
    (tmp_path / "set" / "README").write_bytes(b"not data")
    found = only(read(tmp_path, "set"))
    assert (found.files, found.rows, found.bytes) == (3, 7, 6 + len(PARQUET) + 8)
    (tmp_path / "set" / "a.jsonl").rename(tmp_path / "set" / "c.jsonl")
    assert only(read(tmp_path, "set")).digest != found.digest


def test_files_without_rows_have_none(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"x")
    assert only(read(tmp_path, "tokens.bin")).rows is None


def test_a_pattern_names_its_files(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "c.txt"):
        (tmp_path / name).write_text(name)
    assert [found.path for found in read(tmp_path, "*.yaml").value] == [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "b.yaml"),
    ]
    section = read(tmp_path, "*.toml")
    assert section.value == ()
    assert section.unknown[0].why == "no path fits the pattern"


def test_what_is_configured_and_not_there_is_a_finding(tmp_path: Path) -> None:
    section = read(tmp_path, "gone.jsonl")
    (found,) = section.value
    assert (found.files, found.bytes, found.digest) == (0, 0, None)
    assert [(problem.kind, problem.subject) for problem in section.problems] == [("data-missing", "gone.jsonl")]


def test_what_cannot_be_read_has_no_digest() -> None:
    host = MadeUp({"/d/a.bin": b"x"}, digest=PermissionError(13, "Permission denied"))
    section = read_filesets(host, "data", ("/d/a.bin",), "/", {})
    (found,) = section.value
    assert (found.files, found.digest) == (1, None)
    assert any("Permission denied" in item.why for item in section.unknown)


def test_links_are_followed_and_broken_ones_are_said(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "blob").write_bytes(b"{}\n")
    (tmp_path / "set" / "a.jsonl").symlink_to(tmp_path / "blob")
    (tmp_path / "linked").symlink_to("set")
    found = only(read(tmp_path, "linked"))
    assert (found.files, found.rows) == (1, 1)
    (tmp_path / "blob").unlink()
    section = read(tmp_path, "linked")
    assert section.unknown[0].what == "data linked"


def test_an_unchanged_set_costs_a_walk_and_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    for number in range(20):
        (tmp_path / "set" / f"{number}.bin").write_bytes(bytes([number]))
    time.sleep(0.06)  # a file that may still move is not kept
    memo: dict[str, str] = {}
    first = only(read(tmp_path, "set", memo=memo))
    read_paths: list[str] = []
    digest = HOST.digest

    def watched(path: str) -> str:
        read_paths.append(path)
        return digest(path)

    monkeypatch.setattr(HOST, "digest", watched)
    assert only(read(tmp_path, "set", memo=memo)) == first
    assert read_paths == []
    (tmp_path / "set" / "3.bin").write_bytes(b"!")
    changed = only(read(tmp_path, "set", memo=memo))
    assert read_paths == [str(tmp_path / "set" / "3.bin")]
    assert changed.digest != first.digest


def test_an_edit_that_keeps_size_and_mtime_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    os.utime(path, ns=(10**18, 10**18))
    time.sleep(0.06)
    memo: dict[str, str] = {}
    first = only(read(tmp_path, "a.bin", memo=memo))
    path.write_bytes(b"two")
    os.utime(path, ns=(10**18, 10**18))
    assert only(read(tmp_path, "a.bin", memo=memo)).digest != first.digest


def test_a_stamp_hashes_no_more_than_its_budget(tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(bytes(1000))
    time.sleep(0.06)
    section = read(tmp_path, "big.bin", budget=100)
    (found,) = section.value
    assert (found.files, found.bytes, found.digest) == (1, 1000, None)
    assert "envguard snapshot" in section.unknown[0].why
    memo: dict[str, str] = {}
    whole = only(read(tmp_path, "big.bin", memo=memo))
    assert only(read(tmp_path, "big.bin", memo=memo, budget=100)) == whole


# --- Parquet ----------------------------------------------------------------------------------------------------


class Bytes(MadeUp):
    def __init__(self, data: bytes) -> None:
        super().__init__(read=lambda _, limit, offset: data[max(0, len(data) + offset) :][:limit])


def test_rows_of_a_real_file() -> None:
    assert read_rows(Bytes(PARQUET), "x") == 5


def test_rows_as_pyarrow_counts_them(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the other reader, pyarrow, is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the other reader, pyarrow, is not installed")
    table = pyarrow.table(
        {
            "text": [f"row {number}" for number in range(3000)],
            "tokens": [[number, number + 1] for number in range(3000)],
            "meta": [{"ok": number % 2 == 0, "score": number / 3} for number in range(3000)],
        }
    )
    path = tmp_path / "t.parquet"
    parquet.write_table(table, path, row_group_size=700)
    assert read_rows(HOST, str(path)) == 3000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"x" * 100,
        b"\xff\xff\xff\xffPAR1",
        b"\x40\x00\x00\x00PAR1",
        b"\x00\x00\x00\x00PAR1",
        b"\x15\x04\x19\xfc\xff\xff\xff\xff\x0f\x00" + b"\x0a\x00\x00\x00PAR1",
    ],
)
def test_what_is_no_parquet_file(data: bytes) -> None:
    with pytest.raises(CorruptParquet):
        read_rows(Bytes(data), "x")


@settings(deadline=None, database=None)
@given(st.integers(0, len(PARQUET) - 9), st.binary(min_size=1, max_size=6))
def test_no_damage_is_more_than_damage(at: int, junk: bytes) -> None:
    data = PARQUET[:at] + junk + PARQUET[at + len(junk) :]
    try:
        rows = read_rows(Bytes(data), "x")
    except CorruptParquet:
        return
    assert rows >= 0


def test_a_damaged_parquet_file_in_a_set_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x" * 100)
    section = read(tmp_path, "a.parquet")
    (found,) = section.value
    assert found.rows is None
    assert found.digest is not None
    assert section.problems[0].kind == "data-damaged"
