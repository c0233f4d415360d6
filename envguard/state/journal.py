"""The journal: one append-only file a host, one JSON object a line, readable after a kill at any byte.

A line is `{"time", "kind", …}`. A writer that was killed leaves at most a torn last line; the next writer ends it
with a newline before it appends, and a reader counts lines that are no JSON object instead of failing on them.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import msgspec

from envguard import clock
from envguard.model import plain
from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import sealed
from envguard.state.files import locked, open_state


def host_part(host: str | None = None) -> str:
    """This (or the named) host in a file name; several hosts may share a state folder on a network mount."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", host or platform.node() or "host")


def journal_file(state: Path, host: str | None = None) -> Path:
    """The journal of this (or the named) host."""
    return state / f"journal-{host_part(host)}.jsonl"


def append(state: Path, kind: str, entry: dict[str, Any], time: str | None = None) -> None:
    """Appends one entry under flock and syncs it. Raises OSError where the state folder cannot be written."""
    line = plain.encode({"time": time or clock.now(), "kind": kind, **entry}) + b"\n"
    path = journal_file(open_state(state))
    with locked(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.lseek(descriptor, 0, os.SEEK_END)
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
        os.fsync(descriptor)


def append_snapshot(state: Path, fingerprint: Fingerprint, into: str | None) -> None:
    """A snapshot with all that it found, which is what `@1` means later; `into` is the checkpoint that it stamped."""
    entry = {"id": fingerprint.id, "into": into, "fingerprint": sealed(fingerprint)}
    append(state, "snapshot", entry, fingerprint.taken_at)


def entry(line: bytes) -> dict[str, Any] | None:
    """A line of a journal as an object, None for one that is torn or no object. The fingerprint of a snapshot is left
    as the JSON that it is (`msgspec.Raw`): it is nearly all of the line, and few who read a journal want it."""
    try:
        raw = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return {name: value if name == "fingerprint" else msgspec.json.decode(value) for name, value in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
