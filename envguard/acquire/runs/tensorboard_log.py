"""TensorBoard event files as training logs, without TensorBoard.

A file is a row of records: length (u64), its checksum, the message, its checksum. A torn last record, as a killed
writer leaves one, ends the reading; a length that its checksum denies is damage. Of a message the wall time, the step
and the scalars are read, by the field numbers of `tensorflow/core/util/event.proto` and `summary.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.roles import NAMES, is_gradient, is_loss, rate_of, words_of
from envguard.acquire.runs.tracked import Steps
from envguard.acquire.runs.train_log import TrainLog
from envguard.acquire.seam.host import Host
from envguard.config import LogFields

CHUNK = 8 << 20
LONGEST = 64 << 20
"""Bytes of a record that is read; images and graphs of more are passed over."""


class DamagedLog(OSError):
    """A file that is there and is not what its format says."""


def read_event_file(host: Host, log: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
    """The scalars of an event file by step; None where none of them is a rate or a loss.

    Raises `DamagedLog` where no record could be read, and OSError. What was read before a damage is kept and named.
    """
    steps = Steps()
    damage = None
    try:
        for data in _records(host, log.path, log.stat.size):
            step, time, scalars = _event(data)
            wanted = {tag: value for tag, value in scalars.items() if _tells(tag, configured)}
            if wanted:
                steps.take(step, ("wall_time", time), wanted)
    except DamagedLog as error:
        if not steps.rows:
            raise
        damage = error.strerror
    found = steps.log(log, configured, zone)
    if damage is not None:
        if found is None:
            raise DamagedLog(0, damage, log.path)
        found.doubts.append(damage)
    return found


def _tells(tag: str, configured: LogFields) -> bool:
    words = words_of(tag)
    return (
        is_loss(words)
        or is_gradient(words)
        or rate_of(tag.rpartition("/")[2]) is not None
        or rate_of("/".join(tag.split("/")[-2:])) is not None
        or any(tag == getattr(configured, role, None) or tag in NAMES[role] for role in ("tok_s", "loss", "samples"))
    )


def _records(host: Host, path: str, size: int) -> Iterator[bytes]:
    offset, held, skip = 0, b"", 0
    at = 0
    while offset < size or held:
        piece = host.read(path, min(CHUNK, size - offset), offset) if offset < size else b""
        offset += len(piece)
        if skip:
            dropped = min(skip, len(piece))
            piece, skip = piece[dropped:], skip - dropped
            if skip and offset < size:
                continue
        held += piece
        begin = 0
        while begin + 12 <= len(held):
            (length, checksum) = struct.unpack_from("<QI", held, begin)
            if _masked_crc(held[begin : begin + 8]) != checksum:
                raise DamagedLog(
                    0, f"is damaged at byte {at + begin:,}: a record's length and its checksum differ", path
                )
            end = begin + 12 + length + 4
            if length > LONGEST:
                skip = max(0, end - len(held))
                begin = min(end, len(held))
                continue
            if end > len(held):
                break
            yield held[begin + 12 : end - 4]
            begin = end
        at += begin
        held = held[begin:]
        if not piece:
            return  # the rest is a record that was never finished


def _event(data: bytes) -> tuple[int, float, dict[str, float]]:
    """Step, wall time in s since the epoch, and scalars by tag of one `Event` message."""
    step, time = 0, 0.0
    scalars: dict[str, float] = {}
    for number, value in _message(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value if value < 1 << 62 else -1
        elif number == 5 and isinstance(value, bytes):
            for inner, item in _message(value):
                if inner == 1 and isinstance(item, bytes):
                    _scalar(item, scalars)
    return step, time, scalars


def _scalar(data: bytes, scalars: dict[str, float]) -> None:
    tag, number = "", None
    for place, value in _message(data):
        if place == 1 and isinstance(value, bytes):
            tag = value[:200].decode("utf-8", "replace")
        elif place == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif place == 8 and isinstance(value, bytes):
            number = _of_tensor(value)
    if tag and number is not None:
        scalars[tag] = number


def _of_tensor(data: bytes) -> float | None:
    """The one number of a `TensorProto`: as floats, doubles, or the bytes of one of them."""
    kind, found = 1, None
    for place, value in _message(data):
        if place == 1 and isinstance(value, int):
            kind = value
        elif place in (4, 5, 6) and isinstance(value, bytes) and len(value) in (4, 8):
            double = place == 6 or (place == 4 and kind == 2)
            if len(value) == (8 if double else 4):
                (found,) = struct.unpack("<d" if double else "<f", value)
    return found


def _message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message: numbers of variable length, and the bytes of all others."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, number = key & 7, key >> 3
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise DamagedLog(0, "is damaged: a message of it is no event")
        if at + length > len(data):
            raise DamagedLog(0, "is damaged: a message of it is cut short")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise DamagedLog(0, "is damaged: a number in it has no end")


def _table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return tuple(table)


_CRC32C = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
