"""Another build of the same Python release under an environment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.fingerprint.diff import compare
from envguard.fingerprint.snapshot import Request, take
from envguard.model.fingerprint import Binary, Fingerprint
from envguard.state.digests import Digests

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The program, the headers and a landmark of this interpreter's installation, in a place of its own."""
    own, made = Path(sys.base_prefix), tmp_path / "base"
    (made / "bin").mkdir(parents=True)
    shutil.copy(own / "bin" / VERSION, made / "bin" / VERSION)
    (made / "lib" / VERSION / "lib-dynload").mkdir(parents=True)
    shutil.copy(own / "lib" / VERSION / "os.py", made / "lib" / VERSION)
    for module in (own / "lib" / VERSION / "lib-dynload").glob("_json.*"):
        shutil.copy(module, made / "lib" / VERSION / "lib-dynload")
    (made / "include" / VERSION).mkdir(parents=True)
    shutil.copy(own / "include" / VERSION / "patchlevel.h", made / "include" / VERSION)
    return made


@pytest.fixture
def venv(base: Path, tmp_path: Path) -> Path:
    made = tmp_path / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "lib" / VERSION / "site-packages").mkdir(parents=True)
    version = ".".join(map(str, sys.version_info[:3]))
    (made / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = {version}\n")
    (made / "bin/python").symlink_to(base / "bin" / VERSION)
    return made


def looked(venv: Path) -> Fingerprint:
    return take(LiveHost(), Request(str(venv.parent), str(venv), config=Config()), Digests())


def python_drifts(a: Fingerprint, b: Fingerprint) -> list[tuple[str, str]]:
    report = compare(a, b, (), "a", "b")
    assert not any(item.what.startswith("python") for item in report.unknown)
    return [(drift.subject, drift.severity) for drift in report.drifts if drift.facet == "python"]


def _grown(venv: Path, base: Path) -> None:
    with (base / "bin" / VERSION).open("ab") as file:
        file.write(b"\0" * 64)


def _edited(venv: Path, base: Path) -> None:
    with (base / "bin" / VERSION).open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"replaced")


def _copied_into_the_venv(venv: Path, base: Path) -> None:
    (venv / "bin/python").unlink()
    shutil.copy(base / "bin" / VERSION, venv / "bin/python")
    with (venv / "bin/python").open("ab") as file:
        file.write(b"\0")


def _with_a_library(venv: Path, base: Path) -> None:
    shutil.copy(base / "bin" / VERSION, base / f"lib/lib{VERSION}.so.1.0")


@pytest.mark.parametrize("change", [_grown, _edited, _copied_into_the_venv, _with_a_library])
def test_another_binary_of_the_same_release_warns(
    venv: Path, base: Path, change: Callable[[Path, Path], None]
) -> None:
    before = looked(venv)
    assert before.python.binaries is not None
    change(venv, base)
    after = looked(venv)
    assert (before.python.version, before.id) == (after.python.version, after.id)
    assert python_drifts(before, after) == [("build", "warn")]


def _nothing(venv: Path, base: Path) -> None:
    pass


def _copied_again(venv: Path, base: Path) -> None:
    own = base / "bin" / VERSION
    shutil.copy(own, own.with_name("new"))
    own.with_name("new").replace(own)


def _copied_as_it_is(venv: Path, base: Path) -> None:
    (venv / "bin/python").unlink()
    shutil.copy(base / "bin" / VERSION, venv / "bin/python")


def _touched(venv: Path, base: Path) -> None:
    (base / "bin" / VERSION).touch()


@pytest.mark.parametrize("change", [_nothing, _copied_again, _copied_as_it_is, _touched])
def test_the_same_binary_is_no_difference(venv: Path, base: Path, change: Callable[[Path, Path], None]) -> None:
    before = looked(venv)
    change(venv, base)
    assert python_drifts(before, looked(venv)) == []


def with_binaries(taken: Fingerprint, binaries: dict[str, Binary] | None, base: str | None = None) -> Fingerprint:
    python = msgspec.structs.replace(taken.python, binaries=binaries, base=base or taken.python.base)
    return msgspec.structs.replace(taken, python=python)


@pytest.mark.parametrize("old_first", [True, False])
def test_a_fingerprint_from_before_it_was_looked_at_does_not_differ(venv: Path, old_first: bool) -> None:
    new = looked(venv)
    old = with_binaries(new, None)
    assert python_drifts(*((old, new) if old_first else (new, old))) == []


@pytest.mark.parametrize(("build_id", "differs"), [("ab" * 20, []), (None, [("build", "warn")])])
def test_a_place_that_an_installer_wrote_into_it_is_no_other_build(
    venv: Path, build_id: str | None, differs: list[tuple[str, str]]
) -> None:
    taken = looked(venv)
    a, b = (
        with_binaries(taken, {"python": Binary(size=10, build_id=build_id, digest=digest)}, base)
        for base, digest in (("/opt/conda", "11"), ("/home/ada/conda", "22"))
    )
    assert python_drifts(a, b) == differs
