"""Wheels with other hashes than sha256 in RECORD: the stronger ones prove a file as well, the weaker ones nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.errors import NotDetermined
from envguard.restore.keeping import keep_live
from envguard.restore.progress import Silent
from tests.restore.conftest import Swapped, fingerprint, tree


def swapped_by(stage: Stage, state: Path, algorithm: str) -> Swapped:
    """Version 2 over version 1, both with hashes by that algorithm."""
    for version in ("1.0", "2.0"):
        build_wheel(stage.wheels, "sound", version, {"sound/a.py": version.encode()}, algorithm=algorithm)
    stage.install("sound==1.0")
    each = Swapped(stage, fingerprint(stage), state)
    request = each.request()
    keep_live(LiveHost(), request.project, request.env, each.before, Silent())
    stage.install("sound==2.0")
    return each


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_they_are_restored_from_the_cache_and_from_the_vault(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    each = swapped_by(stage, tmp_path / "state", algorithm)
    outcome = each.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert outcome.chosen["sound"].place == "uv-cache"
    assert (stage.site / "sound" / "a.py").read_text() == "1.0"
    stage.install("sound==2.0")
    shutil.rmtree(stage.cache)
    outcome = each.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert outcome.chosen["sound"].place == "vault"
    assert (stage.site / "sound" / "a.py").read_text() == "1.0"


def test_a_poisoned_archive_is_refused_by_its_own_hash(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    each = swapped_by(stage, tmp_path / "state", "sha512")
    shutil.rmtree(each.state)
    (file,) = (path for path in stage.cache.glob("archive-v0/*/sound/a.py") if path.read_text() == "1.0")
    file.write_text("1.1")
    before = tree(stage.venv)
    outcome = each.restore()
    assert outcome.failure is not None
    assert [(item.path or "").rpartition("/")[2] for item in outcome.poisoned] == ["a.py"]
    assert tree(stage.venv) == before


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha224"])
def test_a_weak_hash_proves_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    each = swapped_by(stage, tmp_path / "state", algorithm)
    before = tree(stage.venv)
    with pytest.raises(NotDetermined, match="RECORD has no hash that proves anything"):
        each.restore()
    assert tree(stage.venv) == before
