"""What of a log may enter a bundle: its numbers, times and telling lines, and none of the texts that a run printed.

Generations, prompts and labels are data of the people who train. Lengths are kept: a byte that is left out becomes a
star, so that offsets and line numbers stay what they are.
"""

from __future__ import annotations

import re

from envguard.acquire.runs.endings import ending_of
from envguard.acquire.runs.metric_lines import HINT, read_metrics
from envguard.acquire.runs.prefixes import TIME, strip
from envguard.acquire.runs.text_log import segments

_PLAIN = re.compile(
    rb"[-+]?[\d.][\w.+,:/%-]{0,31}|" + TIME.encode() + rb"|[-+]?[\d.,]{1,24}\s?[kKMG]?[A-Za-z/%]{0,16}"
    rb"|(?i:[-+]?(?:nan|inf|infinity)|true|false|none|null|train|training|eval|val|test|step|metrics?|)"
)
"""Text that tells a number, a version, a time or the sort of a row."""
_STRING = re.compile(rb'"(?P<text>(?:[^"\\\n]|\\.)*)(?:"(?P<colon>\s*:)?|\\?$)', re.MULTILINE)
"""A string, and one without an end up to the end of its line: else each quote in it would be tried anew."""
_QUOTED = re.compile(rb"""(?P<quote>["'])(?P<text>[^"'\n]*)(?P=quote)(?P<colon>\s*:)?""")
_CELL = re.compile(rb'[^,;\t\n\r"]+')
_TIME = re.compile(TIME.encode())
LONGEST_NAME = 120
_STARS = bytes(byte if byte in b"\n\r" else ord("*") for byte in range(256))


def without_texts(kind: str, before: bytes, data: bytes, after: bytes) -> bytes:
    """A part of a log of a `kind` (`jsonl`, `csv`, `text`) between what stands before and after it; the very same
    object where nothing is left out. What `before` is empty stands at the beginning of the file."""
    around = before + data + after
    # Inside a line that began out of sight it is not known what is text and what is a name.
    known = 0 if not before else around.find(b"\n") + 1 or len(around)
    head, rest = around[:known].translate(_STARS), around[known:]
    if kind == "jsonl":
        rest = _STRING.sub(_keep_plain, rest)
    elif kind == "csv":
        names = 0 if before else rest.find(b"\n") + 1
        rest = rest[:names] + _CELL.sub(_keep_cell, rest[names:])
    elif kind == "text":
        head, rest = b"", _telling(around)
    else:
        return data
    kept = (head + rest)[len(before) : len(before) + len(data)]
    return data if kept == data else kept


def _keep_plain(match: re.Match[bytes]) -> bytes:
    text = match["text"]
    keep = len(text) <= LONGEST_NAME if match["colon"] is not None else _PLAIN.fullmatch(text.strip()) is not None
    if keep:
        return match.group()
    start, end = match.span("text")
    whole, at = match.group(), match.start()
    return whole[: start - at] + b"*" * len(text) + whole[end - at :]


def _keep_cell(match: re.Match[bytes]) -> bytes:
    return match.group() if _PLAIN.fullmatch(match.group().strip()) else b"*" * len(match.group())


def _telling(text: bytes) -> bytes:
    """A text log with its telling lines; of the others their times alone."""
    parts: list[bytes] = []
    at = 0
    for begin, end in segments(text):
        words = strip(text[begin:end])
        if ending_of(words.text) is not None:
            part = text[begin:end]
        elif HINT.search(text, begin, end) is not None and read_metrics(words) is not None:
            part = _QUOTED.sub(_keep_plain, text[begin:end])
        else:
            continue
        parts += [_times_alone(text[at:begin]), part]
        at = end
    parts.append(_times_alone(text[at:]))
    return b"".join(parts)


def _times_alone(text: bytes) -> bytes:
    kept = bytearray(text.translate(_STARS))
    for match in _TIME.finditer(text):
        kept[match.start() : match.end()] = match.group()
    return bytes(kept)
