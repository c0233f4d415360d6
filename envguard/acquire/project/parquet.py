"""The row count of a Parquet file, from its footer alone.

The footer is a Thrift structure in the compact protocol; `num_rows` is its third field, after the version and the
schema, which are skipped. Reading it so costs one read of the footer and no dependency of some hundred megabytes.
Formats: apache/parquet-format `FileMetaData`, apache/thrift `thrift-compact-protocol`.
"""

from __future__ import annotations

import struct

from envguard.acquire.seam.host import Host

MAGIC = b"PAR1"
MAX_FOOTER = 64 << 20
_NUM_ROWS = 3
_I64 = 6
_MOST_DEPTH = 16
# Compact type → bytes of a value of fixed size; booleans stand in the field header.
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}


class CorruptParquet(ValueError):
    """Not a Parquet file, or one whose footer cannot be followed; the message says which."""


def read_rows(host: Host, path: str) -> int:
    """Number of rows. Raises `OSError` and `CorruptParquet`."""
    tail = host.read(path, 8, -8)
    if len(tail) < 8 or tail[4:] != MAGIC:
        raise CorruptParquet("it does not end as a Parquet file does")
    (size,) = struct.unpack("<I", tail[:4])
    if size > MAX_FOOTER:
        raise CorruptParquet(f"a footer of {size} bytes")
    footer = host.read(path, size, -(size + 8))
    if len(footer) < size:
        raise CorruptParquet("it is shorter than its footer")
    rows = _Compact(footer).field(_NUM_ROWS)
    if rows < 0:
        raise CorruptParquet(f"{rows} rows")
    return rows


class _Compact:
    """Walks one structure of the compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def field(self, wanted: int) -> int:
        """The i64 field of that number in the outermost structure."""
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                raise CorruptParquet(f"the footer has no field {wanted}")
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if number == wanted and head & 15 == _I64:
                return self._zigzag()
            self._skip(head & 15, 0)

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise CorruptParquet("the footer ends inside a field")
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise CorruptParquet("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise CorruptParquet("structures nested too deeply")
        if kind in _FIXED:
            self.at += _FIXED[kind]
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == 8:
            length = self._varint()
            self.at += length
        elif kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            self._check(count)
            for _ in range(count):
                self._skip_element(head & 15, depth + 1)
        elif kind == 11:
            count = self._varint()
            self._check(count)
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4, depth + 1)
                self._skip_element(kinds & 15, depth + 1)
        elif kind == 12:
            while head := self._byte():
                if not head >> 4:
                    self._zigzag()
                self._skip(head & 15, depth + 1)
        else:
            raise CorruptParquet(f"a field of unknown type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        """In a list or map a boolean takes a byte of its own."""
        if kind in (1, 2):
            self.at += 1
        else:
            self._skip(kind, depth)

    def _check(self, count: int) -> None:
        if count > len(self.data):
            raise CorruptParquet(f"a list of {count} elements in a footer of {len(self.data)} bytes")
