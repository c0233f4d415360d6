"""Training logs in rows: step, time, rate, loss, queues, samples, and settings that a row carries.

JSON lines, one JSON document (`trainer_state.json`) and CSV. Roles are given by `roles.assign_roles` or by
configuration. A million rows are kept as columns of numbers; fields that hardly change are kept where they change.
"""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from envguard.acquire.machine.zone import Zone, epoch_ns, parse_moment
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.roles import (
    HELD,
    LEAST_SAMPLE,
    Field,
    Path,
    Roles,
    Row,
    assign_roles,
    counts_nan,
    flatten,
    getter,
    has_offset,
    is_finite,
    is_gradient,
    number,
    words_of,
)
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import blocks
from envguard.clock import NS
from envguard.config import LogFields

SNIFF = 1 << 18
"""Bytes that are looked at of the head, the middle and the end of a log, to know its fields."""
SNIFF_ROWS = 400
MOST_DOCUMENT = 64 << 20
MOST_CHANGES = 2000
MOST_STEP = 1 << 62
_VALUE = re.compile(r"[-+]?\d[\w.+,:/%-]{0,31}")
"""Text that is kept of a held field: a number with its unit, a version. No other text leaves a log."""


@dataclass(frozen=True)
class Held:
    """A field has `value` from `row` on (until its next change)."""

    row: int
    field: str
    value: str


@dataclass
class NotFinite:
    """Where a loss or a gradient norm was no number. Rows count from 0 in the log's columns."""

    name: str
    gradient: bool
    first: int
    since: int
    """The first row of the last stretch without a number."""
    rows: int = 1
    again: int | None = None
    """The first row with a number after the last stretch; None where the log ends without one."""


@dataclass
class TrainLog:
    """A log as columns: one entry a row that was understood, in the order of the file.

    `time_ns` is 0 and `rate` is NaN where a row does not say; `line` is the row's line in the file, from 1.
    """

    path: str
    fields: dict[str, str]
    """Role → the log's own name of the field."""
    unit: str = "tok/s"
    """Of `rate`."""
    place: str = "line"
    """What `line` counts: lines, or entries of one document."""
    line: array[int] = field(default_factory=lambda: array("q"))
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    rate: array[float] = field(default_factory=lambda: array("d"))
    held: list[Held] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    """Losses and gradient norms that were no number somewhere, by the field's name."""
    epochs: set[int] = field(default_factory=set)
    """Rows at which the step began anew with an epoch: no new run."""
    without_loss: int = 0
    unread: int = 0
    """Lines that are no row."""
    mtime_ns: int = 0
    """When the file was last written: all that is known of rows without a time."""
    doubt: str | None = None
    """Why its times are worth less: local time in an hour that came twice."""
    doubts: list[str] = field(default_factory=list)
    """What of the log is not understood, and so was not looked at."""

    def __len__(self) -> int:
        return len(self.line)

    def value(self, name: str, row: int) -> str | None:
        """What a held field was at a row."""
        latest = None
        for item in self.held:
            if item.row > row:
                break
            if item.field == name:
                latest = item.value
        return latest


def read_train_log(host: Host, log: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
    """Reads a log of JSON lines, a JSON document or a CSV file; None where no row holds a step, a rate or a loss, so
    that it is no training log."""
    if log.kind == "csv":
        return _read_csv(host, log, configured, zone)
    document = _document(host, log)
    if document is not None:
        return from_rows(log, [*enumerate(document, 1)], configured, zone, "entry")
    roles = sniff(host, log.path, configured, zone)
    if not roles.of_training():
        return None
    reader = RowReader(TrainLog(log.path, roles.names(), roles.unit, mtime_ns=log.stat.mtime_ns), roles, zone)
    for first, block in blocks(host, log.path, log.stat.size):
        reader.take(first, block)
    return reader.finish()


def from_rows(
    log: LogFile, rows: Sequence[tuple[int, Row]], configured: LogFields, zone: Zone, place: str = "line"
) -> TrainLog | None:
    """Rows of any format, each with its line, as a log; None where they are none of a training."""
    stride = max(1, len(rows) // (4 * SNIFF_ROWS))
    roles = assign_roles([row for _, row in rows[::stride]], configured, zone)
    if not roles.of_training():
        return None
    names = roles.names()
    reader = RowReader(TrainLog(log.path, names, roles.unit, place, mtime_ns=log.stat.mtime_ns), roles, zone)
    reader.columns([line for line, _ in rows], lambda path: [row.get(path) for _, row in rows])
    return reader.finish()


def sniff(host: Host, path: str, configured: LogFields, zone: Zone) -> Roles:
    """The roles of the fields of JSON lines, from the head, the middle and the end."""
    size = host.stat_target(path).size
    rows: list[Row] = []
    for at in sorted({0, max(0, size // 2), max(0, size - SNIFF)}) if size > SNIFF else [0]:
        piece = host.read(path, SNIFF, at)
        whole = piece.split(b"\n")[1 if at else 0 :]
        read = (_lenient(line) for line in (whole if at + SNIFF < size else whole[::-1]))
        found = [flatten(row) for row in islice((row for row in read if row is not None), SNIFF_ROWS)]
        rows += found if at + SNIFF < size else found[::-1]
    return assign_roles(rows, configured, zone)


def _lenient(line: bytes) -> dict[str, Any] | None:
    """A row as Python's json takes it: bare NaN and Infinity are read, since trainers write them."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _document(host: Host, log: LogFile) -> list[Row] | None:
    """The rows of a file that is one JSON document: a list, or an object with a list of rows; None for lines."""
    if not log.path.endswith(".json") or log.stat.size > MOST_DOCUMENT:
        return None
    data = host.read(log.path, MOST_DOCUMENT)
    if _lenient(data.partition(b"\n")[0]) is not None and data.count(b"\n") > 1:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        if data.lstrip()[:1] in (b"{", b"[") and _lenient(data.partition(b"\n")[0]) is None:
            raise OSError(0, f"is no JSON that can be read ({type(error).__name__})", log.path) from error
        return None
    if isinstance(value, dict):
        lists = [value.get(name) for name in ("log_history", "history", "logs", "metrics")]
        value = next((item for item in lists if isinstance(item, list)), [value])
    return [flatten(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_csv(host: Host, log: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
    rows: list[tuple[int, Row]] = []
    names: list[str] = []
    delimiter, unread = ",", 0
    for first, block in blocks(host, log.path, log.stat.size):
        if not block.strip():
            continue
        for at, raw in enumerate(block.splitlines(), first):
            text = raw.decode("utf-8-sig", "replace")
            if not names:
                delimiter = max(",;\t", key=text.count)
            try:
                cells = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
            except csv.Error:  # a field of 128 KB, a quote without end
                unread += 1
                continue
            if not names:
                names = [cell.strip() for cell in cells[:1000]]
            elif cells and [cell.strip() for cell in cells] != names:
                rows.append((at, {(name,): cell for name, cell in zip(names, cells, strict=False) if cell.strip()}))
    found = from_rows(log, rows, configured, zone)
    if found is not None:
        found.unread = unread
    return found


class RowReader:
    """Fills the columns of a log from blocks of JSON lines, or from columns of any other format."""

    def __init__(self, log: TrainLog, roles: Roles, zone: Zone) -> None:
        self.log = log
        self.roles = roles
        self.zone = zone
        self.last: dict[str, Any] = {}
        self.changes: dict[str, int] = {}
        self.at: tuple[int, float] = (-1, -1.0)
        self.kept = tuple(role for role in HELD if role in roles.fields)
        self.open: dict[str, NotFinite] = {}
        self.ranks: Any = None
        tops = dict.fromkeys(item.path[0] for item in self._all_fields())
        self.slots = {top: f"f{i}" for i, top in enumerate(tops)}
        row = msgspec.defstruct("Row", [(slot, Any, None) for slot in self.slots.values()],
                                rename={slot: top for top, slot in self.slots.items()})  # fmt: skip
        self.decoder = msgspec.json.Decoder(row)

    def _all_fields(self) -> Iterable[Field]:
        for fields in self.roles.fields.values():
            yield from fields
        yield from self.roles.health
        if self.roles.day is not None:
            yield self.roles.day

    def take(self, first: int, block: bytes) -> None:
        """Adds the rows of a block of whole lines of JSON."""
        if not block.strip():
            return
        try:
            rows = self.decoder.decode_lines(block)
        except (msgspec.MsgspecError, RecursionError):
            self._one_by_one(first, block)
            return
        if len(rows) != block.count(b"\n") + (not block.endswith(b"\n")):
            self._one_by_one(first, block)  # blank lines: count them, so that line numbers stay true
            return

        def column(path: Path) -> list[Any]:
            values = [getattr(row, self.slots[path[0]]) for row in rows]
            if len(path) == 1:
                return values
            inner = getter(path[1:])
            return [inner(value) if isinstance(value, dict) else None for value in values]

        self.columns(range(first, first + len(rows)), column)

    def _one_by_one(self, first: int, block: bytes) -> None:
        numbers: list[int] = []
        rows: list[dict[str, Any]] = []
        for at, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            row = _lenient(line)
            if row is None:
                self.log.unread += 1
                continue
            numbers.append(at)
            rows.append(row)

        def column(path: Path) -> list[Any]:
            get = getter(path)
            return [get(row) for row in rows]

        self.columns(numbers, column)

    def columns(self, lines: Sequence[int], column: Callable[[Path], list[Any]]) -> None:
        """Adds rows a column at a time, which is five times as fast as row by row."""
        log, count = self.log, len(lines)
        if not count:
            return
        ranks = column(self.roles.fields["rank"][0].path) if "rank" in self.roles.fields else None
        keep = self._first_rank(ranks)
        base = len(log.line)
        health = [(item, column(item.path)) for item in self.roles.health]
        for item, values in health:
            self._health(base, item, values, keep, ranks)
        chosen = range(count) if keep is None else keep

        def of(role: str) -> list[Any]:
            return self._coalesced(role, column, count, chosen)

        log.line.extend([lines[index] for index in chosen])
        times = of("time")
        if self.roles.day is not None:
            days = column(self.roles.day.path)
            times = [f"{days[index]} {time}" for index, time in zip(chosen, times, strict=True)]
        log.time_ns.extend([self._time(value) for value in times])
        steps = [_step(value) for value in of("step")]
        log.step.extend(steps)
        self._epochs(base, steps, of("epoch"))
        log.rate.extend(self._rates(column, count, chosen))
        if "loss" in self.roles.fields:
            losses = of("loss")
            log.without_loss += sum(loss is None for loss in losses)
        for role in self.kept:
            last = self.last.get(role)
            for index, value in enumerate(of(role)):
                if value != last and value is not None:
                    last = value
                    self._hold(base + index, role, value)

    def _first_rank(self, values: Sequence[Any] | None) -> list[int] | None:
        """The rows of one rank, where several write into one log: what each of them says of a step is said once."""
        if values is None:
            return None
        known = [value for value in values if isinstance(value, int | float | str)]
        if self.ranks is None and known:
            self.ranks = min(known, key=lambda value: (number(value) is None, number(value) or 0.0, str(value)))
        return [index for index, value in enumerate(values) if value == self.ranks or value is None]

    def _coalesced(
        self, role: str, column: Callable[[Path], list[Any]], count: int, chosen: Iterable[int]
    ) -> list[Any]:
        fields = self.roles.fields.get(role)
        if fields is None:
            return [None for _ in chosen]
        values = column(fields[0].path)
        for other in fields[1:]:
            if None not in values:
                break
            values = [old if old is not None else new for old, new in zip(values, column(other.path), strict=True)]
        return values if isinstance(chosen, range) else [values[index] for index in chosen]

    def _rates(self, column: Callable[[Path], list[Any]], count: int, chosen: Iterable[int]) -> list[float]:
        found: list[float] = [math.nan] * count
        for item in self.roles.fields.get("tok_s", ()):
            if not any(rate != rate for rate in found):
                break
            scale, inverse = item.scale, item.inverse
            found = [
                rate if rate == rate
                else value * scale if type(value) is float and not inverse
                else _rate(value, scale, inverse)
                for rate, value in zip(found, column(item.path), strict=True)
            ]  # fmt: skip
        return found if isinstance(chosen, range) else [found[index] for index in chosen]

    def _epochs(self, base: int, steps: Sequence[int], epochs: Sequence[Any]) -> None:
        step, epoch = self.at
        for index, (here, value) in enumerate(zip(steps, epochs, strict=True)):
            if here < 0:
                continue
            now = number(value)
            if now is not None:
                if here < step and math.floor(now) > math.floor(epoch) >= 0:
                    self.log.epochs.add(base + index)
                epoch = now
            step = here
        self.at = step, epoch

    def _health(
        self, base: int, item: Field, values: Sequence[Any], keep: list[int] | None, ranks: Sequence[Any] | None
    ) -> None:
        """Where a field was no number; of several ranks each on its own, since the others go on."""
        words = words_of(item.path[-1])
        counted = counts_nan(words)
        places = None if keep is None else _places(keep, len(values))
        watched = any(name.startswith(item.name) for name in self.open)
        for index, value in enumerate(values):
            if value is None or (
                not watched and type(value) is float and -math.inf < value < math.inf and not counted
            ):
                continue
            bad = (number(value) or 0) > 0 if counted else not is_finite(value)
            if not (bad or watched):
                continue
            other = ranks is not None and ranks[index] is not None and ranks[index] != self.ranks
            name = f"{item.name} (rank {str(ranks[index])[:20]})" if ranks is not None and other else item.name
            state = self.open.get(name)
            row = base + (index if places is None else places[index])
            if not bad:
                if state is not None and state.again is None:
                    state.again = row
            elif state is None:
                watched = True
                self.open[name] = NotFinite(name, is_gradient(words), row, row)
            else:
                state.rows += 1
                if state.again is not None:
                    state.since, state.again = row, None

    def finish(self) -> TrainLog:
        """The log, once its last row is in."""
        log = self.log
        log.held.sort(key=lambda item: item.row)
        log.not_finite = dict(self.open)
        log.doubts += self.roles.doubts
        if log.unread > len(log):
            log.doubts.append(f"{log.unread:,} of its lines are no row, {len(log):,} are")
        if "tok_s" not in log.fields and self.roles.health:  # without a loss it may be the log of anything
            _derive_pace(log)
        return log

    def _time(self, value: Any) -> int:
        if type(value) is float and 1e9 < value < 4.1e9:
            return int(value * 1_000_000) * 1000
        if isinstance(value, int | float):
            return (epoch_ns(value) or 0) if -(2**100) < value < 2**100 else 0
        if isinstance(value, str) and len(value) <= 60:
            digits = number(value)
            if digits is not None and digits > 1e8:
                return epoch_ns(digits) or 0
            text = value.strip().replace("_", "T")
            text = f"{text}+00:00" if self.roles.utc and not has_offset(text) else text
            span = parse_moment(text, self.zone)
            if span is not None:
                self.log.doubt = self.log.doubt or span.doubt
                return span.start_ns
        return 0

    def _hold(self, row: int, role: str, value: Any) -> None:
        self.last[role] = value
        text = _kept(role, value)
        if text is None:
            return
        self.changes[role] = self.changes.get(role, 0) + 1
        if self.changes[role] <= MOST_CHANGES:
            self.log.held.append(Held(row, role, text))


def _places(keep: Sequence[int], count: int) -> list[int]:
    """For each of `count` rows, the place among the kept ones of the last kept row up to it."""
    found, place, kept = [], 0, set(keep)
    for index in range(count):
        if index in kept:
            place += 1
        found.append(max(0, place - 1))
    return found


def _kept(role: str, value: Any) -> str | None:
    """A held value as text; None for text that is neither a number nor a version: it may be anybody's words."""
    if isinstance(value, str):
        return json.dumps(value) if _VALUE.fullmatch(value) else None
    if isinstance(value, list):
        return (
            json.dumps(value, separators=(",", ":"))
            if all(isinstance(item, int | float) for item in value[:64]) and len(value) <= 64
            else None
        )
    return json.dumps(value) if isinstance(value, int | float) and role != "torch" else None


def _derive_pace(log: TrainLog) -> None:
    """Steps a second from steps and times, where a log names no rate of its own."""
    if "step" not in log.fields or "time" not in log.fields or len(log) < LEAST_SAMPLE:
        return
    gaps = sorted(
        after - before
        for before, after in zip(log.time_ns, islice(log.time_ns, 1, None), strict=False)
        if before < after
    )
    if not gaps:
        return
    whole = all(time % NS == 0 for time in islice(log.time_ns, 0, 200))
    if whole and gaps[len(gaps) // 2] < 8 * NS:
        return  # of whole seconds, a short interval is mostly rounding
    last: int | None = None
    for row in range(len(log)):
        if log.step[row] < 0 or not log.time_ns[row]:
            continue
        if last is not None:
            steps, time = log.step[row] - log.step[last], log.time_ns[row] - log.time_ns[last]
            if steps > 0 and time > 0:
                log.rate[row] = steps * NS / time
        last = row
    log.unit = "steps/s"
    log.fields["tok_s"] = f"{log.fields['step']} by {log.fields['time']}"


def _step(value: Any) -> int:
    """A step as a number that a column holds; -1 for what is none, a huge one too."""
    if type(value) is int and -1 < value < MOST_STEP:
        return value
    found = number(value)
    return int(found) if found is not None else -1


def _rate(value: Any, scale: float, inverse: bool) -> float:
    found = number(value) if value is not None else None
    if found is None:
        return math.nan
    if inverse:
        return scale / found if found > 0 else math.nan
    return found * scale
