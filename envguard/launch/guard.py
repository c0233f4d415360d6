"""The guard over tok/s: a run that fell far below its baseline, and stays there, is worth an interruption.

`Meter` is the judgement and reads nothing; `Guard` finds the run's log and feeds the meter from it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from envguard import clock
from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile, find_logs
from envguard.acquire.runs.log_tail import LogTail, Row, read_last_rows
from envguard.acquire.seam.host import Host
from envguard.config import LogFields, Throughput
from envguard.model.run import ThroughputSummary

# The rates that one judgement is made over: a checkpoint or an evaluation slows single steps.
_WINDOW = 5
_OWN_BASELINE = 50
_BASELINE_ROWS = 200
_STALL_INTERVALS = 20


@dataclass
class Meter:
    """Rates in tokens/s, times in s since the epoch. Without a baseline the run's own first rates become it."""

    settings: Throughput
    baseline: float | None
    whose: str
    started: float
    rows: int = 0
    first: float | None = None
    last: Row | None = None
    last_seen: float | None = None
    below_since: float | None = None
    alarmed: bool = False
    stalled: bool = False
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _own: list[float] = field(default_factory=list)
    _all: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def take(self, rows: Sequence[Row], now: float) -> str | None:
        """Judges new rows; a sentence where something has to be said, once until the run has recovered."""
        says = None
        for row in rows:
            says = self._row(row, now) or says
        return says

    def _row(self, row: Row, now: float) -> str | None:
        moment = row.time if row.time is not None else now
        if self.last_seen is not None:
            self._intervals.append(max(0.0, moment - self.last_seen))
        self.rows, self.last, self.last_seen, self.stalled = self.rows + 1, row, moment, False
        if self.first is None:
            self.first = moment
        if self.rows <= self.settings.warmup_steps:
            return None
        self._recent.append(row.tok_s)
        self._all.append(row.tok_s)
        if self.baseline is None:
            self._own.append(row.tok_s)
            if len(self._own) == _OWN_BASELINE:
                self.baseline, self.whose = statistics.median(self._own), "its own first steps"
            return None
        return self._judge(statistics.median(self._recent), self.baseline, moment)

    def _judge(self, rate: float, baseline: float, moment: float) -> str | None:
        if rate >= baseline * self.settings.fraction:
            recovered, self.below_since, self.alarmed = self.alarmed, None, False
            return f"throughput is back at {rate:,.0f} tok/s" if recovered else None
        if self.below_since is None:
            self.below_since = moment
        if self.alarmed or moment - self.below_since < self.settings.seconds:
            return None
        self.alarmed = True
        for_how_long = clock.span(moment - self.below_since)
        return (
            f"throughput is {rate:,.0f} tok/s, {rate / baseline:.0%} of {baseline:,.0f} ({self.whose}), "
            f"for {for_how_long}"
        )

    def silence(self, now: float) -> str | None:
        """A sentence where no row has come for far longer than rows take, once."""
        if self.last_seen is None or self.stalled or len(self._intervals) < 8:
            return None
        usual = statistics.median(self._intervals)
        if now - self.last_seen < max(self.settings.seconds, usual * _STALL_INTERVALS):
            return None
        self.stalled = True
        return f"no step has been logged for {clock.span(now - self.last_seen)}; a step took {clock.span(usual)}"

    def is_down(self) -> bool:
        """Whether the rate is too low, or no row comes any more: the last sentence was no recovery."""
        return self.alarmed or self.stalled

    def below_s(self) -> float:
        """How long the rate has been below the line without a break, up to the last row."""
        if self.below_since is None or self.last_seen is None:
            return 0.0
        return round(self.last_seen - self.below_since, 3)

    def median(self) -> float | None:
        return statistics.median(self._all) if self._all else None


class Guard:
    """Finds the training log of this run, the one that grows after the start, and follows it."""

    def __init__(
        self, host: Host, places: Sequence[str], named: Sequence[str], fields: LogFields, zone: Zone, meter: Meter
    ) -> None:
        self.meter = meter
        self.notes: list[str] = []
        self._host = host
        self._places = tuple(places)
        self._named = tuple(named)
        self._fields = fields
        self._zone = zone
        self._tail: LogTail | None = None
        self._sizes = {log.path: log.stat.size for log in self._logs()}
        self._next_search = 0.0

    def _logs(self) -> tuple[LogFile, ...]:
        found, _ = find_logs(self._host, self._places, self._named)
        return tuple(log for log in found if log.kind == "jsonl")

    def look(self, now: float) -> str | None:
        """Reads what was logged since; a sentence where something has to be said."""
        if self._tail is None:
            if now < self._next_search:
                return None
            # A run that never logs must not be searched for ever at the rate of one that is about to.
            self._next_search = now + (5.0 if now - self.meter.started < 120 else 60.0)
            return self._search(now)
        try:
            rows = self._tail.read()
        except OSError as error:
            self.notes.append(f"{self._tail.path} cannot be read: {error.strerror or error}")
            self._tail = None
            return None
        return self.meter.take(rows, now) or self.meter.silence(now)

    def _search(self, now: float) -> str | None:
        for log in self._logs():
            before = self._sizes.get(log.path, 0)
            if log.stat.size == before:
                continue
            tail = LogTail(self._host, log.path, self._fields, self._zone, before if log.stat.size > before else 0)
            try:
                rows = tail.read()
            except OSError:
                continue  # another that grows may be the one
            if rows:
                self._tail = tail
                return self.meter.take(rows, now)
            if tail.rows:
                self._sizes[log.path] = log.stat.size  # rows without a rate: no log of this kind, or not yet
        return None

    def summary(self) -> ThroughputSummary | None:
        """What the log said up to now; None where there is none."""
        if self._tail is None:
            return None
        meter = self.meter
        return ThroughputSummary(
            log=self._tail.path,
            rows=self._tail.rows,
            steps=meter.rows,
            first_step_s=round(meter.first - meter.started, 3) if meter.first is not None else None,
            baseline=meter.baseline,
            median=meter.median(),
            last=meter.last.tok_s if meter.last is not None else None,
            below_s=meter.below_s(),
            cache_hits=self._tail.cache_hits,
            cache_misses=self._tail.cache_misses,
        )


def baseline_of(
    host: Host, places: Sequence[str], named: Sequence[str], fields: LogFields, zone: Zone, step: int | None
) -> float | None:
    """The median rate of the last rows up to `step` in the logs beside a checkpoint; None where none has a rate."""
    found, _ = find_logs(host, places, named)
    rows: list[Row] = []
    for log in found:
        if log.kind != "jsonl":
            continue
        try:
            rows += read_last_rows(host, log.path, fields, zone)
        except OSError:
            continue  # a log that cannot be read is no baseline; the run's own first steps are
    fitting = [row.tok_s for row in rows if step is None or row.step <= step]
    return statistics.median(fitting[-_BASELINE_ROWS:]) if fitting else None
