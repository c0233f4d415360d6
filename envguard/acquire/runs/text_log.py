"""Text logs: what a run printed before it died, and when.

Only lines that mean something are kept: the end of a traceback, out of memory, the FX-tracing error, a kill. A line
gets its time from itself or from the nearest line above that has one; below the last one there is the file's mtime.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from envguard.acquire.machine.zone import Span, Zone, parse_moment
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.seam.host import Host, without_secrets
from envguard.acquire.seam.lines import blocks

MOST = 200
LOOK_BACK = 64 << 10
MarkKind = Literal["oom", "fx-tracing", "traceback", "killed"]

_OOM = rb"(?:torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory)[^\n]*"
_FX = rb"[^\n]*(?:is_fx_symbolic_tracing|using FX to symbolically trace a dynamo-optimized function)[^\n]*"
_LAST = rb"^[ \t]*(?:\[[^\]\n]*\][ \t:]*)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b:?[^\n]*"
_KILLED = rb"^(?:Killed|Segmentation fault|Bus error|[^\n]*Signal(?:s)? (?:SIG[A-Z]+|\d+)[^\n]*)$"
_MARK = re.compile(
    b"|".join(
        b"(?P<" + name + b">" + pattern + b")"
        for name, pattern in ((b"oom", _OOM), (b"fx", _FX), (b"last", _LAST), (b"killed", _KILLED))
    ),
    re.MULTILINE,
)
_KINDS: dict[str, MarkKind] = {"oom": "oom", "fx": "fx-tracing", "last": "traceback", "killed": "killed"}
_HINTS = (b"Error", b"Exception", b"Interrupt", b"Exit", b"Killed", b"Signal", b"out of memory", b"fx_symbolic",
          b"symbolically trace", b"Segmentation fault", b"Bus error")  # fmt: skip
"""Words of which a telling line holds one; looked for as plain bytes, which is many times faster than patterns."""
_TIME = re.compile(rb"\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,6})?(?:Z|[+-]\d{2}:?\d{2})?")
_GPU = re.compile(r"GPU (\d+)")


@dataclass(frozen=True)
class Mark:
    """One telling line. `span` is None where no line above it bears a time."""

    kind: MarkKind
    line: int
    text: str
    span: Span | None
    gpu: str | None = None


@dataclass(frozen=True)
class TextLog:
    """A text log's telling lines, and its first and last times."""

    path: str
    marks: tuple[Mark, ...]
    first: Span | None
    last: Span | None
    mtime_ns: int
    more: int
    """Telling lines beyond those that are kept."""


def read_text_log(host: Host, log: LogFile, zone: Zone) -> TextLog:
    """Reads a text log in pieces; a file of a million lines costs a search for a few words."""
    marks: list[Mark] = []
    more = 0
    first: Span | None = None
    last: Span | None = None
    for line, block in blocks(host, log.path, log.stat.size):
        for mark in _marks(block, line, last, zone):
            if len(marks) < MOST:
                marks.append(mark)
            else:
                more += 1
        if first is None:
            first = _time_in(block[:LOOK_BACK], zone, latest=False)
        last = _time_in(block[-LOOK_BACK:], zone, latest=True) or last
    return TextLog(log.path, tuple(_without_echoes(marks)), first, last, log.stat.mtime_ns, more)


def _marks(block: bytes, first_line: int, before: Span | None, zone: Zone) -> list[Mark]:
    found: list[Mark] = []
    line, counted = first_line, 0
    for begin, end in _hinted(block):
        match = _MARK.search(block, begin, end)
        if match is None:
            continue
        line += block.count(b"\n", counted, begin)
        counted = begin
        kind = _KINDS[match.lastgroup or "last"]
        text = without_secrets(block[begin:end].decode("utf-8", "replace").strip())[:300]
        span = _time_in(block[max(0, begin - LOOK_BACK) : end], zone, latest=True) or before
        gpu = _GPU.search(text)
        found.append(Mark(kind, line, text, span, gpu.group(1) if gpu else None))
    return found


def _hinted(block: bytes) -> list[tuple[int, int]]:
    """(begin, end) of every line with one of the words, in order."""
    lines: dict[int, int] = {}
    for word in _HINTS:
        at = block.find(word)
        while at >= 0:
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            lines[block.rfind(b"\n", 0, at) + 1] = end
            at = block.find(word, end)
    return sorted(lines.items())


def _time_in(data: bytes, zone: Zone, latest: bool) -> Span | None:
    times = _TIME.findall(data)
    if not times:
        return None
    return parse_moment((times[-1] if latest else times[0]).decode("ascii"), zone)


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
