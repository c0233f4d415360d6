"""Wheels and environments of unusual shape: scripts and data, namespaces, editable installs, blanks in paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore import undoing
from envguard.restore.wanted import from_fingerprint
from tests.restore.conftest import Swapped, fingerprint, tree

SCRIPT = b"#!python\nprint('%s')\n"


def build(folder: Path, version: str) -> None:
    build_wheel(
        folder, "tool", version,
        {
            "tool/__init__.py": f"version = '{version}'\n".encode(),
            "tool/with a blank.py": version.encode(),
            f"tool-{version}.data/scripts/tool-script": SCRIPT % version.encode(),
            f"tool-{version}.data/data/share/tool/table.txt": version.encode(),
            f"tool-{version}.data/data/share/tool/only-{version}.txt": b"",
            f"tool-{version}.data/headers/tool.h": version.encode(),
            f"tool-{version}.data/purelib/tool/more.py": version.encode(),
        },
        scripts={"tool-entry": "tool:main"},
    )  # fmt: skip
    build_wheel(folder, "space-one", version, {"space/one.py": version.encode()})
    build_wheel(folder, "space-two", version, {"space/two.py": version.encode()})


@pytest.fixture
def shaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swapped:
    """Version 2 of everything over version 1, in a venv whose path has a blank, beside an editable install."""
    stage = Stage(tmp_path / "my stage")
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    stage.venv = stage.project / "my venv"
    stage.make_venv()
    for version in ("1", "2"):
        build(stage.wheels, version)
    source = tmp_path / "my source"
    (source / "mine").mkdir(parents=True)
    (source / "mine" / "__init__.py").write_text("value = 1\n")
    (stage.site / "__editable__.mine-0.1.pth").write_text(f"{source}\n")
    stage.install("tool==1", "space-one==1", "space-two==1")
    before = fingerprint(stage)
    stage.install("tool==2", "space-one==2")
    return Swapped(stage, before, tmp_path / "state")


def test_scripts_data_and_namespaces_go_and_come_as_one(shaped: Swapped) -> None:
    stage = shaped.stage
    before, pth = tree(stage.venv), (stage.site / "__editable__.mine-0.1.pth").stat()
    outcome = shaped.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert (stage.site / "space" / "one.py").read_text() == "1"
    assert (stage.site / "space" / "two.py").read_text() == "1"
    assert (stage.site / "tool" / "with a blank.py").read_text() == "1"
    assert (stage.site / "tool" / "more.py").read_text() == "1"
    share = stage.venv / "share" / "tool"
    assert sorted(path.name for path in share.iterdir()) == ["only-1.txt", "table.txt"]
    assert (share / "table.txt").read_text() == "1"
    assert "print('1')" in (stage.venv / "bin" / "tool-script").read_text()
    assert (stage.venv / "bin" / "tool-entry").exists()
    assert [path.read_text() for path in (stage.venv / "include").rglob("tool.h")] == ["1"]
    assert (stage.site / "__editable__.mine-0.1.pth").stat() == pth
    wanted = {package.name: package.build for package in shaped.before.packages}
    assert {package.name: package.build for package in fingerprint(stage).packages} == wanted
    assert undoing.roll_back(str(shaped.stage.venv), shaped.state).rolled_back
    assert tree(stage.venv) == before


def test_one_of_a_namespace_is_taken_away_and_the_other_stays(shaped: Swapped) -> None:
    names = [package for package in shaped.before.packages if package.name != "space-two"]
    less = from_fingerprint("step_690", replace(shaped.before, packages=tuple(names)))
    outcome = shaped.restore(less, exact=True)
    assert (outcome.failure, outcome.verified) == (None, True)
    assert sorted(path.name for path in (shaped.stage.site / "space").iterdir()) == ["one.py"]
