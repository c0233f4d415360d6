"""Files that an install without RECORD left: they are named, since nothing says whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.restore.conftest import Swapped, fingerprint


@pytest.mark.parametrize("record", [None, b""])
def test_what_only_the_other_version_had_is_named(
    record: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "stage")
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    stage.make_venv()
    build_wheel(stage.wheels, "pine", "1.0", {"pine/__init__.py": b"1", "pine/a.py": b"1"})
    build_wheel(stage.wheels, "pine", "2.0", {"pine/__init__.py": b"2", "pine/a.py": b"2", "pine/deep/new.py": b"2"})
    stage.install("pine==1.0")
    swapped = Swapped(stage, fingerprint(stage), tmp_path / "state")
    stage.install("pine==2.0", arguments=["--link-mode", "copy"])
    path = stage.site / "pine-2.0.dist-info/RECORD"
    path.unlink()
    if record is not None:
        path.write_bytes(record)
    outcome = swapped.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    [note] = [note for note in outcome.notes if "no RECORD" in note]
    assert note == "pine: its install had no RECORD, and files that no package lists stay: pine/deep/new.py"
    assert (stage.site / "pine/a.py").read_text() == "1"
