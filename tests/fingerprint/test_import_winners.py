"""Files of nobody inside a watched package that an import takes before the package's own."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.seam.host import Kind, LiveHost, NotRecorded
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint.diff import compare
from envguard.fingerprint.snapshot import Request, take
from envguard.model.fingerprint import Fingerprint
from envguard.state.digests import Digests

FILES = {
    "torch/__init__.py": b"",
    "torch/version.py": b"__version__ = '2.8.0'\ncuda = '12.8'\nhip = None\n",
    "torch/nn.py": b"",
    "torch/deep/__init__.py": b"",
    "torch/deep/core.py": b"",
    "torch/both.py": b"",
    "torch/both/__init__.py": b"",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("winners") / "stage")
    stage.make_venv()
    build_wheel(stage.wheels, "torch", "2.8.0", files=FILES)
    build_wheel(stage.wheels, "addon", "1.0", files={"torch/deep/core.abi3.so": b""})
    build_wheel(stage.wheels, "plain", "1.0", files={"plain/__init__.py": b"", "plain/a.py": b""})
    stage.install("torch", "plain")
    return stage


def looked(stage: Stage) -> Fingerprint:
    return take(LiveHost(), Request(str(stage.project), str(stage.python), config=Config()), Digests())


def put(stage: Stage, name: str) -> Path:
    path = stage.site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def imported(stage: Stage, module: str) -> str:
    asked = f"import importlib.util as u; print(u.find_spec({module!r}).origin)"
    done = subprocess.run([stage.python, "-B", "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        ("torch/nn.so", "torch.nn"),
        ("torch/nn.abi3.so", "torch.nn"),
        ("torch/nn/__init__.py", "torch.nn"),
        ("torch/deep/core.so", "torch.deep.core"),
        ("torch/deep/core/__init__.py", "torch.deep.core"),
    ],
)
def test_what_wins_an_import_is_drift_that_blocks(made: Stage, extra: str, module: str) -> None:
    before = looked(made)
    path = put(made, extra)
    try:
        assert imported(made, module) == str(path)  # Python agrees
        after = looked(made)
    finally:
        shutil.rmtree(path.parent) if path.name == "__init__.py" else path.unlink()
    assert [problem.path for problem in after.problems if problem.kind == "extra-import"] == [str(path)]
    drifts = compare(before, after, (), "a", "b").drifts
    assert ("torch", "block") in [(drift.subject, drift.severity) for drift in drifts]


@pytest.mark.parametrize(
    "extra",
    [
        "torch/nn.pyc",
        "torch/nn.cpython-38-x86_64-linux-gnu.so",
        "torch/new.py",
        "torch/nn/notes.txt",
        "torch/nn/__init__.pyi",
        "torch/nn.txt",
        "torch/__pycache__/nn.cpython-311.pyc",
        "plain/a.so",
    ],
)
def test_what_wins_none_is_no_finding(made: Stage, extra: str) -> None:
    """Packages that are not watched are looked at by stat alone, and `verify` reports what is in them."""
    path = put(made, extra)
    try:
        assert [problem for problem in looked(made).problems if problem.kind == "extra-import"] == []
    finally:
        path.unlink()
        if path.parent.name == "nn":
            path.parent.rmdir()


def test_what_another_package_brings_is_its_own_affair(made: Stage) -> None:
    made.install("addon")
    assert [problem for problem in looked(made).problems if problem.kind == "extra-import"] == []


def test_a_stamp_looks_as_well(made: Stage) -> None:
    path = put(made, "torch/nn.so")
    try:
        asked = Request(str(made.project), str(made.python), config=Config(), in_process=True)
        taken = take(LiveHost(), asked, Digests())
    finally:
        path.unlink()
    assert [problem.path for problem in taken.problems if problem.kind == "extra-import"] == [str(path)]


class WithoutListings(LiveHost):
    """A bundle of a version that did not list the folders of packages."""

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == "listing" and "/torch" in arguments[0]:
            raise NotRecorded(arguments[0])
        return super().call(operation, *arguments)


def test_where_folders_were_not_listed_it_is_undetermined(made: Stage) -> None:
    before = looked(made)
    asked = Request(str(made.project), str(made.python), config=Config())
    after = take(WithoutListings(), asked, Digests())
    report = compare(before, after, (), "a", "b")
    assert "whether files beside the modules of torch hide them" in {item.what for item in report.unknown}
    assert report.exit_code() == 3


class _Shut(LiveHost):
    """A machine on which one folder cannot be listed, for a reason that is not its absence."""

    def listing(self, path: str) -> tuple[tuple[str, Kind], ...]:
        if path.endswith("/torch/nn"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return super().listing(path)


def test_a_folder_that_cannot_be_read_beside_a_module_is_not_passed_over(made: Stage) -> None:
    """It may be a package, and would then be imported instead of the module."""
    folder = made.site / "torch/nn"
    folder.mkdir()
    try:
        seen = take(_Shut(), Request(str(made.project), str(made.python), config=Config()), Digests())
        assert any(item.decides and f"{folder} hides a module of torch" in item.what for item in seen.unknown)
    finally:
        folder.rmdir()
