"""The register in an environment: which restores of it were begun or can be undone, and where their folders are.

A roll-back point is kept in the state folder of the project that restored, which a configuration may put on another
disk. The environment names it, so that every project, user and container that sees the environment finds it. One
JSON object a line; the file is not there while no restore of the environment is on record.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from envguard.acquire.packages.restore_register import REGISTER
from envguard.state.files import read_file, write_atomically

MOST_BYTES = 1 << 20


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """One restore. `environment` is the real prefix at that time: a copied environment bears its original's."""

    folder: str
    environment: str
    reference: str
    begun: str
    step: str
    """`begun` or `done`: what is known of it where its folder cannot be read."""


def real(prefix: str) -> str:
    """The one name of an environment: its prefix without links."""
    return os.path.realpath(prefix)


def read(prefix: str) -> tuple[Registered, ...]:
    """The restores on record, oldest first; a line that is none is left out. Raises OSError."""
    try:
        data = read_file(f"{real(prefix)}/{REGISTER}")[:MOST_BYTES]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = []
    for line in data.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            found.append(msgspec.json.decode(line, type=Registered))
    return tuple(found)


def enter(prefix: str, entry: Registered) -> None:
    """Adds a restore, or replaces what is on record of its folder. Raises OSError."""
    _write(prefix, (*(each for each in read(prefix) if each.folder != entry.folder), entry))


def strike(prefix: str, folder: Path) -> None:
    """Removes a restore from the record. Raises OSError; removing the last one needs no room on the disk."""
    entries = read(prefix)
    left = tuple(each for each in entries if each.folder != str(folder))
    if left != entries:
        _write(prefix, left)


def _write(prefix: str, entries: tuple[Registered, ...]) -> None:
    path = f"{real(prefix)}/{REGISTER}"
    if entries:
        write_atomically(path, b"".join(msgspec.json.encode(each) + b"\n" for each in entries))
    else:
        os.unlink(path)
