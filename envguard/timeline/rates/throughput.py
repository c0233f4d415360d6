"""Throughput as a training log tells it: runs, warm-ups, steady segments and the changes between them."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from envguard import clock
from envguard.acquire.runs.train_log import TrainLog
from envguard.clock import NS
from envguard.model.run import RunRecord
from envguard.timeline.rates.changepoints import change_points

LEAST_CHANGE = 0.1
"""A change of level below ten per cent is no event: other lengths in the batches alone make as much."""
WARM_UP_ROWS = 20
WARM_UP_FRACTION = 0.85
GAP_FACTOR, GAP_LEAST_NS = 20, 120 * NS
SNAP_ROWS = 12
SAMPLE = 20_001
INTERLEAVED_LEAST, INTERLEAVED_PART = 5, 0.1


@dataclass(frozen=True)
class Run:
    """Consecutive rows of one process, [first, last]; `why` says what parts it from the run before."""

    first: int
    last: int
    why: str


@dataclass(frozen=True)
class Segment:
    """Rows [first, last] of one steady level; `rate` is its median in the log's unit."""

    first: int
    last: int
    rate: float
    rows: int
    run: int


@dataclass(frozen=True)
class Throughput:
    """A log's runs and steady segments, oldest first; a segment of another level follows each."""

    log: TrainLog
    runs: tuple[Run, ...]
    segments: tuple[Segment, ...]
    launched: Launches

    def time(self, row: int) -> int | None:
        """When a row was written, ns since the epoch."""
        return self.log.time_ns[row] or None


def read_throughput(log: TrainLog, launched: Sequence[RunRecord] = ()) -> Throughput:
    """Runs and segments of a log; a log without rates has runs alone. `launched` are the runs that `envguard launch`
    started."""
    lives = Launches(launched)
    runs = tuple(split_runs(log, lives))
    rows, run_of = _steady_rows(log, runs)
    if not rows:
        return Throughput(log, runs, (), lives)
    rates = array("d", (log.rate[row] for row in rows))
    starts = {index for index in range(1, len(rows)) if run_of[index] != run_of[index - 1]}
    cuts = sorted({_snap(cut, starts) for cut in change_points(rates)})
    return Throughput(log, runs, tuple(_segments(rows, rates, run_of, cuts)), lives)


class Launches:
    """When each run of `envguard launch` lived (ns), and which of them may have written a row."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.lived = [
            (run.id, clock.nanoseconds(run.started), clock.nanoseconds(run.ended) if run.ended else None)
            for run in records
            if run.started is not None
        ]
        self.moments = sorted(start for _, start, _ in self.lived)

    def at(self, moment: int) -> frozenset[str]:
        """The runs that were alive then."""
        return frozenset(
            each for each, start, end in self.lived if start <= moment and (end is None or moment <= end)
        )

    def anew(self, earlier: int, time: int) -> bool:
        """Whether two rows are of two runs: none was alive at both, and some at each."""
        first = bisect.bisect_right(self.moments, earlier)
        if first == len(self.moments) or self.moments[first] > time:
            return False  # none began between the two
        before, after = self.at(earlier), self.at(time)
        return bool(before and after) and not before & after

    def one(self, earlier: int, time: int) -> bool:
        """Whether a run was alive at both."""
        return bool(self.at(earlier) & self.at(time))


def split_runs(log: TrainLog, launched: Launches) -> Iterable[Run]:
    """A step that goes back, a gap in time far beyond the usual, or a run that was launched anew, ends a run."""
    count = len(log)
    if not count:
        return
    usual = _usual_interval(log)
    mixed = _interleaved(log)
    first, why = 0, "the log begins"
    for row in range(1, count):
        step, before = log.step[row], log.step[row - 1]
        time, earlier = log.time_ns[row], log.time_ns[row - 1]
        parted = None
        if not mixed and row not in log.epochs and (0 <= step < before - 2 or (step == 0 and before > 0)):
            parted = f"the step went back from {before} to {step}"
        elif time and earlier and usual and time - earlier > max(GAP_LEAST_NS, GAP_FACTOR * usual):
            parted = "nothing was logged for a while"
        elif time and earlier and launched.anew(earlier, time):
            parted = "`envguard launch` started it anew"
        if parted is not None:
            yield Run(first, row - 1, why)
            first, why = row, parted
    yield Run(first, count - 1, why)


def _interleaved(log: TrainLog) -> bool:
    """Whether several ranks wrote into one log without saying which: the step goes back again and again."""
    backwards = sum(0 <= after < before for before, after in pairwise(log.step))
    return backwards > max(INTERLEAVED_LEAST, INTERLEAVED_PART * len(log))


def _usual_interval(log: TrainLog) -> int:
    stride = max(1, len(log) // SAMPLE)
    steps = [
        log.time_ns[row] - log.time_ns[row - 1]
        for row in range(1, len(log), stride)
        if log.time_ns[row] and log.time_ns[row - 1]
    ]
    positive = [step for step in steps if step > 0]
    return int(median(positive)) if positive else 0


def _steady_rows(log: TrainLog, runs: tuple[Run, ...]) -> tuple[array[int], array[int]]:
    """Rows with a rate and without each run's warm-up, and the run that each belongs to."""
    # Arrays: of a million rows, lists of numbers would take as much memory as all the rest.
    rows, run_of = array("q"), array("q")
    for number, run in enumerate(runs):
        rated = array("q", (row for row in range(run.first, run.last + 1) if 0 < log.rate[row] < math.inf))
        kept = rated[_warm_up(log, rated) :]
        rows += kept
        run_of += array("q", (number,)) * len(kept)
    return rows, run_of


def _warm_up(log: TrainLog, rated: array[int]) -> int:
    """How many leading rows are below what the run then does: compiling and filling queues, no change of level."""
    if len(rated) < 3:
        return 0
    level = median(log.rate[row] for row in rated[1 : 1 + 10 * WARM_UP_ROWS])
    most = min(WARM_UP_ROWS, len(rated) // 3)
    count = 0
    # A progress bar that goes on at step 5,000 counts these as done in its first second.
    high = level / WARM_UP_FRACTION if log.unit == "steps/s" else math.inf
    while count < most and not WARM_UP_FRACTION * level <= log.rate[rated[count]] <= high:
        count += 1
    return count


def _snap(cut: int, starts: set[int]) -> int:
    """A change found some rows beside the start of a run is the start of that run."""
    near = [start for start in starts if abs(start - cut) <= SNAP_ROWS]
    return min(near, key=lambda start: abs(start - cut)) if near else cut


def _segments(rows: array[int], rates: array[float], run_of: array[int], cuts: list[int]) -> Iterable[Segment]:
    """Segments between cuts; neighbours of one level are one."""
    pending: tuple[int, int, float] | None = None
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if first == last:
            continue
        rate = median(rates[first:last])
        if pending is not None and abs(math.log(rate / pending[2])) < math.log1p(LEAST_CHANGE):
            pending = (pending[0], last, median(rates[pending[0] : last]))
            continue
        if pending is not None:
            yield _segment(rows, run_of, *pending)
        pending = (first, last, rate)
    if pending is not None:
        yield _segment(rows, run_of, *pending)


def _segment(rows: array[int], run_of: array[int], first: int, last: int, rate: float) -> Segment:
    return Segment(rows[first], rows[last - 1], rate, last - first, run_of[first])


def rate_text(rate: float, unit: str = "tok/s") -> str:
    """A rate as people write it: `21.5 Ktok/s`, `640 tok/s`, `1.31 steps/s`, `412 TFLOP/s/GPU`."""
    if unit.startswith(("tok/s", "words/s")) and rate >= 1000:
        return f"{rate / 1e6:.2f} M{unit}" if rate >= 1e6 else f"{rate / 1000:.1f} K{unit}"
    if unit.startswith("/"):
        return f"{rate:,.0f}{unit}" if rate >= 100 else f"{rate:.3g}{unit}"
    if unit.startswith("MFU"):
        return f"{unit} {rate:.3g}"
    return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.3g} {unit}"
