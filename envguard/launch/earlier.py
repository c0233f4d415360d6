"""Runs that have no end on record: their `launch` was killed, or the machine went down under it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.model.run import RunRecord


def without_end(host: Host, records: Sequence[RunRecord], node: str) -> tuple[RunRecord, ...]:
    """Runs of this machine that nobody watches any more and of which nobody has said so yet."""
    return tuple(
        record
        for record in records
        if record.ended is None and record.note is None and record.host == node and not _watched(host, record)
    )


def _watched(host: Host, record: RunRecord) -> bool:
    """Whether the process that started the run still lives; a number that another program has now is not it."""
    try:
        words = host.read(f"/proc/{record.supervisor}/cmdline", 4096).split(b"\0")
    except OSError:
        return False
    return b"launch" in words


def says(record: RunRecord) -> str:
    """What the next launch tells about it."""
    started = f", started {clock.local(record.started)}," if record.started else ""
    return f"run {record.id}{started} has no end on record: its launch was killed, or the machine went down"


def marked(record: RunRecord) -> RunRecord:
    """The record with the remark, so that it is said once."""
    return msgspec.structs.replace(
        record, note="no end on record: its launch was killed, or the machine went down before it ended"
    )
