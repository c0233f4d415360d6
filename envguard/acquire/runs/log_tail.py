"""A training log while it is written: what was appended since the last look, through rotation and truncation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.roles import Roles
from envguard.acquire.runs.train_log import RowReader, TrainLog, sniff
from envguard.acquire.seam.host import Host, Stat
from envguard.config import LogFields

MOST_AT_ONCE = 8 << 20


@dataclass(frozen=True)
class Row:
    """One row with a rate; `time` in s since the epoch, None where the log does not say; `tok_s` in tokens/s."""

    step: int
    time: float | None
    tok_s: float


class LogTail:
    """Follows one log from a byte offset on. A line that is not finished yet is read when it is."""

    def __init__(self, host: Host, path: str, fields: LogFields, zone: Zone, offset: int = 0) -> None:
        self.path = path
        self.rows = 0
        self.cache_hits: int | None = None
        self.cache_misses: int | None = None
        self._host = host
        self._fields = fields
        self._zone = zone
        self._offset = offset
        self._inode: int | None = None
        self._rest = b""
        self._roles: Roles | None = None

    def read(self) -> list[Row]:
        """The rows appended since; raises OSError where the log cannot be read, a missing one is empty."""
        stat = self._host.find(self.path)
        if stat is None:
            self._begin(None)
            return []
        if (self._inode is not None and stat.inode != self._inode) or stat.size < self._offset:
            self._begin(stat)  # rotated (another file under the name) or truncated: everything in it is new
        self._inode = stat.inode
        found: list[Row] = []
        while self._offset < stat.size:
            piece = self._host.read(self.path, min(MOST_AT_ONCE, stat.size - self._offset), self._offset)
            if not piece:
                break
            self._offset += len(piece)
            whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
            if newline:
                found += self._parse(whole + newline)
        return found

    def _begin(self, stat: Stat | None) -> None:
        self._offset, self._rest, self._inode = 0, b"", stat.inode if stat is not None else None

    def _parse(self, block: bytes) -> list[Row]:
        if self._roles is None or "tok_s" not in self._roles.fields:
            self._roles = sniff(self._host, self.path, self._fields, self._zone)
        if "tok_s" not in self._roles.fields or not self._roles.unit.startswith(("tok/s", "words/s", "/s")):
            return []  # the fields may come with a later row; other units are not what the guard judges
        log = TrainLog(self.path, self._roles.names())
        RowReader(log, self._roles, self._zone).take(1, block)
        self.rows += len(log)
        self._counters(block)
        return [
            Row(step, time_ns / 1e9 if time_ns else None, rate)
            for step, time_ns, rate in zip(log.step, log.time_ns, log.rate, strict=True)
            if math.isfinite(rate)
        ]

    def _counters(self, block: bytes) -> None:
        """The running totals of compile-cache hits and misses, from the last row."""
        try:
            last = json.loads(block.rstrip(b"\n").rpartition(b"\n")[2])
        except (ValueError, RecursionError):
            return
        if isinstance(last, dict):
            hits, misses = last.get("cache_hits"), last.get("cache_misses")
            self.cache_hits = hits if isinstance(hits, int) else self.cache_hits
            self.cache_misses = misses if isinstance(misses, int) else self.cache_misses


def read_last_rows(host: Host, path: str, fields: LogFields, zone: Zone, most: int = 4 << 20) -> list[Row]:
    """The rows in the last `most` bytes of a log; raises OSError."""
    size = host.stat_target(path).size
    tail = LogTail(host, path, fields, zone, max(0, size - most))
    rows = tail.read()
    return rows[1:] if size > most and rows else rows  # the first may be half a line
