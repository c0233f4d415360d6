"""Text files of any length through the seam: read in pieces from the start, or from the end backwards."""

from __future__ import annotations

from collections.abc import Iterator

from envguard.acquire.seam.host import Host

CHUNK = 2 << 20
"""Bytes read at once: what a reader makes of them is many times as large."""
LONGEST = 1 << 20
"""Bytes that a line may have: a longer one is none that a person or a trainer wrote."""
HEAD = 4096
"""Bytes that are kept of one that is longer."""
_ENDS = (b"\n", b"\r")


def blocks(
    host: Host,
    path: str,
    size: int | None = None,
    longest: int = LONGEST,
    chunk: int | None = None,
    carriage: bool = False,
) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) of the first `size` bytes; without a size, of all that is there.

    Of a line beyond `longest` only the beginning is handed out, so that a binary file or a hole of a gigabyte costs
    its reading and no memory. The last line comes as it stands, with or without its newline. With `carriage` a block
    may also end with the carriage return of a progress bar; numbers count newlines all the same. Raises OSError.
    """
    offset, rest, number, skipping = 0, b"", 1, False
    while size is None or offset < size:
        limit = chunk or CHUNK
        limit = limit if size is None else min(limit, size - offset)
        piece = host.read(path, limit, offset)
        offset += len(piece)
        ended = len(piece) < limit
        if skipping:
            at = (
                piece.find(b"\n")
                if not carriage
                else min(filter(lambda i: i >= 0, map(piece.find, _ENDS)), default=-1)
            )
            piece, skipping = (piece[at:], False) if at >= 0 else (b"", True)
        block = rest + piece
        cut = max(map(block.rfind, _ENDS)) + 1 if carriage else block.rfind(b"\n") + 1
        rest = block[cut:]
        if len(rest) > longest:
            rest, skipping = rest[:HEAD], True
        if cut:
            yield number, block[:cut]
            number += block.count(b"\n", 0, cut)
        if ended:
            break
    if rest.strip():
        yield number, rest


def lines(host: Host, path: str, chunk: int | None = None) -> Iterator[tuple[int, str]]:
    """(number, text) of each line of a text file, without its newline. Raises OSError."""
    for first, block in blocks(host, path, chunk=chunk):
        for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), first):
            yield number, line.decode("utf-8", "replace")


def backwards(host: Host, path: str) -> Iterator[bytes]:
    """Lines from the last to the first, without their newlines: whoever wants the latest entry of a file of gigabytes
    reads its end. Raises OSError."""
    at, rest = host.stat_target(path).size, b""
    while at > 0:
        start = max(0, at - CHUNK)
        whole = host.read(path, at - start, start) + rest
        at = start
        if at:  # the first line of this piece may have begun further up
            rest, _, whole = whole.partition(b"\n")
        if whole:
            yield from reversed(whole.removesuffix(b"\n").split(b"\n"))
