"""Which uv is taken, and with what environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envguard.errors import RestoreError
from envguard.restore import uv


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    uv.find_uv.cache_clear()
    yield
    uv.find_uv.cache_clear()


def pretend(folder: Path, says: str) -> None:
    folder.mkdir()
    program = folder / "uv"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "message"), [("uv 0.9.0", "needs 0.9.30 or newer"), ("something else", "does not say which uv")]
)
def test_a_uv_that_would_wait_for_our_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, message: str
) -> None:
    pretend(tmp_path / "bin", says)
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(RestoreError, match=message):
        uv.find_uv()


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RestoreError, match="uv is not here"):
        uv.find_uv()


def test_nobodys_variables_steer_an_install(tmp_path: Path) -> None:
    given = {"UV_INDEX_URL": "https://x", "PIP_INDEX_URL": "https://y", "VIRTUAL_ENV": "/z", "HOME": "/home/me"}
    made = uv.clean_environment(given, tmp_path / "work" / "cache")
    assert {name: value for name, value in made.items() if name in given} == {"HOME": "/home/me"}
    assert made["UV_CACHE_DIR"] == str(tmp_path / "work" / "cache")
    assert made["TMPDIR"] == str(tmp_path / "work")
