"""A digest of what CPython's marshal format holds; nothing is loaded from it.

`marshal.loads` is not safe with foreign bytes. The same source also gives different bytes in different processes:
whether an object is written once and referred to depends on who else holds it, and sets have no order. The digest is
the same for all of them. The layout is that of CPython 3.11 and later (`Python/marshal.c`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

_FLAG_REF = 0x80
_MOST_LAYERS = 300  # code within code within tuples; CPython itself stops at 2,000
_SINGLETONS = frozenset(b"0NFTS.")
_FIXED = {ord("i"): 4, ord("g"): 8, ord("y"): 16}
_LONG, _BYTES, _SHORT_TEXT, _TEXT = ord("l"), ord("s"), frozenset(b"zZ"), frozenset(b"tuaA")
_SMALL_TUPLE, _SLICE, _CODE, _REF = ord(")"), ord(":"), ord("c"), ord("r")
_MANY = frozenset(b"([<>")
_SETS = frozenset(b"<>")
_FILE_NAME, _LINES = 5, 8


class NotMarshalled(ValueError):
    """The bytes are no marshalled value, or one that no compiler writes."""


def digest_marshalled(data: bytes) -> str:
    """Of the one value in `data`, in hex; the file name and the line table of code are left out. Raises
    `NotMarshalled`."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise NotMarshalled("bytes follow the value")
    return hashlib.sha256(value).hexdigest()


class _Reader:
    """Each value is bytes: the type and the content of an atom, a digest of anything larger. So values that refer to
    one another a thousand times cost no more than they take in the file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.refs: list[bytes | None] = []

    def value(self, layer: int) -> bytes:
        if layer > _MOST_LAYERS:
            raise NotMarshalled("nested too deep")
        first = self._take(1)[0]
        kind = first & ~_FLAG_REF
        if kind == _REF:
            return self._referred()
        if not first & _FLAG_REF:
            return self._value(kind, layer)
        index = len(self.refs)  # CPython counts a container before what is in it
        self.refs.append(None)
        found = self.refs[index] = self._value(kind, layer)
        return found

    def _referred(self) -> bytes:
        index = self._number()
        found = self.refs[index] if 0 <= index < len(self.refs) else None
        if found is None:
            raise NotMarshalled("a reference to nothing")
        return found

    def _value(self, kind: int, layer: int) -> bytes:
        if kind in _SINGLETONS:
            return bytes((kind,))
        if kind in _SHORT_TEXT:
            return b"u" + self._take(self._take(1)[0])
        if kind in _TEXT:
            return b"u" + self._take(self._number())
        if kind == _BYTES:
            return b"s" + self._take(self._number())
        if kind in _FIXED:
            return bytes((kind,)) + self._take(_FIXED[kind])
        if kind == _SMALL_TUPLE:
            return _joined(b"(", self._values(self._take(1)[0], layer))
        if kind in _MANY:
            values = self._values(self._number(), layer)
            return _joined(bytes((kind,)), sorted(values) if kind in _SETS else values)
        if kind == _CODE:
            return self._code(layer)
        if kind == _SLICE:
            return _joined(b":", self._values(3, layer))
        if kind == _LONG:
            count = self._number()
            return b"l" + struct.pack("<i", count) + self._take(2 * abs(count))
        raise NotMarshalled(f"no value begins with {kind:#x}")

    def _values(self, count: int, layer: int) -> list[bytes]:
        if not 0 <= count <= len(self.data) - self.at:
            raise NotMarshalled("it ends within a value")
        return [self.value(layer + 1) for _ in range(count)]

    def _code(self, layer: int) -> bytes:
        counts = self._take(5 * 4)
        fields = self._values(8, layer)
        line = self._take(4)
        fields += self._values(2, layer)
        kept = [field for at, field in enumerate(fields) if at not in (_FILE_NAME, _LINES)]
        return _joined(b"c", (counts, line, *kept))

    def _number(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise NotMarshalled("it ends within a value")
        taken, self.at = self.data[self.at : end], end
        return taken


def _joined(kind: bytes, values: Iterable[bytes]) -> bytes:
    hasher = hashlib.sha256(kind)
    for value in values:
        hasher.update(b"%d:" % len(value))
        hasher.update(value)
    return b"h" + hasher.digest()
