"""Findings about runs: falls of throughput with their ranked causes, crashes, losses that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from envguard import clock
from envguard.fingerprint.units import counted, some_of
from envguard.model.event import Event
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.events.logs import NoNumber, RateChange, RunEnd, baseline_text, field_title, place_of
from envguard.timeline.findings.draft import Draft
from envguard.timeline.rates.causes import LOADED, Cause, Causes, candidates
from envguard.timeline.rates.states import States
from envguard.timeline.rates.throughput import rate_text

SHOWN = 6
MOST_FINDINGS = 6
FELL, FELL_OF_STEPS = 0.9, 0.7
ALIKE, ONE_FALL_NS = 0.25, 600 * clock.NS
BEFORE_CRASH_S = 7 * 86400.0
SPEAKS_AGAINST = {
    "data.changed": "the data changed too, and other lengths alone change tok/s: {summary}",
    "compile_cache.cleared": "the compile cache vanished too, and a cold start compiles all anew: {summary}",
    "compile_cache.created": "the compile cache is no older than that, and a cold start compiles all anew: {summary}",
    "code.changed": "the code was changed too: {summary}",
    "code.commit": "the code was changed too: {summary}",
    "file.patched": "an installed file was patched too: {summary}",
    "config.changed": "settings were changed too, which alone changes tok/s: {summary}",
    "package.replaced": "{subject} was replaced too: {from_} → {to}",
    "package.removed": "{subject} was removed too",
    "system.driver": "the driver changed too: {summary}",
    "system.boot": "the machine was booted between",
    "system.packages": "system packages changed too: {summary}",
}


def fall_findings(
    changes: Sequence[RateChange], events: Sequence[Event], states: States | None = None
) -> list[Draft]:
    """One finding a fall of throughput; of many the deepest. `states` tells what both runs had alike."""
    falls = sorted((change for change in changes if change.factor < _line(change)), key=lambda change: change.factor)
    return [_fall(change, candidates(change, events, states)) for change in _once(falls)[:MOST_FINDINGS]]


def _once(falls: Sequence[RateChange]) -> list[RateChange]:
    """Each fall once, by the log that tells most of it: a run writes its speed to a file, to a tracker and to the
    screen."""
    kept: list[RateChange] = []
    for change in sorted(falls, key=lambda item: (item.window_ns is None, not item.log.unit.startswith("tok/s"))):
        if not any(_one_fall(change, other) for other in kept):
            kept.append(change)
    return [change for change in falls if any(change is other for other in kept)]


def _one_fall(change: RateChange, other: RateChange) -> bool:
    if change.log is other.log or abs(math.log(change.factor / other.factor)) > ALIKE:
        return False
    if change.window_ns is not None and other.window_ns is not None:
        return abs(change.first_bad_ns - other.first_bad_ns) < ONE_FALL_NS
    step, same = (item.log.step[item.after.first] for item in (change, other))
    return step >= 0 and abs(step - same) <= max(10, step // 20)


def _line(change: RateChange) -> float:
    """Below which part of the old level a change is a fall: steps differ in length more than tokens do."""
    return FELL if change.log.unit.startswith(("tok/s", "words/s", "TFLOP/s", "MFU", "/s")) else FELL_OF_STEPS


def _fall(change: RateChange, among: Causes) -> Draft:
    log, causes = change.log, among.found
    unit = log.unit
    title = f"throughput fell from {rate_text(change.before.rate, unit)} to {rate_text(change.after.rate, unit)}"
    title += " with a new run" if change.restarted else f" at {place_of(log, change.after.first)}"
    says = [f"Before: {baseline_text(log, change.before)}, steady over {change.before.rows:,} lines."]
    if among.undone:
        names = some_of(list(dict.fromkeys(event.subject for event in among.undone)))
        says.append(f"Undone before the first bad line, so that both had the same of it: {names}.")
    felt = [cause for cause in causes if change.restarted or cause.event.kind not in LOADED]
    causes = [*felt, *(cause for cause in causes if cause not in felt)]
    if change.window_ns is None:
        says.append(
            f"{log.path} has no times: the fall is older than the file's last writing, and its cause is open."
        )
    else:
        says.append(_cause_of(change, felt, causes, "another" if among.undone else "a"))
    shown = [cause.event for cause in causes[:SHOWN]]
    return Draft(
        (2, float(change.first_bad_ns)),
        title,
        " ".join(says),
        (change.event, *shown),
        tuple(_caveats(change, causes, causes[1:SHOWN] if felt else causes[:SHOWN])),
    )


def _cause_of(change: RateChange, felt: list[Cause], causes: list[Cause], other: str) -> str:
    apart = clock.span((change.first_bad_ns - (change.window_ns or 0)) / clock.NS)
    window = (
        f"the {apart} from the start of the good run to the first bad line"
        if change.restarted
        else f"the {apart} between the last good line and the first bad one"
    )
    if felt:
        return f"Likeliest cause among what changed in {window}: {felt[0].event.summary}."
    if causes:
        return f"What is known to have changed in {window} is nothing that a running process notices."
    return f"No witness knows of {other} change in {window}."


def _caveats(change: RateChange, causes: list[Cause], beside: list[Cause]) -> list[str]:
    """What speaks against the likeliest cause: what changed `beside` it, and how little coming before proves."""
    found = []
    for cause in beside:
        event = cause.event
        text = SPEAKS_AGAINST[event.kind].format(
            summary=event.summary,
            subject=event.subject,
            from_=event.from_ or "?",
            to="another build of it" if event.to is not None and event.from_ == event.to else event.to or "?",
        )
        if text not in found:
            found.append(text)
    if causes and not change.restarted:
        anew = "the run was not" if change.one_process else "nothing shows that the run was"
        found.append(f"{anew} started anew between: a running process keeps the packages and code it loaded")
    if change.after.rows < 20:
        found.append(f"only {change.after.rows} lines are at the new level")
    if causes:
        found.append("coming before proves nothing: put one thing back at a time, and measure")
    return found


def crash_findings(ends: Sequence[RunEnd], events: Sequence[Event], since: float | None) -> list[Draft]:
    """Out of memory and FX-tracing errors, with what changed before; other ends are rows alone."""
    found = []
    for end in sorted(ends, key=lambda end: (start_of(end.event), end.event.subject)):
        if since is not None and end_of(end.event) < since:
            continue
        if end.kind == "fx-tracing":
            found.append(_fx(end, events))
        elif end.kind in ("oom", "oom-kill", "host-memory"):
            found.append(_oom(end, events))
    return found[:MOST_FINDINGS]


def _before(event: Event, events: Sequence[Event], kinds: tuple[str, ...]) -> list[Event]:
    earlier = [
        other
        for other in events
        if other.kind in kinds
        # Of data it is only known when the log next told of it: it may have grown before.
        and (start_of if other.kind == "data.changed" else end_of)(other) <= end_of(event)
        and end_of(event) - start_of(other) < BEFORE_CRASH_S
    ]
    return earlier[-3:]


def _fx(end: RunEnd, events: Sequence[Event]) -> Draft:
    event = end.event
    cold = _before(event, events, ("compile_cache.cleared", "compile_cache.created", "package.replaced"))
    says = (
        "torch keeps one flag for the whole process while a thread traces, and another thread's compiled function "
        "fails meanwhile; a warm compile cache skips tracing and hides it."
    )
    if cold:
        says += " Before it: " + "; ".join(item.summary for item in cold) + "."
    patched = [
        other for other in events
        if other.kind in ("code.changed", "file.patched") and "is_fx_symbolic_tracing" in _all_text(other)
    ]  # fmt: skip
    caveats = ["a new shape or build brings it back as well as a cold cache does"]
    if patched:
        caveats.append(
            f"{patched[-1].subject} sets is_fx_symbolic_tracing by hand: that hides the error, it mends nothing"
        )
    return Draft((3, 0.0, start_of(event)), _title(end), says, (event, *cold, *patched[-1:]), tuple(caveats))


def _all_text(event: Event) -> str:
    return " ".join([event.summary, *(item.value for item in event.evidence)])


def _oom(end: RunEnd, events: Sequence[Event]) -> Draft:
    event = end.event
    before = _before(event, events, ("package.replaced", "data.changed", "config.changed", "system.driver"))
    if before:
        says = "Before it: " + "; ".join(item.summary for item in before) + "."
    else:
        says = "No witness knows of a change before it."
    caveats: tuple[str, ...] = (
        "another CUDA build takes another amount of memory a context: `envguard snapshot --probe` measures it",
        "longer sequences alone can do it",
    )
    if end.kind != "oom":  # the machine's memory, or the job's share of it
        caveats = ("more workers or longer sequences alone can do it",)
    return Draft((3, 1.0, start_of(event)), _title(end), says, (event, *before), caveats)


def _title(end: RunEnd) -> str:
    """`out of memory on GPU 6 (train.log)`."""
    return f"{end.title} ({end.event.subject})"


def loss_findings(failed: Sequence[NoNumber], events: Sequence[Event], since: float | None) -> list[Draft]:
    """A loss that is no number is the failure, from its first row on; rows without one are counted, not charted."""
    drafts = []
    for item in failed:
        log, found, event = item.log, item.found, item.event
        if since is not None and end_of(event) < since:
            continue
        row = found.since if found.again is None else found.first
        many = counted(found.rows, f"such {log.place}")
        says = f"{log.place.capitalize()} {log.line[row]} of {log.path} is the first of {many}."
        if found.again is not None:
            says += f" From {place_of(log, found.again)} on it is a number again: such a step is skipped."
        if log.without_loss:
            says += f" {log.without_loss:,} more have no loss at all."
        started = [other for other in events if other.kind == "run.started" and end_of(other) <= end_of(event)]
        caveats = []
        if found.again is None and found.rows == 1:
            caveats.append("one such step can be skipped and the run go on: the log has no later one")
        if event.time is None:
            caveats.append(
                "the log has no times: when it happened is not known, only that it was before the last line"
            )
        title = f"{field_title(log, found)} is not a number "
        if found.again is None:
            title += f"from {place_of(log, row)} on"
        else:
            title += f"at {place_of(log, row)}, and is one again at {place_of(log, found.again)}"
        drafts.append(Draft((4, 0.0), f"{title} ({event.subject})", says, (event, *started[-1:]), tuple(caveats)))
    return drafts
