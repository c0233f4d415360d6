"""RECORD: every form that installers write, and the identity that must not depend on who installed."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envguard.acquire.packages.record_file import (
    RecordFile,
    Row,
    algorithm_of,
    build_identity,
    leaves_tree,
    normalised,
    parse_record,
)
from envguard.demo import wheels
from envguard.demo.stage import Stage

HASH = "sha256=" + "a" * 43


def test_reads_rows_in_any_line_ending() -> None:
    unix = f"torch/version.py,{HASH},12\ntorch-2.dist-info/RECORD,,\n".encode()
    expected = (Row("torch/version.py", HASH, 12), Row("torch-2.dist-info/RECORD", None, None))
    assert parse_record(unix).rows == expected
    assert parse_record(unix.replace(b"\n", b"\r\n")) == parse_record(unix)
    assert parse_record(b"\xef\xbb\xbf" + unix) == parse_record(unix)


def test_quoted_paths_hold_commas_and_quotes() -> None:
    data = f'"a,b/""c"".py",{HASH},3\nplain.py,{HASH},4\n'.encode()
    assert [row.path for row in parse_record(data).rows] == ['a,b/"c".py', "plain.py"]


def test_a_path_with_commas_that_nobody_quoted_is_still_one_path() -> None:
    assert parse_record(f"a,b.py,{HASH},3\n".encode()).rows == (Row("a,b.py", HASH, 3),)


def test_an_undecodable_row_is_kept_and_told() -> None:
    found = parse_record(b"caf\xe9.py," + HASH.encode() + b",3\nok.py," + HASH.encode() + b",1\n")
    assert [row.path for row in found.rows] == ["caf\udce9.py", "ok.py"]
    assert found.problems == ("byte 3 is not UTF-8",)
    assert len(build_identity(found.rows)) == 64


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it lists no file"),
        (b"\0\0\0\0", "row 1 is not `path,hash,size`: '\\x00\\x00\\x00\\x00'"),
        (b"torch/a.py\n", "row 1 is not `path,hash,size`: 'torch/a.py'"),
        (f"torch/a.py,{HASH},many\n".encode(), f"row 1 is not `path,hash,size`: 'torch/a.py,{HASH},many'"),
        (f"a.py,{HASH},1\na.py,{HASH},2\n".encode(), "a.py is listed twice, with different contents"),
    ],
)
def test_what_is_malformed_is_told_and_never_raised(data: bytes, problem: str) -> None:
    assert problem in parse_record(data).problems


def test_a_file_listed_twice_alike_counts_once() -> None:
    found = parse_record(f"a.py,{HASH},1\na.py,{HASH},1\n".encode())
    assert len(found.rows) == 1
    assert found.problems == ()


@pytest.mark.parametrize("written", ["./p/a.py", "p/./a.py", "p//a.py", "./p//./a.py"])
def test_one_file_has_one_path_however_it_is_written(written: str) -> None:
    assert parse_record(f"{written},{HASH},1\n".encode()) == parse_record(f"p/a.py,{HASH},1\n".encode())
    assert [row.path for row in parse_record(b"./p/,,\n").rows] == ["p/"]


def test_normalising_leaves_what_the_wheel_brought() -> None:
    dropped = [
        Row("p-1.dist-info/INSTALLER", HASH, 3),
        Row("p-1.dist-info/REQUESTED", HASH, 0),
        Row("p-1.dist-info/RECORD", None, None),
        Row("p-1.dist-info/direct_url.json", HASH, 5),
        Row("p-1.dist-info/uv_cache.json", HASH, 5),
        Row("p-1.dist-info/uv_build.json", HASH, 5),
        Row("p/__pycache__/a.cpython-311.pyc", HASH, 5),
        Row("../../../bin/p", HASH, 5),
        Row("p/../../../bin/q", HASH, 5),
        Row("/usr/share/p", HASH, 5),
        Row("p/unhashed.txt", None, 5),
        Row("p/", HASH, 0),
        Row("p/data/", HASH, None),
        Row("p-1.data/purelib/p/b.py", HASH, 5),
        Row("p-1.data/scripts/p", HASH, 5),
    ]
    kept = [Row("p-1.dist-info/METADATA", HASH, 9), Row("p/..hidden.py", HASH, 1), Row("p/a.py", HASH, 1)]
    assert list(normalised([*reversed(kept), *dropped])) == kept
    assert build_identity([*dropped, *kept]) == build_identity(kept)


def test_rows_of_data_count_in_an_unpacked_wheel_alone() -> None:
    row = Row("p-1.data/scripts/p", HASH, 5)
    assert normalised([row]) == ()
    assert normalised([row], unpacked=True) == (row,)
    odd = [Row("a.data/", HASH, 0), Row("p/x.data/y.py", HASH, 1), Row("q.data", HASH, 1)]
    assert normalised(odd) == (odd[1], odd[2])


def test_identity_hangs_on_paths_and_hashes_alone() -> None:
    base = [Row("p/a.py", HASH, 1), Row("p/b.py", HASH, 2)]
    assert build_identity(base) == build_identity(base[::-1])
    assert build_identity(base) == build_identity([Row("p/a.py", HASH, None), base[1]])
    assert build_identity(base) != build_identity(base[:1])
    assert build_identity(base) != build_identity([Row("p/a.py", "sha256=" + "b" * 43, 1), base[1]])
    assert build_identity(base) != build_identity([Row("p/c.py", HASH, 1), base[1]])


@given(st.binary(max_size=400))
def test_no_bytes_whatever_make_it_fail(data: bytes) -> None:
    found = parse_record(data)
    assert all(row.path for row in found.rows)
    assert len(build_identity(found.rows)) == 64


@pytest.mark.parametrize(
    ("path", "leaves"), [("a/../b", False), ("a/../../b", True), ("..", False), ("a..b/c", False)]
)
def test_leaving_the_tree(path: str, leaves: bool) -> None:
    assert leaves_tree(path) is leaves


def test_uv_and_pip_give_one_identity(stage: Stage) -> None:
    """pip lists compiled files and scripts, uv does not; the wheel is the same."""
    wheels.build_wheel(stage.wheels, "demo", "1.0", {"demo/__init__.py": b"x = 1\n"}, scripts={"demo-run": "demo:x"})
    stage.install("demo")
    record = next(stage.site.glob("demo-*.dist-info")) / "RECORD"
    by_uv = parse_record(record.read_bytes())
    pip_venv = stage.root / "pip"
    stage.uv("venv", "--quiet", "--python", sys.executable, str(pip_venv))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(pip_venv / "bin/python")]
    install = [*pip, "install", "--quiet", "--no-index", "--find-links", str(stage.wheels), "demo"]
    subprocess.run(install, check=True, env=stage.environ())
    by_pip = parse_record(next(pip_venv.glob("lib/python*/site-packages/demo-*.dist-info/RECORD")).read_bytes())
    assert {row.path for row in by_pip.rows} != {row.path for row in by_uv.rows}
    assert build_identity(by_pip.rows) == build_identity(by_uv.rows)
    assert not by_uv.problems
    assert not by_pip.problems


def test_a_hash_is_that_of_the_file(stage: Stage) -> None:
    wheels.build_wheel(stage.wheels, "demo", "1.0")
    stage.install("demo")
    record = next(stage.site.glob("demo-*.dist-info")) / "RECORD"
    row = next(row for row in parse_record(record.read_bytes()).rows if row.path == "demo/__init__.py")
    data = Path(stage.site / row.path).read_bytes()
    expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    assert row == Row("demo/__init__.py", f"sha256={expected}", len(data))


@pytest.mark.parametrize("name", sorted(hashlib.algorithms_guaranteed))
def test_only_what_is_no_weaker_than_sha256_proves_a_content(name: str) -> None:
    size = hashlib.new(name).digest_size  # 0 where the digest has no length of its own
    proves = size >= 32
    assert (algorithm_of(f"{name}=abc") == name) is proves
    assert algorithm_of(f"{name}=") is None


@pytest.mark.parametrize("recorded", [None, "", "sha256", "=abc", "SHA256=abc", "md5=abc"])
def test_what_is_no_hash_proves_nothing(recorded: str | None) -> None:
    assert algorithm_of(recorded) is None


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_path_may_hold_what_python_takes_for_the_end_of_a_line(mark: str) -> None:
    rows = (Row(f"p/a{mark}b.py", HASH, 3), Row("p/c.py", HASH, 4))
    data = "".join(f"{row.path},{row.hash},{row.size}\n" for row in rows).encode()
    assert parse_record(data) == RecordFile(rows)
    assert parse_record(data.replace(b"\n", b"\r")) == RecordFile(rows)


def test_a_long_record_is_not_held_several_times_over() -> None:
    data = "".join(f"demo/folder{n % 100}/module_{n}.py,sha256={n:043d},{n}\n" for n in range(50_000)).encode()
    tracemalloc.start()
    try:
        rows = parse_record(data).rows
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 50_000
    assert peak < 1.3 * held, "beside the rows there were whole copies of the text"


def test_what_pip_compiled_beside_what_the_wheel_brought_is_no_contradiction() -> None:
    """numpy 1.26.4 brings a compiled file, and pip lists its own of that name after it."""
    row = "a/__pycache__/b.cpython-311.pyc"
    record = parse_record(f"a/b.py,{HASH},1\n{row},{HASH},1\n{row},,\n".encode())
    assert record.problems == ()
    assert build_identity(record.rows) == build_identity(parse_record(f"a/b.py,{HASH},1\n".encode()).rows)
