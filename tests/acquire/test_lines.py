"""Files of any length are read in pieces, forwards and backwards, with the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.lines import backwards, blocks
from tests.counting import CountingHost

HOST = LiveHost()
TEXTS = [b"", b"\n", b"one", b"one\n", b"one\ntwo", b"one\ntwo\n", b"a\n\nb\n", b"first line\nsecond line\nthird\n"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize("text", TEXTS)
def test_the_same_lines_whatever_the_size_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, chunk: int
) -> None:
    monkeypatch.setattr("envguard.acquire.seam.lines.CHUNK", chunk)
    path = tmp_path / "f"
    path.write_bytes(text)
    lines = [line for line in text.split(b"\n") if line]
    assert [line for line in backwards(HOST, str(path)) if line] == lines[::-1]
    for size in (None, len(text)):
        numbered = [
            (number, line)
            for first, block in blocks(HOST, str(path), size)
            for number, line in enumerate(block.split(b"\n"), first)
            if line
        ]
        assert numbered == [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line]


def test_of_a_line_without_end_only_the_beginning_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envguard.acquire.seam.lines.CHUNK", 64)
    path = tmp_path / "f"
    path.write_bytes(b"ok\n" + b"x" * 10_000 + b"\nafter\n")
    found = list(blocks(HOST, str(path), longest=256))
    assert max(len(block) for _, block in found) < 10_000
    assert b"".join(block for _, block in found).split(b"\n")[-2] == b"after"
    assert sum(block.count(b"\n") for _, block in found) == 3


def test_the_last_line_of_a_long_file_costs_its_end(tmp_path: Path) -> None:
    """A journal of gigabytes is not read for its last entry."""
    path = tmp_path / "f"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
        stream.seek(0, 2)
        stream.write(b"\nlast\n")
    host = CountingHost()
    assert next(backwards(host, str(path))) == b"last"
    assert host.bytes <= 4 << 20
