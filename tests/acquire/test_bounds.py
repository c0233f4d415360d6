"""What is read is bounded, in one reader; what cannot be parsed costs only itself."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.packages.record_file import parse_record
from envguard.acquire.seam.collector import contents
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import witness
from envguard.errors import InputError
from envguard.model.evidence import Unknown
from envguard.model.parsing import Unparsed, parse_json, parse_toml
from envguard.model.run import RunRecord
from envguard.state.files import read_file

HOST = LiveHost()
READS: dict[str, Callable[[str], Any]] = {
    "read": HOST.read,
    "some": lambda path: HOST.read(path, 100),
    "end": lambda path: HOST.read(path, 100, -100),
    "digest": HOST.digest,
    "md5": lambda path: HOST.digest(path, "md5"),
    "lines": HOST.lines,
    "scan": lambda path: HOST.scan(path, ("a",), 1, 1),
    "chain": lambda path: HOST.chain((("file", path),)),
    "state": read_file,
}


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def a_hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ODD: dict[str, tuple[Callable[[Path], Any], int]] = {
    "pipe": (os.mkfifo, errno.EINVAL),
    "socket": (a_socket, errno.EINVAL),
    "device": (lambda path: path.symlink_to("/dev/zero"), errno.EINVAL),
    "terminal": (lambda path: path.symlink_to("/dev/ptmx"), errno.EINVAL),
    "folder": (os.mkdir, errno.EINVAL),
    "loop": (lambda path: path.symlink_to(path), errno.ELOOP),
    "hole": (a_hole, errno.EFBIG),
    "nothing": (lambda path: None, errno.ENOENT),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, number = ODD[odd]
    make(tmp_path / "it")
    with pytest.raises(OSError) as refused:  # noqa: PT011 - its number is what counts
        READS[how](str(tmp_path / "it"))
    assert refused.value.errno == number


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """A program that waits for a reader would go on, and be ended by SIGPIPE."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        HOST.read(str(tmp_path / "pipe"))
    with pytest.raises(OSError) as none:  # noqa: PT011
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    assert none.value.errno == errno.ENXIO


@pytest.mark.parametrize("size", [contents.WHOLE, contents.WHOLE + 1])
def test_a_whole_file_is_read_up_to_the_bound(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "WHOLE", 1000)
    size = 1000 + size - (256 << 20)
    (tmp_path / "it").write_bytes(b"x" * size)
    if size > 1000:
        with pytest.raises(OSError, match="larger than"):
            HOST.read(str(tmp_path / "it"))
    else:
        assert len(HOST.read(str(tmp_path / "it"))) == size
    assert len(HOST.read(str(tmp_path / "it"), 2000)) == size
    assert len(HOST.digest(str(tmp_path / "it"))) == 64


DEEP, MANY = b"[" * 100_000 + b"]" * 100_000, b"9" * 5000
UNREADABLE = {
    "deep": DEEP,
    "deep and cut": DEEP[:100_000],
    "deep inside": b'{"id": ' + DEEP + b"}",
    "deep and unknown": b'{"zz": ' + DEEP + b"}",
    "digits": b'{"supervisor": ' + MANY + b"}",
    "no text": b"\xff\xfe",
    "a half surrogate": b'{"id": "\\ud800"}',
    "empty": b"",
    "another shape": b"[1, 2]",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_record_that_cannot_be_parsed_is_one_error_of_one_line(name: str) -> None:
    with pytest.raises(Unparsed) as error:
        parse_json(UNREADABLE[name], RunRecord)
    assert str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("data", [b"a = " + DEEP, b"a = " + MANY, b"\xff", b"a", b"a = 1\na = 2"])
def test_a_table_that_cannot_be_parsed_is_one_error(data: bytes) -> None:
    with pytest.raises(Unparsed, match=r"\S"):
        parse_toml(data)


@pytest.mark.parametrize(
    "row",
    ["a.py,sha256=x," + "9" * 5000, '"' + "a" * 200_000 + '",sha256=x,1', '"a,', "a\0,sha256=x,1"],
)
def test_a_row_of_record_that_is_none_is_a_problem_and_ends_nothing(row: str) -> None:
    found = parse_record(f"good.py,sha256=y,1\n{row}\n".encode())
    assert [each.path for each in found.rows] == ["good.py"]
    assert found.problems


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "absent", "No such file"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "absent", "Not a directory"),
        (OSError(errno.ELOOP, "Too many levels"), "refused", "Too many levels"),
        (OSError(errno.EMFILE, "Too many open files"), "refused", "Too many open files"),
        (OSError(errno.ESTALE, "Stale file handle"), "refused", "Stale file handle"),
        (OSError(errno.EBUSY, "Device or resource busy"), "refused", "busy"),
        (PermissionError(errno.EACCES, "Permission denied"), "refused", "Permission denied"),
        (OSError("no number"), "refused", "no number"),
        (RecursionError("maximum"), "refused", "nested too deeply"),
        (MemoryError(), "refused", "memory"),
        (KeyError("a"), "refused", "KeyError"),
        (ValueError("two\nlines"), "refused", "two"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_boundary_names_the_witness(error: Exception, reason: str, says: str) -> None:
    unknown: list[Unknown] = []

    def parse() -> None:
        raise error

    with witness(unknown, "the file"):
        parse()
    (item,) = unknown
    assert (item.what, item.reason) == ("the file", reason)
    assert says in item.why
    assert "\n" not in item.why


def test_what_the_user_named_passes_the_boundary() -> None:
    with pytest.raises(InputError), witness([], "the file"):
        raise InputError("there is none", "name one")
