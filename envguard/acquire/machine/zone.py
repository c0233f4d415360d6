"""The machine's local time: what a log without offset means, with the hour that comes twice said as such.

apt, dpkg, wtmp's readers and most trainers write local time without an offset. The zone's own rules are read from
`/etc/localtime`, since the offset of today is not that of a log from before the clocks were changed.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from envguard.acquire.seam.host import Host, Machine
from envguard.clock import NS

EARLIEST_YEAR, LATEST_YEAR = 2000, 2100
EARLIEST_S, LATEST_S = 946_684_800, 4_102_444_800
"""The same in seconds since the epoch: what a record of a run or an install can name."""


@dataclass(frozen=True)
class Span:
    """What a local time can mean, in ns since the epoch; `doubt` says why it is an interval or a guess."""

    start_ns: int
    end_ns: int
    doubt: str | None = None

    @property
    def readings(self) -> tuple[int, ...]:
        """Each moment that the time may stand for: two of the hour that comes twice."""
        return (self.start_ns,) if self.start_ns == self.end_ns else (self.start_ns, self.end_ns)


@dataclass(frozen=True)
class Zone:
    """A time zone, and where its rules come from."""

    rules: tzinfo
    source: str

    def moments(self, naive: datetime) -> Span:
        """The moments that a time without offset may stand for: two where the clock was put back, none exactly where
        it was put forward (then both readings around the gap)."""
        first, second = (
            int(naive.replace(tzinfo=self.rules, fold=fold).timestamp()) * NS + naive.microsecond * 1000
            for fold in (0, 1)
        )
        if first == second:
            return Span(first, first)
        low, high = min(first, second), max(first, second)
        back = datetime.fromtimestamp(low // NS, self.rules).replace(tzinfo=None, fold=0) == naive.replace(
            microsecond=0
        )
        why = "this hour came twice when the clocks were put back" if back else "this hour was skipped by the clocks"
        return Span(low, high, why)

    def offset_s(self, seconds: float) -> int:
        """Offset from UTC at a moment, in seconds."""
        delta = datetime.fromtimestamp(seconds, UTC).astimezone(self.rules).utcoffset()
        return int(delta.total_seconds()) if delta is not None else 0


def read_zone(host: Host, machine: Machine) -> Zone:
    """The rules of `/etc/localtime`; else the offset of now, which is right only since the last change of clocks."""
    path = host.realpath("/etc/localtime")
    try:
        rules = ZoneInfo.from_file(io.BytesIO(host.read(path, 1 << 20)), key=None)
    except (OSError, ValueError, IndexError, struct.error):  # the last three: what is no file of rules, or a torn one
        known = machine.utc_offset if abs(machine.utc_offset) < 86400 else 0
        offset = timezone(timedelta(seconds=known))
        return Zone(offset, "the offset of now: /etc/localtime cannot be read")
    return Zone(rules, "/etc/localtime")


def parse_moment(text: str, zone: Zone) -> Span | None:
    """An ISO-like time with or without offset (`2026-05-18 20:41:07,123`); None for what is no time.

    A placeholder (`0001-01-01`, `9999-12-31`) is none either.
    """
    cleaned = text.strip().replace(",", ".").replace("/", "-")
    try:
        moment = datetime.fromisoformat(cleaned)
    except ValueError:
        return None
    if not EARLIEST_YEAR <= moment.year < LATEST_YEAR:
        return None
    if moment.tzinfo is None:
        return zone.moments(moment)
    exact = int(moment.timestamp()) * NS + moment.microsecond * 1000
    return Span(exact, exact)


def epoch_ns(value: float) -> int | None:
    """A number as a time: seconds, milliseconds, microseconds or nanoseconds since the epoch, told by its size."""
    for scale in (NS, 1_000_000, 1000, 1):
        moment = value * scale
        if EARLIEST_S * NS <= moment <= LATEST_S * NS:
            return int(moment)
    return None
