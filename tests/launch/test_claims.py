"""Two launches on one GPU, and a private compile cache that begins warm."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.launch import seed, start
from envguard.launch.claims import claim

HOLDER = """
import os, sys
from envguard.acquire.seam.host import LiveHost
from envguard.launch.claims import claim
claims = claim(LiveHost(), sys.argv[1:], os.environ)
print("ready", len(claims.held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def key() -> str:
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def holder(key: str) -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(root), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready 1\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_launch_on_a_gpu_is_told_who_holds_it(key: str, holder: subprocess.Popen[str]) -> None:
    claims = claim(LiveHost(), [key, f"{key}-other"], {})
    assert claims.taken == {key: holder.pid}
    assert len(claims.held) == 1
    claims.release()


def test_a_claim_goes_with_its_holder_even_when_it_is_killed(key: str, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    claims = claim(LiveHost(), [key], {})
    assert (claims.taken, len(claims.held)) == ({}, 1)
    claims.release()


def test_ranks_of_one_job_step_share_their_gpus(key: str, holder: subprocess.Popen[str]) -> None:
    assert claim(LiveHost(), [key], {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}).taken == {}
    assert claim(LiveHost(), [key], {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}).taken == {key: holder.pid}


def test_a_command_does_not_inherit_a_claim(key: str) -> None:
    claims = claim(LiveHost(), [key], {})
    child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        claims.release()
        again = claim(LiveHost(), [key], {})
        assert (again.taken, len(again.held)) == ({}, 1)
        again.release()
    finally:
        child.kill()
        child.wait()


def test_a_warm_cache_is_taken_along_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "torchinductor_root", tmp_path / "private"
    (source / "fxgraph" / "ab").mkdir(parents=True)
    (source / "fxgraph" / "ab" / "entry").write_bytes(b"x" * 100)
    (source / "link").symlink_to("fxgraph")
    start.make_private(target)
    assert not seed.is_filled(target)
    seed.take_along(source, target)
    assert seed.is_filled(target)
    assert (target / "fxgraph" / "ab" / "entry").read_bytes() == b"x" * 100
    assert os.readlink(target / "link") == "fxgraph"
    assert target.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(tmp_path)) == ["private", "torchinductor_root"]


def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "private"
    start.make_private(target)
    with pytest.raises(OSError, match="cannot be copied"):
        seed.take_along(tmp_path / "missing", target)
    assert os.listdir(tmp_path) == ["private"]
    assert not seed.is_filled(target)


def test_a_cache_of_another_user_is_not_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o777)
    start.make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        start.make_private(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(PermissionError):
        start.make_private(link)
