"""What a clock is worth: events that the clock itself makes doubtful lose their confidence, and say why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from envguard import clock
from envguard.acquire.machine.boots import ClockStep
from envguard.model.event import Event
from envguard.timeline.events.happening import end_of, start_of

LEAST_STEP_S = 2.0
FUTURE_S = 120.0


def weigh(events: Iterable[Event], steps: Sequence[ClockStep], now: float) -> list[Event]:
    """Events whose time falls where the clock was set, or after now, are weak: their order is not to be trusted."""
    doubtful = [step for step in steps if abs(step.after_ns - step.before_ns) > LEAST_STEP_S * clock.NS]
    return [_weighed(event, doubtful, now) for event in events]


def _weighed(event: Event, steps: Sequence[ClockStep], now: float) -> Event:
    if start_of(event) > now + FUTURE_S:
        return _lowered(event, "its time lies in the future: a clock was wrong")
    for step in steps:
        low, high = sorted((step.before_ns / clock.NS, step.after_ns / clock.NS))
        if start_of(event) <= high and end_of(event) >= low and event.kind != "process.stale":
            apart = clock.span((step.after_ns - step.before_ns) / clock.NS)
            way = "back" if step.after_ns < step.before_ns else "forward"
            return _lowered(event, f"the clock was set {way} by {apart} around then")
    return event


def _lowered(event: Event, why: str) -> Event:
    return msgspec.structs.replace(event, confidence="weak", summary=f"{event.summary} ({why})")
