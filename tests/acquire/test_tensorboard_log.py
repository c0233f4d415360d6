"""Event files read without TensorBoard: scalars of three encodings, a torn end, damage in the middle, a NaN."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.runs import tensorboard_log
from tests.acquire.logs import BASE, read_folder, write

NAME = "runs/a/events.out.tfevents.1779.host.1.0"


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 & -(value & 1))
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def simple(value: float) -> bytes:
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def packed_tensor(value: float) -> bytes:
    return part(8, varint(1 << 3) + varint(1) + part(5, struct.pack("<f", value)))


def content_tensor(value: float) -> bytes:
    return part(8, varint(1 << 3) + varint(2) + part(4, struct.pack("<d", value)))


def record(step: int, values: dict[str, bytes]) -> bytes:
    scalars = b"".join(part(1, part(1, tag.encode()) + value) for tag, value in values.items())
    message = varint(1 << 3 | 1) + struct.pack("<d", BASE + 10 * step) + varint(2 << 3) + varint(step)
    message += part(5, scalars)
    head = struct.pack("<Q", len(message))
    return head + struct.pack("<I", masked(head)) + message + struct.pack("<I", masked(message))


def events(encode: Callable[[float], bytes] = simple) -> list[bytes]:
    return [
        record(step, {"perf/tokens_per_second": encode(21500.0 if step < 200 else 4300.0), "images/a": b"\x22\x00"})
        for step in range(300)
    ]


def test_the_checksum_is_the_one_that_the_format_names() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert tensorboard_log._masked_crc(b"123456789") == masked(b"123456789")


@pytest.mark.parametrize("encode", [simple, packed_tensor, content_tensor])
@pytest.mark.parametrize("tail", [b"", b"\x05", struct.pack("<Q", 99), record(300, {})[:30]])
def test_a_rate_and_a_torn_end(tmp_path: Path, encode: Callable[[float], bytes], tail: bytes) -> None:
    write(tmp_path, NAME, b"".join(events(encode)) + tail)
    read = read_folder(tmp_path)
    assert [title.partition(" at ")[0] for title in read.titles] == ["throughput fell from 21.5 Ktok/s to 4.3 Ktok/s"]
    assert (len(read.logs.trained[0]), read.logs.trained[0].time_ns[3]) == (300, (BASE + 30) * 10**9)
    assert read.undecided == []


def test_what_stands_before_a_damage_is_read_and_the_damage_named(tmp_path: Path) -> None:
    write(tmp_path, NAME, b"".join(events()) + b"\xff" * 64)
    read = read_folder(tmp_path)
    assert len(read.titles) == 1
    assert [why[:18] for why in read.undecided] == ["is damaged at byte"]


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    rows = [record(step, {"train/loss": simple(math.nan if step > 27 else 2.0)}) for step in range(60)]
    write(tmp_path, NAME, b"".join(rows))
    assert [title.partition(" (")[0] for title in read_folder(tmp_path).titles] == [
        "the loss is not a number from step 28 on"
    ]


def test_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_log, "CHUNK", 100)
    monkeypatch.setattr(tensorboard_log, "LONGEST", 500)
    image = record(0, {"image": part(4, b"\0" * 5000)})
    write(tmp_path, NAME, b"".join([image, *events()[:150], image, *events()[150:]]))
    read = read_folder(tmp_path)
    assert (len(read.titles), read.undecided) == (1, [])
