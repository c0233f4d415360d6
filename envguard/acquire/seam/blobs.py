"""Byte strings by their sha256, the long ones kept packed: a log of a million lines must not be held as it is."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator

PACK_FROM = 16 << 10
"""Bytes below which packing saves less than it costs."""
LEVEL = 1
"""Of compression: logs and tables shrink to a tenth at the least of costs."""


class Blobs:
    """Contents of files, each once. `total` counts their bytes, `held` those that memory holds of them."""

    def __init__(self) -> None:
        self._plain: dict[str, bytes] = {}
        self._packed: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self.total = 0
        self.held = 0

    def add(self, data: bytes) -> str:
        """Keeps bytes; returns their sha256, hex."""
        name = hashlib.sha256(data).hexdigest()
        if name in self._sizes:
            return name
        if len(data) < PACK_FROM:
            kept = self._plain[name] = data
        else:
            kept = self._packed[name] = zlib.compress(data, LEVEL)
        self._sizes[name] = len(data)
        self.total += len(data)
        self.held += len(kept)
        return name

    def remove(self, name: str) -> None:
        """Lets go of bytes."""
        self.total -= self._sizes.pop(name)
        kept = self._plain.pop(name, None)
        self.held -= len(kept if kept is not None else self._packed.pop(name))

    def __getitem__(self, name: str) -> bytes:
        plain = self._plain.get(name)
        return plain if plain is not None else zlib.decompress(self._packed[name])

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[str]:
        """Names in order, so that the same contents give the same file."""
        return iter(sorted(self._sizes))


class Lines:
    """Many lines, kept packed: written once, then read from the start."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        """`lines` without their newlines."""
        self._stream = io.BytesIO()
        self.size = self.count = 0
        with gzip.GzipFile(fileobj=self._stream, mode="wb", compresslevel=LEVEL) as packed:
            for line in lines:
                self.size += packed.write(line + b"\n")
                self.count += 1

    def open(self) -> gzip.GzipFile:
        """The lines as a file of `size` bytes."""
        self._stream.seek(0)
        return gzip.GzipFile(fileobj=self._stream)
