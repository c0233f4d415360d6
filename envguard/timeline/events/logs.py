"""Events that a run's own logs tell: starts, ends, changes of throughput, of data and of settings, and crashes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from envguard import clock
from envguard.acquire.runs.text_log import Mark, TextLog
from envguard.acquire.runs.train_log import TrainLog
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import make_event
from envguard.timeline.rates.throughput import Segment, Throughput, rate_text

LOG_PRECISION_S = 1.0
SETTINGS = ("token_budget", "max_batch_size")
FEW_VALUES = 12
"""A field that takes more values than this is a counter and no setting."""
SPAN_OF_ONE_NS = 600 * clock.NS


@dataclass(frozen=True)
class RateChange:
    """A change of level: the segments around it and its event."""

    before: Segment
    after: Segment
    event: Event
    log: TrainLog
    window_ns: int
    """From when on a change may be the cause: a process keeps what it loaded, so that after a new start everything
    counts since the good run began; without one, since its last good line."""
    first_bad_ns: int
    restarted: bool
    one_process: bool = False
    """`envguard launch` recorded a run that was alive before and after."""

    @property
    def good(self) -> tuple[int, int]:
        """First and last moment (ns) of the level before."""
        return self.log.time_ns[self.before.first], self.log.time_ns[self.before.last]

    @property
    def bad(self) -> tuple[int, int]:
        """First and last moment (ns) of the level after."""
        return self.log.time_ns[self.after.first], self.log.time_ns[self.after.last]

    @property
    def factor(self) -> float:
        return self.after.rate / self.before.rate


def _at(log: TrainLog, row: int, name: str, value: str) -> Evidence:
    field = f"line {log.line[row]}, {log.fields.get(name, name)}"
    return Evidence(witness="train-log", path=log.path, field=field, value=value)


def baseline_text(log: TrainLog, segment: Segment) -> str:
    """A steady level with its queues and batch rates, as far as the log tells them."""
    middle = (segment.first + segment.last) // 2
    parts = [rate_text(segment.rate)]
    for name, label in (("q_pre", "q_pre="), ("q_hs", "q_hs=")):
        value = log.value(name, middle)
        if value is not None:
            parts.append(label + value)
    targets, drafters = log.value("target_rate", middle), log.value("drafter_rate", middle)
    if targets and drafters:
        parts.append(f"targets {targets} and drafters {drafters} batches/s")
    return ", ".join(parts)


def throughput_events(rates: Throughput) -> tuple[list[Event], list[RateChange]]:
    """Starts, ends and levels of one log; a log without times yields none, which is said by whoever asks."""
    log = rates.log
    events: list[Event] = []
    changes: list[RateChange] = []
    name = _name(log.path)
    for number, run in enumerate(rates.runs):
        # Rows between (of an evaluation, of settings) may have no time: the first and last that have one count.
        timed = (row for row in range(run.first, run.last + 1) if log.time_ns[row])
        first = next(timed, None)
        if first is None:
            continue
        last = next(row for row in range(run.last, run.first - 1, -1) if log.time_ns[row])
        text = f"{name}: a run starts at step {log.step[first]} ({run.why})"
        events.append(_event(log, "run.started", name, log.time_ns[first], text, first))
        if number + 1 < len(rates.runs):
            text = f"{name}: the run's last line is step {log.step[last]}"
            events.append(_event(log, "run.ended", name, log.time_ns[last], text, last))
    if rates.segments and (began := rates.time(rates.segments[0].first)) is not None:
        steady = rates.segments[0]
        text = f"{name}: steady at {baseline_text(log, steady)}"
        events.append(_event(log, "run.throughput", name, began, text, steady.first, to=rate_text(steady.rate)))
    for before, after in pairwise(rates.segments):
        good, bad = rates.time(before.last), rates.time(after.first)
        if good is None or bad is None:
            continue
        event = make_event(
            "run.throughput", name, min(good, bad), bad,
            f"{name}: {rate_text(before.rate)} → {baseline_text(log, after)} at step {log.step[after.first]}",
            [_at(log, before.last, "tok_s", f"{log.rate[before.last]:.0f}"),
             _at(log, after.first, "tok_s", f"{log.rate[after.first]:.0f}")],
            precision_s=LOG_PRECISION_S, from_=rate_text(before.rate), to=rate_text(after.rate),
        )  # fmt: skip
        events.append(event)
        restarted = before.run != after.run
        window = rates.time(rates.runs[before.run].first) if restarted else good
        one = rates.launched.one(good, bad)
        changes.append(RateChange(before, after, event, log, window or good, bad, restarted, one))
    events += [*_held_events(rates), *_setting_events(rates)]
    return events, changes


def _event(log: TrainLog, kind: EventKind, name: str, time: int, text: str, row: int, to: str | None = None) -> Event:
    value = f"step {log.step[row]} at {clock.iso_ns(time)}"
    return make_event(
        kind, name, time, None, text, [_at(log, row, "time", value)], precision_s=LOG_PRECISION_S, to=to
    )


def _name(path: str) -> str:
    return posixpath.basename(path)


def _setting_events(rates: Throughput) -> Iterable[Event]:
    """Settings that a row carries, changed together: one event for all that changed at one row."""
    log = rates.log
    by_row: dict[int, list[tuple[str, str, str]]] = {}
    for name in SETTINGS:
        held = [item for item in log.held if item.field == name]
        if len(held) <= FEW_VALUES:
            for old, new in pairwise(held):
                by_row.setdefault(new.row, []).append((name, old.value, new.value))
    for row, changed in sorted(by_row.items()):
        before, after = rates.time(row - 1), rates.time(row)
        if before is None or after is None:
            continue
        text = ", ".join(f"{log.fields[name]} {_number(old)} → {_number(new)}" for name, old, new in changed)
        evidence = [
            _at(log, at, name, value) for name, old, new in changed for at, value in ((row - 1, old), (row, new))
        ]
        yield make_event("config.changed", "settings", min(before, after), after, f"{text} ({_name(log.path)})",
                         evidence, precision_s=LOG_PRECISION_S)  # fmt: skip


def _held_events(rates: Throughput) -> Iterable[Event]:
    """Data that grew and a cache that shrank, each between the last row with the old value and the first with the
    new."""
    log = rates.log
    for field, kind, label in (
        ("samples", "data.changed", "samples"),
        ("compile_cache", "compile_cache.cleared", "MB of compile cache"),
    ):
        held = [item for item in log.held if item.field == field]
        if not 1 < len(held) <= FEW_VALUES:
            continue
        for old, new in pairwise(held):
            if field == "compile_cache" and not _fell(old.value, new.value):
                continue
            before, after = rates.time(new.row - 1), rates.time(new.row)
            if before is None or after is None:
                continue
            yield make_event(
                kind,  # type: ignore[arg-type]
                label,
                min(before, after),
                after,
                f"{_number(old.value)} → {_number(new.value)} {label} ({_name(log.path)})",
                [_at(log, new.row - 1, field, old.value), _at(log, new.row, field, new.value)],
                precision_s=LOG_PRECISION_S,
                from_=_number(old.value),
                to=_number(new.value),
            )


def _fell(old: str, new: str) -> bool:
    try:
        return float(new) < 0.5 * float(old)
    except ValueError:
        return False


def _number(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


NO_NUMBER = "the loss is not a number"


def loss_event(log: TrainLog) -> Event | None:
    """From which row on the loss was no number; without a time, only that it was so at the file's last writing."""
    if not log.not_finite:
        return None
    row = log.not_finite[0]
    time = log.time_ns[row] or None
    step = f" at step {log.step[row]}" if log.step[row] >= 0 else f" in line {log.line[row]}"
    return make_event(
        "run.ended", _name(log.path), time, None if time else log.mtime_ns,
        f"{_name(log.path)}: {NO_NUMBER} for the first time{step}",
        [_at(log, row, "loss", f"not finite, the first of {log.not_finite_rows:,} lines")],
        precision_s=LOG_PRECISION_S, best="weak" if time is None or log.doubt else "strong",
    )  # fmt: skip


TITLES = {
    "oom": "out of memory",
    "fx-tracing": "the FX-tracing error (one thread compiles while another traces)",
    "traceback": "an exception",
    "killed": "killed",
}


def crash_events(log: TextLog) -> Iterable[Event]:
    """What ended a run, by its text log; of several lines of one failure the most telling one."""
    for mark in _most_telling(log.marks):
        span = mark.span
        # Without a time on any line above it, all that is known is that it was there when the file was last written.
        start = span.start_ns if span is not None else None
        end = span.end_ns if span is not None else log.mtime_ns
        where = f" on GPU {mark.gpu}" if mark.gpu is not None else ""
        evidence = Evidence(witness="text-log", path=log.path, field=f"line {mark.line}", value=mark.text)
        yield make_event(
            "run.ended", _name(log.path), start, end if end != start else None,
            f"{_name(log.path)}: {TITLES[mark.kind]}{where}: {_short(mark.text)}", [evidence],
            precision_s=LOG_PRECISION_S, best="weak" if span is None or span.doubt else "strong",
        )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "…"


def _most_telling(marks: tuple[Mark, ...]) -> list[Mark]:
    """Marks of one failure (within 200 lines) give one event: the specific kinds before the bare exception."""
    rank = {"fx-tracing": 0, "oom": 1, "killed": 2, "traceback": 3}
    kept: list[Mark] = []
    for mark in marks:
        near = kept[-1] if kept and mark.line - kept[-1].line <= 200 and _one_time(kept[-1], mark) else None
        if near is None:
            kept.append(mark)
        elif rank[mark.kind] < rank[near.kind]:
            kept[-1] = mark
    return kept


def _one_time(first: Mark, second: Mark) -> bool:
    if first.span is None or second.span is None:
        return True
    return second.span.start_ns - first.span.start_ns <= SPAN_OF_ONE_NS // 10
