"""A real shared library made without a compiler: the loader maps it, tools read its build-id, it holds no code.

The demo and the tests need a library that a process can hold while its file is replaced. Layout: ELF header, four
program headers (LOAD, DYNAMIC, NOTE, GNU_STACK), the note with the build-id, an empty symbol table with its hash
and strings, the dynamic section, then filler. One segment, readable and writable: glibc writes into the dynamic
section while it loads. Format: System V ABI, chapters 4 and 5; build-id note: NT_GNU_BUILD_ID of binutils.
"""

from __future__ import annotations

import hashlib
import platform
import struct

_MACHINES = {"x86_64": 62, "aarch64": 183}
_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_STACK = 1, 2, 4, 0x6474E551
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_HEADER, _PROGRAM_HEADER, _SYMBOL = 64, 56, 24
_PAGE = 0x10000  # the largest page size that aarch64 kernels use; x86-64 accepts it too


def build_id(seed: str) -> str:
    """The build-id that `shared_library` writes for a seed: 20 bytes in hex, as sha1 build-ids are."""
    return hashlib.sha256(seed.encode()).hexdigest()[:40]


def shared_library(soname: str, seed: str, size: int = 65536) -> bytes:
    """The bytes of a loadable library; equal seeds give equal bytes, another seed another build-id and filler."""
    identity = bytes.fromhex(build_id(seed))
    strings = b"\0" + soname.encode() + b"\0"
    note = struct.pack("<III", 4, len(identity), 3) + b"GNU\0" + identity
    hash_table = struct.pack("<5I", 1, 1, 0, 0, 0)  # one bucket, one chain: the reserved null symbol alone
    note_at = _HEADER + 4 * _PROGRAM_HEADER
    hash_at = _aligned(note_at + len(note))
    symbols_at = _aligned(hash_at + len(hash_table))
    strings_at = symbols_at + _SYMBOL
    dynamic_at = _aligned(strings_at + len(strings))
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (_DT_HASH, hash_at),
            (_DT_STRTAB, strings_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, _SYMBOL),
            (_DT_SONAME, 1),
            (_DT_NULL, 0),
        )
    )
    total = max(size, dynamic_at + len(dynamic))
    headers = (
        _program_header(_PT_LOAD, 6, 0, total, _PAGE)
        + _program_header(_PT_DYNAMIC, 6, dynamic_at, len(dynamic), 8)
        + _program_header(_PT_NOTE, 4, note_at, len(note), 4)
        + _program_header(_PT_GNU_STACK, 6, 0, 0, 16)
    )
    image = bytearray(total)
    parts = (
        (0, _elf_header()),
        (_HEADER, headers),
        (note_at, note),
        (hash_at, hash_table),
        (strings_at, strings),
        (dynamic_at, dynamic),
    )
    for offset, part in parts:
        image[offset : offset + len(part)] = part
    end = dynamic_at + len(dynamic)
    image[end:] = _filler(seed, total - end)
    return bytes(image)


def _aligned(offset: int) -> int:
    return (offset + 7) // 8 * 8


def _elf_header() -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    machine = _MACHINES.get(platform.machine(), _MACHINES["x86_64"])
    return ident + struct.pack(
        "<HHIQQQIHHHHHH", _ET_DYN, machine, 1, 0, _HEADER, 0, 0, _HEADER, _PROGRAM_HEADER, 4, 64, 0, 0
    )


def _program_header(kind: int, flags: int, offset: int, size: int, alignment: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, alignment)


def _filler(seed: str, length: int) -> bytes:
    """Bytes that do not compress to nothing, so that two builds differ in most of their content."""
    out = bytearray()
    counter = 0
    while len(out) < length:
        out += hashlib.sha256(f"{seed}/{counter}".encode()).digest()
        counter += 1
    return bytes(out[:length])
