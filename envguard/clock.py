"""Times: UTC inside, ISO 8601 with offset in every file, local time with its offset on the screen."""

from __future__ import annotations

import re
import time as _time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

_IN_TEXT = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{3}(?:\d{3})?)? ?[+-]\d\d:\d\d\b")
NS = 1_000_000_000
EARLIEST_S, LATEST_S = -30_000_000_000, 253_000_000_000
"""The years 1019 to 9987: what lies beyond is told as the bound. File systems take any number, calendars do not."""


def iso(seconds: float, digits: int = 3) -> str:
    """ISO 8601 in UTC with `digits` decimals (0, 3 or 6)."""
    moment = datetime.fromtimestamp(min(max(seconds, EARLIEST_S), LATEST_S), UTC)
    return moment.isoformat(timespec={0: "seconds", 3: "milliseconds", 6: "microseconds"}[digits])


def iso_ns(nanoseconds: int) -> str:
    """The same of a file system's nanoseconds, to the microsecond."""
    bounded = min(max(nanoseconds, EARLIEST_S * NS), LATEST_S * NS)
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=bounded // 1000)).isoformat(
        timespec="microseconds"
    )


def seconds(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 time; one without offset is refused, since it names no moment."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"a time without offset: {text!r}")
    return moment.timestamp()


def nanoseconds(text: str) -> int:
    """The same in nanoseconds, cut to the millisecond that `iso` writes. Raises ValueError."""
    return int(seconds(text) * 1000) * (NS // 1000)


def now() -> str:
    """This moment, to the millisecond."""
    return iso(_time.time())


def local(text: str, offset_s: int | None = None) -> str:
    """An ISO time as a person reads it: `2026-05-18 20:41:07 +02:00`, in the given or the local zone."""
    zone = timezone(timedelta(seconds=offset_s)) if offset_s is not None else None
    moment = datetime.fromisoformat(text).astimezone(zone)
    written = moment.strftime("%Y-%m-%d %H:%M:%S %z")
    return f"{written[:-2]}:{written[-2:]}"


def told(text: str, spelled: Callable[[str], str] = local) -> str:
    """A sentence with each time in it as `spelled` gives it: one moment reads the same all over a screen."""
    return _IN_TEXT.sub(lambda found: spelled(found[0].replace(" ", "T", 1).replace(" ", "")), text)


def span(seconds_apart: float) -> str:
    """A length of time as a person says it: `11 min 04 s`, `3 h 12 min`, `2 d 5 h`, `0.4 s`."""
    whole = round(abs(seconds_apart))
    if whole < 10:
        return f"{abs(seconds_apart):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
