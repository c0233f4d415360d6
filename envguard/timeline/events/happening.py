"""One maker of events, so that times, ids and confidence follow one rule wherever an event comes from."""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.model.event import Event, EventKind, event_id
from envguard.model.evidence import Confidence, Evidence, confidence_of

FILE_PRECISION_S = 0.01
"""What a file time is worth: the kernel stamps inodes from a clock that moves once a tick (4 ms at 250 Hz)."""


def moment(nanoseconds: int | None, precision_s: float) -> str | None:
    """A time as its witness has it: whole seconds where that is all it knows, microseconds of a file system."""
    if nanoseconds is None:
        return None
    return clock.iso_ns(nanoseconds) if precision_s < 1 else clock.iso(nanoseconds // clock.NS, 0)


def make_event(
    kind: EventKind,
    subject: str,
    start_ns: int | None,
    end_ns: int | None,
    summary: str,
    evidence: Iterable[Evidence],
    *,
    precision_s: float = FILE_PRECISION_S,
    best: Confidence = "strong",
    confidence: Confidence | None = None,
    from_: str | None = None,
    to: str | None = None,
    transaction: str | None = None,
    open_end: bool = False,
) -> Event:
    """An event over [start, end] (ns since the epoch, `end` None for a point in time).

    `best` is what its strongest witness is worth alone; `confidence` overrides the rule where a caller has reason
    to. With `open_end` the event still goes on: its end is when it was looked at, and is not part of its id, so that
    the same event has one id whenever one looks.
    """
    proofs = tuple(dict.fromkeys(evidence))
    time = moment(start_ns, precision_s)
    end = moment(end_ns, precision_s) if end_ns is not None else time
    return Event(
        id=event_id(kind, subject, time, None if open_end else end),
        time=time,
        end=end,
        precision_s=precision_s,
        kind=kind,
        subject=subject,
        from_=from_,
        to=to,
        summary=summary,
        confidence=confidence or confidence_of(proofs, best),
        transaction=transaction,
        evidence=proofs,
    )


def start_of(event: Event) -> float:
    """When an event began, in seconds; one known only as "before" sorts by that bound."""
    text = event.time or event.end
    return clock.seconds(text) if text else 0.0


def end_of(event: Event) -> float:
    """When an event was over, in seconds."""
    text = event.end or event.time
    return clock.seconds(text) if text else 0.0


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events by time; at one time, by kind and subject, so that the order is the same on every run."""
    return tuple(sorted(events, key=lambda event: (start_of(event), end_of(event), event.kind, event.subject)))
