"""Compiled files that Python runs in the place of the source beside them."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.packages import bytecode
from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint.diff import compare
from envguard.fingerprint.snapshot import Request, take
from envguard.model.fingerprint import Bytecode, Fingerprint
from envguard.state.digests import Digests

SOURCE = b"""
'''A module.'''
import sys
KINDS = {'a', 'b', 'c', 'other'}
def scale(x, *, by=2.5, deep=(1, (2, 3))):
    assert by, 'a scale'
    return [each * by for each in x if each in {'a', 'b', 1 << 70, 2j}]
"""
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
CHECKED = py_compile.PycInvalidationMode.CHECKED_HASH


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("bytecode") / "stage")
    stage.make_venv()
    for name in ("torch", "plain"):
        files = {f"{name}/__init__.py": b"", f"{name}/version.py": b"__version__ = '2.8.0'\n", f"{name}/a.py": SOURCE}
        build_wheel(stage.wheels, name, "2.8.0", files=files)
    stage.install("torch", "plain")
    return stage


@pytest.fixture
def source(made: Stage) -> Path:
    path = made.site / "torch/a.py"
    for old in (*made.site.glob("torch/__pycache__/*"), *made.site.glob("plain/__pycache__/*")):
        old.unlink()
    return path


def looked(stage: Stage, digests: Digests | None = None, deep: bool = False) -> Fingerprint:
    asked = Request(str(stage.project), str(stage.python), config=Config(), deep=deep)
    return take(LiveHost(), asked, digests or Digests())


def foreign(taken: Fingerprint) -> list[str | None]:
    return [problem.path for problem in taken.problems if problem.kind == "foreign-bytecode"]


def compiled(source: Path, text: bytes, mode: py_compile.PycInvalidationMode | None = None, level: int = 0) -> Path:
    """The compiled file of `source` with the code of `text`, under the header that the source would have."""
    own, stat = source.read_bytes(), source.stat()
    made = Path(importlib.util.cache_from_source(source, optimization=level or ""))
    py_compile.compile(str(source), str(made), doraise=True, optimize=level, invalidation_mode=mode)
    header = made.read_bytes()[:16]
    source.write_bytes(text)
    py_compile.compile(str(source), str(made), doraise=True, optimize=level)
    made.write_bytes(header + made.read_bytes()[16:])
    source.write_bytes(own)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return made


@pytest.mark.parametrize(("mode", "level"), [(None, 0), (None, 1), (None, 2), (UNCHECKED, 0), (CHECKED, 0)])
@pytest.mark.parametrize(
    "text", [b"KINDS = 1", SOURCE.replace(b"2.5", b"2.4"), SOURCE.replace(b"import sys", b"import os")]
)
def test_code_of_another_source_under_the_sources_header_blocks(
    made: Stage, source: Path, text: bytes, mode: py_compile.PycInvalidationMode | None, level: int
) -> None:
    before = looked(made)
    assert foreign(before) == []
    path = compiled(source, text, mode, level)
    after = looked(made)
    assert foreign(after) == [str(path)]
    drifts = compare(before, after, (), "a", "b").drifts
    assert [(drift.subject, drift.severity) for drift in drifts] == [("torch", "block")]


def test_what_is_named_is_what_python_runs(made: Stage, source: Path) -> None:
    compiled(source, b"KINDS = 'foreign'")
    ran = subprocess.run([made.python, "-c", "import torch.a; print(torch.a.KINDS)"], capture_output=True, text=True)
    assert ran.stdout.strip() == "foreign"


@pytest.mark.parametrize("hold", ["header", "garbage", "empty"])
def test_a_file_that_is_no_code_of_the_source_is_named_where_python_takes_it(
    made: Stage, source: Path, hold: str
) -> None:
    path = compiled(source, SOURCE)
    data = path.read_bytes()
    path.write_bytes({"header": data[:16], "garbage": data[:-9] + b"\xff" * 9, "empty": b""}[hold])
    assert foreign(looked(made)) == ([] if hold == "empty" else [str(path)])  # Python compiles an empty one anew


def _imported(source: Path, *options: str, **variables: str) -> None:
    environ = {**os.environ, **variables}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    run = [sys.executable, *options, "-c", "import torch.a"]
    subprocess.run(run, check=True, cwd=source.parent.parent, env=environ)


def _compileall(source: Path, *options: str) -> None:
    run = [sys.executable, "-m", "compileall", "-q", "-f", *options, str(source.parent)]
    subprocess.run(run, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})


def _stale(source: Path) -> None:
    path = compiled(source, b"KINDS = 1")
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # another time than the source's
    path.write_bytes(data)


def _of_another_magic(source: Path) -> None:
    path = compiled(source, b"KINDS = 1")
    path.write_bytes(b"\x00\x00\r\n" + path.read_bytes()[4:])


def _elsewhere(source: Path) -> None:
    compiled(source, b"KINDS = 1").rename(source.parent / "__pycache__/a.cpython-399.pyc")


def _without_source(source: Path) -> None:
    compiled(source, b"KINDS = 1").rename(source.parent / f"__pycache__/gone.{sys.implementation.cache_tag}.pyc")


@pytest.mark.parametrize(
    "prepare",
    [
        _imported,
        lambda source: _imported(source, "-O"),
        lambda source: _imported(source, "-OO"),
        lambda source: _imported(source, "-X", "no_debug_ranges"),
        lambda source: _imported(source, PYTHONHASHSEED="3"),
        _compileall,
        lambda source: _compileall(source, "-d", "/elsewhere"),
        lambda source: _compileall(source, "--invalidation-mode", "unchecked-hash"),
        lambda source: _compileall(source, "--invalidation-mode", "checked-hash"),
        lambda source: _compileall(source, "-o", "0", "-o", "1", "-o", "2"),
        _stale,
        _of_another_magic,
        _elsewhere,
        _without_source,
    ],
)
def test_what_python_compiled_itself_or_does_not_take_is_no_finding(
    made: Stage, source: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(source)
    assert any(source.parent.glob("__pycache__/*.pyc"))
    assert foreign(looked(made, deep=True)) == []


def test_an_unwatched_package_is_compared_with_deep(made: Stage) -> None:
    path = compiled(made.site / "plain/a.py", b"KINDS = 1")
    assert foreign(looked(made)) == []
    assert foreign(looked(made, deep=True)) == [str(path)]


def test_a_sound_file_is_compared_once_and_again_when_it_changes(
    made: Stage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digests = compiled(source, SOURCE), Digests()
    os.utime(path)
    monkeypatch.setattr(bytecode, "is_racy", lambda key, now: False)
    assert looked(made, digests).bytecode == Bytecode(compared=1, left=0)
    monkeypatch.setattr(bytecode, "SECONDS", -1.0)
    assert looked(made, digests).bytecode == Bytecode(compared=1, left=0)
    stat = path.stat()
    compiled(source, SOURCE.replace(b"2.5", b"2.4"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    late = looked(made, digests)
    assert (late.bytecode, foreign(late)) == (Bytecode(compared=0, left=1), [])
    assert foreign(looked(made, digests, deep=True)) == [str(path)]


def test_files_of_another_release_are_left_and_undetermined_with_deep(
    made: Stage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(source, b"KINDS = 1")
    env = locate(LiveHost(), str(made.python), str(made.project))
    assert bytecode.is_own_release(env)
    monkeypatch.setattr("platform.python_version", lambda: "3.11.999")
    shallow, deep = looked(made), looked(made, deep=True)
    assert shallow.bytecode == Bytecode(compared=0, left=1)
    assert not any("compiled" in item.what for item in shallow.unknown)
    assert [item.reason for item in deep.unknown if "compiled" in item.what] == ["undecided"]
