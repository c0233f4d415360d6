"""What changed between the good run and the first bad step, ranked by kind and closeness; nothing here proves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.model.event import Event
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.events.logs import RateChange
from envguard.timeline.rates.states import States

WEIGHTS = {
    "package.replaced": 4.0,
    "package.removed": 4.0,
    "system.driver": 1.0,
    "compile_cache.cleared": 1.4,
    "compile_cache.created": 1.5,
    "file.patched": 1.6,
    "code.changed": 1.8,
    "config.changed": 2.0,
    "code.commit": 3.0,
    "data.changed": 3.5,
    "system.packages": 4.5,
    "system.boot": 5.0,
}
"""Less is likelier, by what such a change does to speed: builds, then caches, then code, then data."""
STACK_WEIGHTS = {"torch": 0.0, "triton": 0.3, "flash-attn": 0.8, "xformers": 0.8, "transformers": 2.0}
NVIDIA_WEIGHT = 0.6
LOADED = ("package.replaced", "package.removed", "file.patched", "code.changed", "code.commit")
"""Kinds that a running process does not notice: it keeps what it loaded."""
NOT_NOTICED = 4.0
CLOSENESS = 0.3
COMPILES = ("is_fx_symbolic_tracing", "torch.compile", "_dynamo", "_inductor", "flex_attention")
"""Words of a changed line that has to do with compiling: such an edit is likelier than another."""
COMPILES_BONUS = 0.8
SLACK_S = 2.0


@dataclass(frozen=True)
class Cause:
    """A change in the window, with its place in the order (less is likelier)."""

    event: Event
    score: float


@dataclass(frozen=True)
class Causes:
    """Changes in the window of a change of level, likeliest first; apart from them what was undone in it."""

    found: list[Cause]
    undone: list[Event]


def candidates(change: RateChange, events: Sequence[Event], states: States | None = None) -> Causes:
    """What may have caused a change of level: by `states`, only what differs between the two runs. In a log without
    times nothing is known to have come before it."""
    if change.window_ns is None:
        return Causes([], [])
    low, high = change.window_ns / clock.NS, change.first_bad_ns / clock.NS
    found = []
    undone = []
    for event in events:
        weight = weight_of(event)
        # What was so before the good run, or came after the first bad line, cannot be the cause.
        if weight is None or start_of(event) > high + SLACK_S:
            continue
        if end_of(event) <= low if change.restarted else end_of(event) < low - SLACK_S:
            continue
        if states is not None and states.same(event, change.good, change.bad):
            undone.append(event)
            continue
        if event.time is None:
            weight += 1.0  # only "before" is known of it
        if not change.restarted and event.kind in LOADED:
            weight += NOT_NOTICED
        minutes = max(0.0, high - end_of(event)) / 60
        if event.kind in ("code.changed", "file.patched") and _compiles(event):
            weight -= COMPILES_BONUS
        found.append(Cause(event, weight + CLOSENESS * math.log10(1 + minutes)))
    found.sort(key=lambda cause: (cause.score, cause.event.kind, cause.event.subject))
    return Causes(_one_a_subject(found), undone)


def _compiles(event: Event) -> bool:
    text = " ".join([event.summary, *(item.value for item in event.evidence)])
    return any(word in text for word in COMPILES)


def weight_of(event: Event) -> float | None:
    """A kind's weight; None for what changes nothing that a run could feel."""
    if event.kind in ("package.replaced", "package.removed"):
        if event.subject in STACK_WEIGHTS:
            return STACK_WEIGHTS[event.subject]
        return NVIDIA_WEIGHT if event.subject.startswith("nvidia-") else WEIGHTS[event.kind]
    return WEIGHTS.get(event.kind)


def _one_a_subject(causes: Iterable[Cause]) -> list[Cause]:
    """The likeliest event of each kind and subject: three edits of one file are one reason to look at it, and a cache
    that was cleared and made anew is one cache."""
    kept: dict[tuple[str, str], Cause] = {}
    for cause in causes:
        kind, subject = cause.event.kind, cause.event.subject
        key = ("compile_cache", "") if kind.startswith("compile_cache.") else (kind, subject)
        kept.setdefault(key, cause)
    return list(kept.values())
