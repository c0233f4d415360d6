"""Events that a run's own logs tell: starts, ends, changes of throughput, of data and of settings, and crashes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from envguard import clock
from envguard.acquire.runs.endings import ORDER, TITLES, EndingKind
from envguard.acquire.runs.text_log import Mark, TextLog
from envguard.acquire.runs.train_log import Held, NotFinite, TrainLog
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import make_event
from envguard.timeline.rates.throughput import Segment, Throughput, rate_text

LOG_PRECISION_S = 1.0
SETTINGS = ("token_budget", "max_batch_size")
FEW_VALUES = 12
"""A field that takes more values than this is a counter and no setting."""
SPAN_OF_ONE_NS = 600 * clock.NS
PROPORTIONAL = 1.02


@dataclass(frozen=True)
class RateChange:
    """A change of level: the segments around it and its event."""

    before: Segment
    after: Segment
    event: Event
    log: TrainLog
    window_ns: int | None
    """From when on a change may be the cause: a process keeps what it loaded, so that after a new start everything
    counts since the good run began; without one, since its last good line. None where the log has no times: the
    change is only known to be older than the file's last writing."""
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
    field = f"{log.place} {log.line[row]}, {log.fields.get(name, name)}"
    return Evidence(witness="train-log", path=log.path, field=field, value=value)


def baseline_text(log: TrainLog, segment: Segment) -> str:
    """A steady level with its queues and batch rates, as far as the log tells them."""
    middle = (segment.first + segment.last) // 2
    parts = [rate_text(segment.rate, log.unit)]
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
        level = rate_text(steady.rate, log.unit)
        events.append(_event(log, "run.throughput", name, began, text, steady.first, to=level))
    for before, after in pairwise(rates.segments):
        change = _change(rates, before, after)
        events.append(change.event)
        changes.append(change)
    events += [*_held_events(rates), *_setting_events(rates)]
    return events, changes


def _value(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.4g}"


def _change(rates: Throughput, before: Segment, after: Segment) -> RateChange:
    """A change of level. In a log without times it is only known to be older than the file's last writing."""
    log, name = rates.log, _name(rates.log.path)
    good, bad = rates.time(before.last), rates.time(after.first)
    dated = good is not None and bad is not None
    start, end = (min(good, bad), bad) if good is not None and bad is not None else (None, bad or log.mtime_ns)
    old, new = rate_text(before.rate, log.unit), rate_text(after.rate, log.unit)
    where = f"step {log.step[after.first]}" if log.step[after.first] >= 0 else f"{log.place} {log.line[after.first]}"
    event = make_event(
        "run.throughput", name, start, end, f"{name}: {old} → {baseline_text(log, after)} at {where}",
        [_at(log, row, "tok_s", _value(log.rate[row])) for row in (before.last, after.first)],
        precision_s=LOG_PRECISION_S, from_=old, to=new, best="strong" if dated else "weak",
    )  # fmt: skip
    restarted = before.run != after.run
    window = (rates.time(rates.runs[before.run].first) if restarted else None) or good
    one = good is not None and bad is not None and rates.launched.one(good, bad)
    return RateChange(before, after, event, log, window if dated else None, end, restarted, one)


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
        if not 1 < len(held) <= FEW_VALUES or _is_counter(log, held):
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


def _is_counter(log: TrainLog, held: list[Held]) -> bool:
    """Whether a field grows with the step, as samples seen so far do, and not when somebody changes it."""
    if len(held) > max(2, len(log) // 4):
        return True
    try:
        pairs = [(float(item.value), log.step[item.row]) for item in held]
    except ValueError:
        return False
    each = [value / step for value, step in pairs if step > 0]
    return len(each) > 2 and min(each) > 0 and max(each) / min(each) < PROPORTIONAL


def _fell(old: str, new: str) -> bool:
    try:
        return float(new) < 0.5 * float(old)
    except ValueError:
        return False


def _number(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


@dataclass(frozen=True)
class NoNumber:
    """Where a loss or a gradient norm was no number, and the event that says so."""

    log: TrainLog
    found: NotFinite
    event: Event


def field_title(log: TrainLog, found: NotFinite) -> str:
    """The field as a person calls it."""
    if found.name == log.fields.get("loss"):
        return "the loss"
    return f"the gradient norm ({found.name})" if found.gradient else found.name


def place_of(log: TrainLog, row: int) -> str:
    """`step 28`, or `line 30` where the row has no step."""
    return f"step {log.step[row]}" if log.step[row] >= 0 else f"{log.place} {log.line[row]}"


def no_numbers(log: TrainLog) -> list[NoNumber]:
    """What of a log was no number. A loss tells more than a gradient norm, and one that stayed so more than one step
    that was skipped. A gradient norm that became a number again is what loss scaling does on an ordinary day."""
    found = sorted(
        (item for item in log.not_finite.values() if not item.gradient or (item.again is None and item.rows > 1)),
        key=lambda item: (item.again is not None, item.gradient, item.name != log.fields.get("loss"), item.first),
    )
    return [_no_number(log, item) for item in found[:1]]


def _no_number(log: TrainLog, found: NotFinite) -> NoNumber:
    """Without a time, it is only known that it was so at the file's last writing."""
    row = found.since if found.again is None else found.first
    time = log.time_ns[row] or None
    what = field_title(log, found)
    text = f"{what} is not a number from {place_of(log, row)} on"
    if found.again is not None:
        text = f"{what} is not a number at {place_of(log, row)}, and is one again at {place_of(log, found.again)}"
    value = f"not finite, the first of {found.rows:,} such {log.place}s" if log.place != "entry" else "not finite"
    proof = Evidence(
        witness="train-log", path=log.path, field=f"{log.place} {log.line[row]}, {found.name}", value=value
    )
    event = make_event(
        "run.ended", _name(log.path), time, None if time else log.mtime_ns, f"{_name(log.path)}: {text}", [proof],
        precision_s=LOG_PRECISION_S, best="weak" if time is None or log.doubt else "strong",
    )  # fmt: skip
    return NoNumber(log, found, event)


@dataclass(frozen=True)
class RunEnd:
    """How a text log says that a run ended, and the event of it."""

    kind: EndingKind
    gpu: str | None
    event: Event

    @property
    def title(self) -> str:
        """`out of memory on GPU 6`."""
        return TITLES[self.kind] + (f" on GPU {self.gpu}" if self.gpu is not None else "")


def run_ends(log: TextLog) -> Iterable[RunEnd]:
    """What ended a run, by its text log; of several lines of one failure the most telling one."""
    for mark in _most_telling(log.marks):
        span = mark.span
        # Without a time on any line above it, all that is known is that it was there when the file was last written.
        start = span.start_ns if span is not None else None
        end = span.end_ns if span is not None else log.mtime_ns
        where = f" on GPU {mark.gpu}" if mark.gpu is not None else ""
        evidence = Evidence(witness="text-log", path=log.path, field=f"line {mark.line}", value=mark.text)
        event = make_event(
            "run.ended", _name(log.path), start, end if end != start else None,
            f"{_name(log.path)}: {TITLES[mark.kind]}{where}: {_short(mark.text)}", [evidence],
            precision_s=LOG_PRECISION_S, best="weak" if span is None or span.doubt else "strong",
        )  # fmt: skip
        yield RunEnd(mark.kind, mark.gpu, event)


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "…"


def _most_telling(marks: tuple[Mark, ...]) -> list[Mark]:
    """Marks of one failure (within 200 lines) give one event: causes before what follows from them."""
    kept: list[Mark] = []
    for mark in marks:
        near = kept[-1] if kept and mark.line - kept[-1].line <= 200 and _one_time(kept[-1], mark) else None
        if near is None:
            kept.append(mark)
        elif ORDER.index(mark.kind) < ORDER.index(near.kind):
            kept[-1] = mark
    return kept


def _one_time(first: Mark, second: Mark) -> bool:
    if first.span is None or second.span is None:
        return True
    return second.span.start_ns - first.span.start_ns <= SPAN_OF_ONE_NS // 10
