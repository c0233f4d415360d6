"""What a person writes for a time or a kind of event, as bounds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from envguard.acquire.machine.zone import Zone
from envguard.clock import NS
from envguard.errors import UsageError
from envguard.model.event import EVENT_KINDS

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|hours?|d|days?|w|weeks?)(?:\s+ago)?")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


_DAYS = {"today": 0, "yesterday": 1}


def is_time(text: str) -> bool:
    """Whether a person who writes this means a moment, and no checkpoint."""
    try:
        parse_time(text, Zone(UTC, "UTC"), 1e9)
    except UsageError:
        return False
    return True


def parse_time(text: str, zone: Zone, now: float, latest: bool = False) -> float:
    """Seconds since the epoch of an ISO time or day (in the zone of the machine), `20:41`, `yesterday`, or `3h` ago.

    A time that came twice means its first reading, with `latest` its last; so does a day its beginning or its end.
    Raises `UsageError`.
    """
    cleaned = text.strip()
    ago = _AGO.fullmatch(cleaned)
    if ago is not None:
        return now - float(ago.group(1)) * _UNIT_S[ago.group(2)[0]]
    whole_day = False
    try:
        if cleaned.lower() in _DAYS:
            day = datetime.fromtimestamp(now, zone.rules).date() - timedelta(days=_DAYS[cleaned.lower()])
            moment, whole_day = datetime.combine(day, datetime.min.time()), True
        elif re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", cleaned):
            today = datetime.fromtimestamp(now, zone.rules).date()
            moment = datetime.fromisoformat(f"{today}T{cleaned.zfill(5)}")
        else:
            moment = datetime.fromisoformat(cleaned)
            whole_day = re.fullmatch(r"\d{4}-\d{2}-\d{2}", cleaned) is not None
    except ValueError:
        raise UsageError(
            f"{text!r} is no time",
            "write `2026-05-18T20:41`, `2026-05-18`, `20:41` `yesterday` or `3h` (that long ago)",
        ) from None
    if whole_day and latest:
        moment += timedelta(days=1, seconds=-1)
    if moment.tzinfo is not None:
        return moment.timestamp()
    span = zone.moments(moment)
    return (span.end_ns if latest else span.start_ns) / NS


def parse_kinds(names: Iterable[str]) -> frozenset[str]:
    """Kinds by full name or by their first word (`package`). Raises `UsageError`."""
    found: set[str] = set()
    for name in names:
        matching = {kind for kind in EVENT_KINDS if kind == name or kind.startswith(f"{name}.")}
        if not matching:
            words = [*EVENT_KINDS, *(kind.partition(".")[0] for kind in EVENT_KINDS)]
            close = difflib.get_close_matches(name, words, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"the kinds are: {', '.join(EVENT_KINDS)}"
            raise UsageError(f"no kind of event {name!r}", hint)
        found |= matching
    return frozenset(found)
