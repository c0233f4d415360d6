"""Text logs: what a run printed of its speed and its loss, how it ended, and when.

Only lines that mean something are kept: those that say how a run ended (`endings`), and those with metrics
(`metric_lines`). A line ends with a newline or with the carriage return of a progress bar. It gets its time from
itself or from the nearest line above that has one; below the last one there is the file's mtime.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from envguard.acquire.machine.zone import Span, Zone, parse_moment
from envguard.acquire.runs.endings import HINT as ENDING_HINT
from envguard.acquire.runs.endings import WORDS as ENDING_WORDS
from envguard.acquire.runs.endings import EndingKind, telling
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.metric_lines import HINT as METRIC_HINT
from envguard.acquire.runs.metric_lines import WORDS as METRIC_WORDS
from envguard.acquire.runs.metric_lines import read_metrics
from envguard.acquire.runs.prefixes import LONGEST, TIME, strip
from envguard.acquire.runs.roles import Row, is_loss, rate_of, words_of
from envguard.acquire.runs.train_log import TrainLog, from_rows
from envguard.acquire.seam.host import Host, without_secrets
from envguard.acquire.seam.lines import blocks
from envguard.config import LogFields

MOST = 200
EVERY_ROW = 40_000
"""After so many lines with metrics every second one is parsed, after as many more every third, and so on; any that
may hold a NaN is. A progress bar writes ten lines a second."""
LOOK_BACK = 64 << 10
_WORDS = (*ENDING_WORDS, *METRIC_WORDS)
_TIME = re.compile(TIME.encode())
_NAN = re.compile(rb"\b(?:[nN][aA][nN]|[iI][nN][fF])\b")
_GPU = re.compile(r"GPU (\d{1,4})\b")
_BAR = ("bar",)


@dataclass(frozen=True)
class Mark:
    """One telling line. `span` is None where no line above it bears a time."""

    kind: EndingKind
    line: int
    text: str
    span: Span | None
    gpu: str | None = None


@dataclass(frozen=True)
class TextLog:
    """A text log's telling lines, its first and last times, and its rows of metrics where it has any."""

    path: str
    marks: tuple[Mark, ...]
    first: Span | None
    last: Span | None
    mtime_ns: int
    more: int
    """Telling lines beyond those that are kept."""
    rows: TrainLog | None = None
    unread: str | None = None
    """Why its metrics were not looked at, or not all of them."""


def read_text_log(host: Host, log: LogFile, zone: Zone, configured: LogFields | None = None) -> TextLog:
    """Reads a text log in pieces; a file of a million lines costs a search for a few words."""
    marks: list[Mark] = []
    rows: list[tuple[int, Row]] = []
    more = measured = 0
    first: Span | None = None
    last: Span | None = None
    for line, block in blocks(host, log.path, log.stat.size, carriage=True):
        counted = 0
        for begin, end in segments(block):
            words = strip(block[begin:end])
            near = min(end, begin + LONGEST)
            end_told = telling(words.text) if ENDING_HINT.search(block, begin, near) else None
            metrics = None
            if METRIC_HINT.search(block, begin, near):
                measured += 1
                if measured % (1 + measured // EVERY_ROW) == 0 or _NAN.search(block, begin, near):
                    metrics = read_metrics(words)
            if metrics is None and end_told is None:
                continue
            line += block.count(b"\n", counted, begin)
            counted = begin
            if metrics is not None:
                rows.append((line, metrics))
            if end_told is None:
                continue
            if len(marks) >= MOST:
                more += 1
                continue
            text = without_secrets(words.text[end_told.begin : end_told.end][:600])[:300].rstrip()
            span = _time_in(block[max(0, begin - LOOK_BACK) : min(end, begin + LONGEST)], zone, latest=True) or last
            gpu = _GPU.search(text)
            marks.append(Mark(end_told.kind, line, text, span, gpu.group(1) if gpu else None))
        if first is None:
            first = _time_in(block[:LOOK_BACK], zone, latest=False)
        last = _time_in(block[-LOOK_BACK:], zone, latest=True) or last
    trained, unread = _trained(log, rows, configured or LogFields(), zone)
    return TextLog(log.path, tuple(_without_echoes(marks)), first, last, log.stat.mtime_ns, more, trained, unread)


def segments(block: bytes) -> list[tuple[int, int]]:
    """(begin, end) of each line of a block, ended by a newline or a carriage return, that holds a telling word."""
    found: dict[int, int] = {}
    for word in _WORDS:
        at, newline, size = 0, -1, len(block)
        while (hit := block.find(word, at)) >= 0:
            if newline < hit:  # kept: of many bars without a newline, each would look for it to the very end
                newline = block.find(b"\n", hit)
                newline = size if newline < 0 else newline
            begin = max(at, block.rfind(b"\n", at, hit) + 1, block.rfind(b"\r", at, hit) + 1)
            end = block.find(b"\r", hit, newline)
            end = newline if end < 0 else end
            found[begin] = end
            at = end + 1
    return sorted(found.items())


def _trained(
    log: LogFile, rows: list[tuple[int, Row]], configured: LogFields, zone: Zone
) -> tuple[TrainLog | None, str | None]:
    """The rows that are of a training; why they are not understood, where they seem to be of one."""
    bars = Counter(str(row[_BAR]) for _, row in rows if _BAR in row and _has_loss(row))
    if not bars:
        bars = Counter(str(row[_BAR]) for _, row in rows if _BAR in row and str(row[_BAR]).startswith("/"))
    with_loss = any(_has_loss(row) for _, row in rows)
    chosen = {name for name, _ in bars.most_common(1)} if with_loss else set()
    about = {name.rpartition("/")[2] for name in chosen}
    kept: list[tuple[int, Row]] = []
    losses = 0
    for line, row in rows:
        bar = str(row.get(_BAR, ""))
        if bar and bar not in chosen and not (_has_loss(row) and bar.rpartition("/")[2] in about):
            continue  # of loading, of data, of an evaluation
        has_loss = _has_loss(row)
        told = has_loss or (bar == "" and _has_step(row) and _has_rate(row))
        if not bar and not told and not _has_step(row):
            continue
        losses += told
        kept.append((line, row))
    if not losses:
        return None, None  # steps of something: no loss was ever printed
    found = from_rows(log, kept, configured, zone)
    return (found, None) if found is not None else (None, f"{losses:,} lines with a loss are not understood")


def _has_loss(row: Row) -> bool:
    return any(is_loss(words_of(path[-1])) for path in row)


def _has_rate(row: Row) -> bool:
    return any(rate_of(path[-1]) is not None for path in row)


def _has_step(row: Row) -> bool:
    return any(path[-1].lower() in ("step", "steps", "iteration", "iter", "global_step", "update") for path in row)


def _time_in(data: bytes, zone: Zone, latest: bool) -> Span | None:
    times = _TIME.findall(data)
    if not times:
        return None
    return parse_moment((times[-1] if latest else times[0]).decode("ascii").replace("_", " "), zone)


def _without_echoes(marks: list[Mark]) -> list[Mark]:
    """One failure prints its last line once a thread or rank: repeats within a hundred lines are one."""
    kept: list[Mark] = []
    for mark in marks:
        twin = next(
            (old for old in reversed(kept[-8:]) if old.kind == mark.kind and mark.line - old.line < 100), None
        )
        if twin is None or (twin.gpu != mark.gpu and mark.gpu is not None):
            kept.append(mark)
    return kept
