"""The journal survives a kill at any byte, and two writers at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.state import journal
from envguard.state.files import write_atomically


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600), (0o027, 0o640)])
def test_the_umask_decides_over_every_file_of_the_state(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        journal.append(tmp_path / "state", "snapshot", {"id": "a"})
        write_atomically(tmp_path / "state" / "stamp.json", b"{}")
        write_atomically(tmp_path / "state" / "bundle", b"", 0o600)
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert found.pop("bundle") == 0o600
    assert set(found.values()) == {mode}
    assert len(found) == 3


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    journal.append(tmp_path / "state", "snapshot", {"id": "a"})
    journal.append(tmp_path / "state", "snapshot", {"id": "b"})
    data = journal.journal_file(tmp_path / "state").read_bytes()
    assert [entry and entry["id"] for entry in map(journal.entry, data.splitlines())] == ["a", "b"]
    assert (tmp_path / "state" / ".gitignore").read_text() == "*\n"


def test_a_cut_at_any_byte_loses_at_most_the_last_entry(tmp_path: Path) -> None:
    journal.append(tmp_path, "snapshot", {"id": "a"})
    journal.append(tmp_path, "snapshot", {"id": "b"})
    path = journal.journal_file(tmp_path)
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1
    for cut in range(first_end, len(whole)):
        path.write_bytes(whole[:cut])
        journal.append(tmp_path, "snapshot", {"id": "c"})
        read = [journal.entry(line) for line in path.read_bytes().splitlines()]
        ids = [entry["id"] for entry in read if entry is not None]
        assert ids[0] == "a"
        assert ids[-1] == "c"
        assert len(read) <= 3


def test_writers_at_once_tear_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from envguard.state import journal\n"
        "for n in range(40): journal.append(pathlib.Path(sys.argv[1]), 'snapshot', {'id': sys.argv[2] * 200, 'n': n})"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), who]) for who in "xyz"]
    assert [child.wait() for child in children] == [0, 0, 0]
    read = [journal.entry(line) for line in journal.journal_file(tmp_path).read_bytes().splitlines()]
    assert len(read) == 120
    assert None not in read


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", b"one")
    write_atomically(tmp_path / "f", b"two", mode=0o600)
    assert (tmp_path / "f").read_bytes() == b"two"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
