"""Build-ids: of real libraries, held against another reader, and of files that lie about themselves."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.torch.elf import CorruptElf, NotElf, read_build_id
from envguard.demo.elf import build_id, shared_library

LIBRARY = shared_library("libx.so", "seed")


class Bytes(Host):
    """One file, whose bytes are given; counts what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def call(self, operation: str, *arguments: object) -> bytes:
        assert operation == "read"
        _, limit, offset = arguments
        assert isinstance(limit, int)
        assert isinstance(offset, int)
        self.asked += limit
        return self.data[offset : offset + limit]


def test_the_build_id_is_the_one_that_the_linker_wrote() -> None:
    assert read_build_id(Bytes(LIBRARY), "x") == build_id("seed")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="the other reader, binutils, is not installed")
def test_real_libraries_read_as_readelf_reads_them() -> None:
    paths = [Path(sys.executable).resolve(), *sorted(Path("/lib/x86_64-linux-gnu").glob("lib[cmz]*.so.*"))[:20]]
    for path in paths:
        said = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
        expected = next((line.split()[-1] for line in said.splitlines() if "Build ID" in line), None)
        assert read_build_id(LiveHost(), str(path)) == expected, path


def test_a_large_library_costs_a_few_kilobytes() -> None:
    host = Bytes(LIBRARY + bytes(1 << 20))
    read_build_id(host, "x")
    assert host.asked <= 8192


def test_a_library_without_a_note_has_none() -> None:
    without = bytearray(LIBRARY)
    (table,) = struct.unpack_from("<Q", without, 32)
    for number in range(struct.unpack_from("<H", without, 56)[0]):
        if struct.unpack_from("<I", without, table + 56 * number)[0] == 4:
            struct.pack_into("<I", without, table + 56 * number, 0)
    assert read_build_id(Bytes(bytes(without)), "x") is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "does not begin"),
        (b"INPUT(libc10.so)\n", "does not begin"),
    ],
)
def test_what_is_no_library_is_named(data: bytes, says: str) -> None:
    with pytest.raises(NotElf, match=says):
        read_build_id(Bytes(data), "x")


@pytest.mark.parametrize("kept", [5, 63, 64, 100, 288])
def test_a_truncated_library_is_damage(kept: int) -> None:
    with pytest.raises(CorruptElf):
        read_build_id(Bytes(LIBRARY[:kept]), "x")


def patched(at: int, form: str, value: int) -> bytes:
    data = bytearray(LIBRARY)
    struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        patched(32, "<Q", 1 << 62),  # program headers beyond the end
        patched(32, "<Q", (1 << 64) - 8),
        patched(56, "<H", 0xFFFF),
        patched(56, "<H", 5000),
        patched(54, "<H", 1),
        patched(54, "<H", 0xFFFF),
        patched(4, "<B", 7),
        patched(5, "<B", 0),
    ],
)
def test_headers_that_cannot_be_followed_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptElf):
        read_build_id(Bytes(data), "x")


@settings(max_examples=300, deadline=None, database=None)
@given(st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_no_damage_is_more_than_damage(at: int, junk: bytes) -> None:
    host = Bytes(LIBRARY[:at] + junk + LIBRARY[at + len(junk) :])
    try:
        found = read_build_id(host, "x")
    except CorruptElf:
        found = None
    assert found is None or len(found) % 2 == 0
    assert host.asked < 4 << 20
