"""The uv cache as a witness: facts of the real uv that the reader depends on, and every pointer format known."""

from __future__ import annotations

import hashlib
import struct
import time
from pathlib import Path

import msgpack
import pytest

from envguard.acquire.packages.record_file import Row
from envguard.acquire.packages.uv_cache import as_installed, read_caches
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage

DIGEST = "ab" * 32


def archive(cache: Path, name: str = "sound", version: str = "1.0", identity: str = "Abc123") -> Path:
    """An archive as uv unpacks one."""
    folder = cache / "archive-v0" / identity
    dist_info = folder / f"{name}-{version}.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    (dist_info / "RECORD").write_text(f"{name}.py,sha256=abc,3\n{dist_info.name}/RECORD,,\n")
    return folder


def pointer(cache: Path, data: bytes, suffix: str = ".http", bucket: str = "wheels-v8/pypi") -> Path:
    path = cache / bucket / "sound" / f"1.0-py3-none-any{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def policy(url: bytes = b"https://example.org/sound-1.0-py3-none-any.whl", fetched: int = 1_780_000_000) -> bytes:
    """What follows the msgpack: the URL, then u64 times, the response's own thrice and another once."""
    times = struct.pack("<QQQQ", fetched, 1_700_000_000, fetched, fetched)
    return b"RYgpwQfM" + url + b"\0" * (-len(url) % 8) + times


@pytest.mark.parametrize(
    ("value", "sha256"),
    [
        (["Abc123", [{"Sha256": DIGEST}], "sound-1.0-py3-none-any.whl", 0, 100], DIGEST),
        (["Abc123", []], None),
        ({"id": "Abc123", "hashes": [{"algorithm": "Sha256", "digest": DIGEST}], "filename": "x.whl"}, DIGEST),
        (["Abc123", [["sha256", DIGEST]], "sound-1.0-py3-none-any.whl"], DIGEST),
        (["Abc123", [{"Sha512": "00"}], "sound-1.0-py3-none-any.whl"], None),
        (["Abc123", [{"Sha256": "not hex"}]], None),
    ],
)
def test_http_pointers_of_every_format(tmp_path: Path, value: object, sha256: str | None) -> None:
    archive(tmp_path)
    pointer(tmp_path, msgpack.packb(value) + policy())
    (found,) = read_caches(LiveHost(), (str(tmp_path),)).archives
    (seen,) = found.pointers
    assert (seen.sha256, seen.kind, seen.bucket, seen.source) == (sha256, "http", "wheels-v8", "pypi")
    assert seen.url == "https://example.org/sound-1.0-py3-none-any.whl"
    assert seen.fetched_at == 1_780_000_000


def test_rev_pointers_and_links_and_older_buckets(tmp_path: Path) -> None:
    folder = archive(tmp_path)
    pointer(
        tmp_path, msgpack.packb([[1_780_000_000, 5], ["Abc123", [], "s.whl", 0, 1]]), ".rev", "wheels-v5/index/d1"
    )
    link = tmp_path / "sdists-v11" / "pypi" / "sound" / "1.0" / "build" / "sound-1.0-py3-none-any"
    link.parent.mkdir(parents=True)
    link.symlink_to(folder)
    (found,) = read_caches(LiveHost(), (str(tmp_path),)).archives
    by_kind = {item.kind: item for item in found.pointers}
    assert by_kind["rev"].source_ctime_ns == 1_780_000_000 * 10**9 + 5
    assert (by_kind["rev"].bucket, by_kind["rev"].source) == ("wheels-v5", "index/d1")
    assert by_kind["link"].archive == "Abc123"
    assert not found.dangling


def test_what_is_no_wheel_is_skipped_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    archive(tmp_path)
    environment = archive(tmp_path, "other", "2.0", "Env")
    (environment / "pyvenv.cfg").write_text("")
    torn = archive(tmp_path, "torn", "1.0", "Torn")
    (torn / "torn-1.0.dist-info" / "RECORD").unlink()
    pointer(tmp_path, b"\xc1 no msgpack")
    caches = read_caches(LiveHost(), (str(tmp_path), str(tmp_path / "nowhere")))
    assert {a.name: (a.dangling, a.build is None) for a in caches.archives} == {
        "sound": (True, False),
        "torn": (True, True),
    }
    assert [item.what for item in caches.unknown] == [str(tmp_path / "wheels-v8/pypi/sound/1.0-py3-none-any.http")]
    assert caches.directories == (str(tmp_path),)


def test_a_wheel_with_a_data_folder_is_known_again_in_its_install() -> None:
    rows = (
        Row("x-1.0.data/purelib/x/a.py", "sha256=a", 1),
        Row("x-1.0.data/scripts/tool", "sha256=b", 1),
        Row("x/b.py", "sha256=c", 1),
    )
    assert [row.path for row in as_installed(rows)] == ["x/a.py", "x/b.py"]


def test_the_real_uv_leaves_what_the_reader_expects(stage: Stage, story_wheels: Path) -> None:
    before = int(time.time())
    with serve_index(story_wheels) as index:
        stage.install("torch==2.11.0+cu128", index=index)
    caches = read_caches(LiveHost(), (str(stage.cache),))
    (torch,) = caches.of("torch")
    (wheel,) = story_wheels.glob("torch-2.11.0+cu128-*")
    (seen,) = torch.pointers
    assert seen.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert seen.filename == wheel.name
    assert seen.size == wheel.stat().st_size
    assert seen.url is not None
    assert seen.url.startswith("http://127.0.0.1")
    assert before - 2 <= (seen.fetched_at or 0) <= time.time() + 2
    assert torch.version == "2.11.0+cu128"
    assert caches.unknown == ()


def test_a_folder_of_wheels_leaves_rev_pointers(torch_stage: Stage) -> None:
    (torch,) = read_caches(LiveHost(), (str(torch_stage.cache),)).of("torch")
    (seen,) = torch.pointers
    (wheel,) = torch_stage.wheels.glob("torch-2.11.0+cu128-*")
    assert (seen.kind, seen.url) == ("rev", None)
    assert seen.source_ctime_ns == wheel.stat().st_ctime_ns


def test_where_caches_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_home: Path) -> None:
    project = tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text('[tool.uv]\ncache-dir = "near"\n')
    user = private_home / ".config" / "uv"
    user.mkdir(parents=True)
    (user / "uv.toml").write_text('cache-dir = "~/far"\n')
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(project)
    found = cache_directories(LiveHost(), None, Config(uv_caches=("/extra", str(tmp_path / "named"))))
    assert found == (
        str(tmp_path / "named"),
        str(tmp_path / "project" / "near"),
        str(private_home / "far"),
        str(private_home / ".cache" / "uv"),
        "/extra",
    )
