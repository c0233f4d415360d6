"""Training logs in JSON lines: step, time, tok/s, loss, queues, samples, and settings that a row carries.

Field names are found among the usual ones or given by configuration. A million rows are kept as columns of numbers;
fields that hardly change (queues, number of samples, settings) are kept where they change.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envguard.acquire.machine.zone import Zone, epoch_ns, parse_moment
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import blocks
from envguard.config import LogFields

SNIFF_ROWS = 200
MOST_CHANGES = 2000
MOST_STEP = 1 << 62
SYNONYMS: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter", "update",
             "num_updates", "train_step", "_step"),
    "time": ("time", "timestamp", "ts", "wall_time", "walltime", "datetime", "date", "_timestamp", "asctime"),
    "tok_s": ("tok_s", "tokens_per_sec", "tokens_per_second", "tok/s", "tokens/s", "tokens/sec", "toks_per_sec",
              "tok_per_sec", "tps", "wps", "throughput", "throughput(tps)", "train/tokens_per_second",
              "train_tokens_per_second", "perf/tokens_per_second", "ktok_s", "ktok/s", "Ktok/s"),
    "loss": ("loss", "train_loss", "train/loss", "lm_loss", "lm loss", "loss/train"),
    "q_pre": ("q_pre", "queue_pre", "prefetch_queue"),
    "q_hs": ("q_hs", "queue_hs", "hs_queue"),
    "samples": ("samples", "num_samples", "dataset_size", "n_samples", "dataset_samples", "total_samples"),
    "target_rate": ("target_batches_s", "targets_b_s", "target_bps", "t_bps", "target_rate"),
    "drafter_rate": ("drafter_batches_s", "drafters_b_s", "drafter_bps", "d_bps", "drafter_rate"),
    "token_budget": ("token_budget", "max_tokens", "tokens_per_batch"),
    "max_batch_size": ("max_batch_size", "batch_size", "global_batch_size", "micro_batch_size"),
    "compile_cache": ("compile_cache_mb", "inductor_cache_mb"),
    "torch": ("torch", "torch_version"),
}  # fmt: skip
HELD = ("q_pre", "q_hs", "samples", "target_rate", "drafter_rate", "token_budget", "max_batch_size", "compile_cache",
        "torch")  # fmt: skip
"""Fields kept as values where they change."""
THOUSANDS = frozenset({"ktok_s", "ktok/s", "Ktok/s"})


@dataclass(frozen=True)
class Held:
    """A field has `value` from `row` on (until its next change)."""

    row: int
    field: str
    value: str


@dataclass
class TrainLog:
    """A log as columns: one entry a row that was understood, in the order of the file.

    `time_ns` is 0 and `rate` is NaN where a row does not say; `line` is the row's line in the file, from 1.
    """

    path: str
    fields: dict[str, str]
    """Role → the log's own name of the field."""
    line: array[int] = field(default_factory=lambda: array("q"))
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    rate: array[float] = field(default_factory=lambda: array("d"))
    held: list[Held] = field(default_factory=list)
    not_finite: list[int] = field(default_factory=list)
    """Rows whose loss is NaN or infinite: the first few, and `not_finite_rows` counts all."""
    not_finite_rows: int = 0
    without_loss: int = 0
    unread: int = 0
    """Lines that are no JSON object."""
    mtime_ns: int = 0
    """When the file was last written: all that is known of rows without a time."""
    doubt: str | None = None
    """Why its times are worth less: local time in an hour that came twice."""

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
    """Reads a log; None where no row holds a step, a rate or a loss, so that it is no training log."""
    names = field_names(host, log.path, configured)
    if not {"step", "tok_s", "loss"} & names.keys():
        return None
    reader = RowReader(TrainLog(log.path, names, mtime_ns=log.stat.mtime_ns), zone)
    for first, block in blocks(host, log.path, log.stat.size):
        reader.take(first, block)
    reader.log.held.sort(key=lambda item: item.row)
    return reader.log


def field_names(host: Host, path: str, configured: LogFields) -> dict[str, str]:
    """Role → field name, from the keys of the first rows; a configured name counts wherever it is."""
    keys: dict[str, None] = {}
    for line in host.read(path, 1 << 18).split(b"\n")[:SNIFF_ROWS]:
        row = _lenient(line)
        if row is not None:
            keys.update(dict.fromkeys(row))
    names = {}
    for role, usual in SYNONYMS.items():
        chosen = getattr(configured, role, None)
        found = chosen if chosen is not None else next((name for name in usual if name in keys), None)
        if found is not None:
            names[role] = found
    return names


def _lenient(line: bytes) -> dict[str, Any] | None:
    """A row as Python's json takes it: bare NaN and Infinity are read, since trainers write them."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class RowReader:
    def __init__(self, log: TrainLog, zone: Zone) -> None:
        self.log = log
        self.zone = zone
        self.scale = 1000.0 if log.fields.get("tok_s") in THOUSANDS else 1.0
        self.last: dict[str, Any] = {}
        self.changes: dict[str, int] = {}
        self.roles = tuple(log.fields)
        self.kept = tuple(role for role in HELD if role in log.fields)
        row = msgspec.defstruct("Row", [(f"f{i}", Any, None) for i in range(len(self.roles))],
                                rename={f"f{i}": name for i, name in enumerate(log.fields.values())})  # fmt: skip
        self.decoder = msgspec.json.Decoder(row)
        self.slots = {role: f"f{i}" for i, role in enumerate(self.roles)}

    def take(self, first: int, block: bytes) -> None:
        """Adds the rows of a block of whole lines."""
        try:
            rows = self.decoder.decode_lines(block)
        except msgspec.MsgspecError:
            self._one_by_one(first, block)
            return
        if len(rows) != block.count(b"\n") + (not block.endswith(b"\n")):
            self._one_by_one(first, block)  # blank lines: count them, so that line numbers stay true
            return
        self._columns(first, rows)

    def _columns(self, first: int, rows: list[Any]) -> None:
        """A block of decoded rows, a column at a time: five times as fast as row by row."""
        log, empty = self.log, [None] * len(rows)
        column = {role: [getattr(row, slot) for row in rows] for role, slot in self.slots.items()}
        base = len(log.line)
        log.line.extend(range(first, first + len(rows)))
        log.time_ns.extend([self._time(value) for value in column.get("time", empty)])
        log.step.extend([_step(value) for value in column.get("step", empty)])
        scale = self.scale
        log.rate.extend(
            [value * scale if type(value) is float else _rate(value, scale) for value in column.get("tok_s", empty)]
        )
        for index, loss in enumerate(column.get("loss", empty)):
            if type(loss) is not float:
                self._loss(base + index, loss)
        for role in self.kept:
            last = self.last.get(role)
            for index, value in enumerate(column[role]):
                if value != last and value is not None:
                    last = value
                    self._hold(base + index, role, value)

    def _one_by_one(self, first: int, block: bytes) -> None:
        fields = self.log.fields
        for number, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            row = _lenient(line)
            if row is None:
                self.log.unread += 1
                continue
            at = len(self.log.line)
            self.log.line.append(number)
            self.log.time_ns.append(self._time(row.get(fields.get("time", ""))))
            self.log.step.append(_step(row.get(fields.get("step", ""))))
            self.log.rate.append(_rate(row.get(fields.get("tok_s", "")), self.scale))
            self._loss(at, row.get(fields.get("loss", "")))
            for role in self.kept:
                value = row.get(fields[role])
                if value is not None and value != self.last.get(role):
                    self._hold(at, role, value)

    def _loss(self, row: int, loss: Any) -> None:
        if loss is None:
            self.log.without_loss += 1
        elif not _finite(loss):
            self.log.not_finite_rows += 1
            if len(self.log.not_finite) < 16:
                self.log.not_finite.append(row)

    def _time(self, value: Any) -> int:
        if type(value) is float and 1e9 < value < 4.1e9:
            return int(value * 1_000_000) * 1000
        if isinstance(value, int | float):
            return epoch_ns(value) or 0
        if isinstance(value, str):
            span = parse_moment(value, self.zone)
            if span is not None:
                self.log.doubt = self.log.doubt or span.doubt
                return span.start_ns
        return 0

    def _hold(self, row: int, role: str, value: Any) -> None:
        self.last[role] = value
        self.changes[role] = self.changes.get(role, 0) + 1
        if self.changes[role] <= MOST_CHANGES:
            self.log.held.append(Held(row, role, json.dumps(value, separators=(",", ":"))))


def _step(value: Any) -> int:
    """A step as a number that a column holds; -1 for what is none, a huge one too."""
    return int(value) if isinstance(value, int | float) and -MOST_STEP < value < MOST_STEP else -1


def _rate(value: Any, scale: float) -> float:
    return value * scale if isinstance(value, int | float) and -MOST_STEP < value < MOST_STEP else math.nan


def _finite(loss: Any) -> bool:
    items: Iterable[Any] = loss if isinstance(loss, list) else (loss,)
    return all(_is_finite(item) for item in items)


def _is_finite(item: Any) -> bool:
    if isinstance(item, str):  # some loggers write "NaN", since JSON has none
        return item.lower().lstrip("+-") not in ("nan", "inf", "infinity")
    return not isinstance(item, float) or math.isfinite(item)
