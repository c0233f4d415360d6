"""The build-id of a shared library: the linker's digest of it, kept in an ELF note of a few bytes.

Only the headers and the note are read (about 4 kB of a library of 1 GB). Every offset and count in the file is
foreign input: each is bounded before it is used, and a file that contradicts itself is `CorruptElf`.
"""

from __future__ import annotations

import struct

from envguard.acquire.seam.host import Host

PT_NOTE = 4
NT_GNU_BUILD_ID = 3
PN_XNUM = 0xFFFF
MAX_PROGRAM_HEADERS = 512
MAX_HEADER_BYTES = 256
MAX_NOTE_BYTES = 1 << 20
_HEAD_BYTES = 4096


class CorruptElf(ValueError):
    """The file calls itself ELF and its headers cannot be followed; the message says which."""


class NotElf(CorruptElf):
    """The file does not begin as an ELF file does (a linker script, a Git LFS pointer, an empty file)."""


def read_build_id(host: Host, path: str) -> str | None:
    """The GNU build-id, hex; None where the library was linked without one. Raises `OSError`, `CorruptElf`."""
    head = host.read(path, _HEAD_BYTES, 0)
    wide, order = _identity(head)
    for offset, size in _notes(host, path, head, wide, order):
        if size > MAX_NOTE_BYTES:
            raise CorruptElf(f"a note segment of {size} bytes")
        found = _build_id(_span(host, path, head, offset, size), order)
        if found is not None:
            return found
    return None


def _identity(head: bytes) -> tuple[bool, str]:
    if head[:4] != b"\x7fELF":
        raise NotElf("it does not begin as an ELF file does" if head else "it is empty")
    if len(head) < 64:
        raise CorruptElf(f"it ends after {len(head)} bytes, inside the ELF header")
    if head[4] not in (1, 2) or head[5] not in (1, 2):
        raise CorruptElf(f"class {head[4]}, data encoding {head[5]}")
    return head[4] == 2, "<" if head[5] == 1 else ">"


def _notes(host: Host, path: str, head: bytes, wide: bool, order: str) -> list[tuple[int, int]]:
    """(offset, size) of each note segment."""
    if wide:
        (table,) = struct.unpack_from(f"{order}Q", head, 32)
        entry_size, count = struct.unpack_from(f"{order}HH", head, 54)
    else:
        (table,) = struct.unpack_from(f"{order}I", head, 28)
        entry_size, count = struct.unpack_from(f"{order}HH", head, 42)
    if count == PN_XNUM or count > MAX_PROGRAM_HEADERS:
        raise CorruptElf(f"{count} program headers")
    if count and not (56 if wide else 32) <= entry_size <= MAX_HEADER_BYTES:
        raise CorruptElf(f"program headers of {entry_size} bytes")
    headers = _span(host, path, head, table, entry_size * count)
    found = []
    for number in range(count):
        at = number * entry_size
        if struct.unpack_from(f"{order}I", headers, at)[0] == PT_NOTE:
            if wide:
                offset, _, _, size = struct.unpack_from(f"{order}QQQQ", headers, at + 8)
            else:
                offset, _, _, size = struct.unpack_from(f"{order}IIII", headers, at + 4)
            found.append((offset, size))
    return found


def _span(host: Host, path: str, head: bytes, offset: int, size: int) -> bytes:
    """`size` bytes at `offset`: from what was read already, or from the file."""
    if offset >= 1 << 63:
        raise CorruptElf(f"offset {offset:#x}")
    data = head[offset : offset + size]
    if len(data) < size and size:
        data = host.read(path, size, offset)
    if len(data) < size:
        raise CorruptElf(f"it ends before offset {offset + size}")
    return data


def _build_id(notes: bytes, order: str) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(f"{order}III", notes, at)
        content = at + 12 + (name_size + 3) // 4 * 4
        end = content + size
        if end > len(notes):
            raise CorruptElf("a note that is longer than its segment")
        if kind == NT_GNU_BUILD_ID and notes[at + 12 : at + 12 + name_size] == b"GNU\0":
            return notes[content:end].hex()
        at = content + (size + 3) // 4 * 4
    return None
