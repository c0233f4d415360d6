"""Waivers: a drift that somebody answers for, by facet and subject, with a reason and an end.

A waiver given without an end serves the launch that it was given to, and no other. One with `--until` stays in force
for later launches until that day is over, and every launch that it lets through says so. A waiver that is over
counts as none.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import pwd
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import msgspec

from envguard import clock
from envguard.acquire.seam.collector.redaction import redact
from envguard.errors import UsageError
from envguard.model.drift import FACETS
from envguard.model.parsing import parse_json
from envguard.state.files import locked, open_state, read_file, write_atomically


class Waiver(msgspec.Struct, frozen=True, kw_only=True):
    """One waiver; `subject` is a shell pattern, None for the whole facet; times are ISO 8601."""

    facet: str
    subject: str | None
    because: str
    author: str
    given: str
    until: str | None
    run: str | None = None
    """The run that it was given for; None where the launch did not get that far."""
    revoked: str | None = None
    """When somebody ended it before its time; `until` is that moment, too."""

    def __str__(self) -> str:
        return self.facet if self.subject is None else f"{self.facet}:{self.subject}"

    def covers(self, facet: str, subject: str) -> bool:
        return self.facet == facet and (
            self.subject is None or self.subject == subject or fnmatch.fnmatchcase(subject, self.subject)
        )

    def expired(self, now: str) -> bool:
        return self.until is not None and clock.seconds(self.until) <= clock.seconds(now)


def parse_waivers(
    texts: Sequence[str], because: str | None, until: str | None, author: str, now: str
) -> tuple[Waiver, ...]:
    """The waivers of a command line. Raises `UsageError` for an unknown facet, a missing reason or a bad date."""
    if not texts:
        stray = "--because" if because is not None else "--until" if until is not None else None
        if stray:
            raise UsageError(
                f"{stray} without --waive", "say what is waived: `--waive FACET[:SUBJECT] --because TEXT`"
            )
        return ()
    if because is None or not because.strip():
        raise UsageError(
            "--waive without --because", "a waiver is read by others later: `--because 'why it is safe'`"
        )
    end = parse_until(until) if until is not None else None
    return tuple(_parse(text, redact(because.strip()), end, author, now) for text in texts)


def _parse(text: str, because: str, until: str | None, author: str, now: str) -> Waiver:
    facet, colon, subject = text.partition(":")
    if facet not in FACETS:
        close = difflib.get_close_matches(facet, FACETS, n=1)
        raise UsageError(
            f"unknown facet {facet!r} in --waive {text}",
            f"did you mean `{close[0]}`?" if close else f"the facets are: {', '.join(FACETS)}",
        )
    if colon and not subject:
        raise UsageError(f"--waive {text}: no subject after the colon", f"`--waive {facet}` waives the whole facet")
    return Waiver(facet=facet, subject=subject or None, because=because, author=author, given=now, until=until)


def parse_until(text: str) -> str:
    """The moment at which a waiver ends: a day is good until it is over here; a time without offset is local."""
    try:
        if len(text) == 10:
            day = datetime.combine(date.fromisoformat(text), datetime.min.time())
            return (day + timedelta(days=1)).astimezone().isoformat()
        return datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError as error:
        raise UsageError(f"--until {text!r} is no date", "`--until 2026-12-31`, or with a time") from error


def author() -> str:
    """Who is asking: the login name behind the user id, which a variable could not fake as easily."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs under a number without an entry
        return str(os.getuid())


def waiver_file(state: Path) -> Path:
    return state / "waivers.json"


def read_waivers(state: Path) -> tuple[Waiver, ...]:
    """Every waiver ever stored, oldest first. Raises `OSError` or `ValueError` where it can't be read."""
    try:
        data = read_file(waiver_file(state))
    except FileNotFoundError:
        return ()
    return parse_json(data, tuple[Waiver, ...])


def standing(stored: Sequence[Waiver], now: str) -> tuple[tuple[Waiver, ...], tuple[Waiver, ...]]:
    """Of the stored waivers, those that later launches look at: in force, and over since less than a month.

    Those given without an end served their own launch and are kept for the record alone; one that was over long ago
    is no news.
    """
    dated = [waiver for waiver in stored if waiver.until is not None]
    month_ago = clock.iso(clock.seconds(now) - 30 * 86400)
    return (
        tuple(waiver for waiver in dated if not waiver.expired(now)),
        tuple(waiver for waiver in dated if waiver.expired(now) and not waiver.expired(month_ago)),
    )


def in_force(waiver: Waiver, now: str) -> bool:
    """Whether a later launch heeds it: it has an end, and that is still to come."""
    return waiver.until is not None and not waiver.expired(now)


def revoke(state: Path, text: str, now: str) -> int:
    """Ends the waivers in force that were given as `text` (`FACET[:SUBJECT]`) and returns how many those were.

    They stay in the record, with the moment of their end. Raises `UsageError` where none is in force, `OSError` or
    `msgspec.MsgspecError` where the record cannot be read or written.
    """
    with locked(open_state(state) / "waivers.lock"):
        stored = read_waivers(state)
        ended = [waiver for waiver in stored if str(waiver) == text and in_force(waiver, now)]
        if not ended:
            others = ", ".join(sorted({str(waiver) for waiver in stored if in_force(waiver, now)}))
            hint = f"in force: {others}" if others else "none is in force"
            raise UsageError(f"no waiver {text} is in force", hint)
        kept = [msgspec.structs.replace(each, until=now, revoked=now) if each in ended else each for each in stored]
        write_atomically(waiver_file(state), msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    return len(ended)


def store(state: Path, given: Sequence[Waiver], run: str) -> None:
    """Adds the waivers of a run to the state folder. Raises `OSError` where it cannot be written."""
    folder = open_state(state)
    with locked(folder / "waivers.lock"):
        kept = (*read_waivers(state), *(msgspec.structs.replace(waiver, run=run) for waiver in given))
        write_atomically(waiver_file(state), msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
