"""Wheel files read without unpacking them: names, tags and build, and what is no wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.packages.wheel_files import NotAWheel, find_pip_wheels, find_wheels, read_wheel
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel


def test_a_wheel_says_what_it_is(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "Some.Thing", "1.0+local", {"some/a.py": b"abc"}, tag="cp311-cp311-linux_x86_64")
    wheel = read_wheel(LiveHost(), str(path), "find-links")
    assert (wheel.name, wheel.version, wheel.tags) == ("some-thing", "1.0+local", ("cp311-cp311-linux_x86_64",))
    assert wheel.bytes > 3


def test_a_wheel_and_its_archive_are_one_build(torch_stage: Stage) -> None:
    (path,) = torch_stage.wheels.glob("torch-2.11.0+cu128-*")
    (archive,) = read_caches(LiveHost(), (str(torch_stage.cache),)).of("torch")
    assert read_wheel(LiveHost(), str(path), "find-links").build == archive.build


def test_only_the_names_asked_for_are_opened(tmp_path: Path) -> None:
    build_wheel(tmp_path, "one", "1.0")
    (tmp_path / "two-1.0-py3-none-any.whl").write_bytes(b"no zip at all")
    (tmp_path / "one-2.0-py3-none-any.whl").write_bytes(b"no zip either")
    found, unknown = find_wheels(LiveHost(), (str(tmp_path), str(tmp_path / "nowhere")), frozenset({"one"}))
    assert [wheel.version for wheel in found] == ["1.0"]
    assert [item.what for item in unknown] == [
        str(tmp_path / "one-2.0-py3-none-any.whl"),
        f"find-links folder {tmp_path / 'nowhere'}",
    ]


@pytest.mark.parametrize("header", [b"", b"cc=4,\x82\xa8response\x86\xa4body\xc6\0\0\0\0"])
def test_a_wheel_in_pips_http_cache_is_found_behind_any_header(tmp_path: Path, header: bytes) -> None:
    path = build_wheel(tmp_path / "made", "one", "1.0")
    cached = tmp_path / "cache" / ("http" if header else "http-v2") / "a" / "b" / "abcdef"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(header + path.read_bytes() + (b"\xa7headers\x80" if header else b""))
    found, unknown = find_pip_wheels(LiveHost(), str(tmp_path / "cache"), frozenset({"one"}))
    assert [(wheel.name, wheel.version, wheel.place) for wheel in found] == [("one", "1.0", "pip-cache")]
    assert unknown == ()


def test_what_is_no_wheel(tmp_path: Path) -> None:
    torn = build_wheel(tmp_path, "one", "1.0")
    torn.write_bytes(torn.read_bytes()[:-30])
    with pytest.raises(NotAWheel):
        read_wheel(LiveHost(), str(torn), "find-links")
