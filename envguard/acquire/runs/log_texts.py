"""What of a log may enter a bundle: its numbers, times and telling lines, and none of the texts that a run printed.

Generations, prompts and labels are data of the people who train. Lengths are kept: a byte that is left out becomes a
star, so that offsets and line numbers stay what they are.
"""

from __future__ import annotations

import re

from envguard.acquire.runs.endings import Telling, telling
from envguard.acquire.runs.metric_lines import HINT, read_metrics
from envguard.acquire.runs.prefixes import TIME, strip
from envguard.acquire.runs.roles import UNIT_WORDS, VOCABULARY, words_of
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
_WORD = re.compile(rb"[^\W\d_][\w/.-]*(?P<names>(?=[\"']?\s{0,4}[:=]))?|[\x80-\xff]+")
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
        told = telling(words.text)
        if told is not None:
            part = _told_part(text[begin:end], words.text, told)
        elif HINT.search(text, begin, end) is not None and read_metrics(words) is not None:
            part = _words_of_metrics(text[begin:end], words.text if words.bar is None else "")
        else:
            continue
        parts += [_times_alone(text[at:begin]), part]
        at = end
    parts.append(_times_alone(text[at:]))
    return b"".join(parts)


def _told_part(raw: bytes, text: str, told: Telling) -> bytes:
    """A line that tells how a run ended, with its prefixes and with what of it is quoted."""
    start = max(raw.rfind(text.encode()), 0)
    begin = start + len(text[: told.begin].encode())
    end = start + len(text[: told.end].encode())
    return raw[:start] + _times_alone(raw[start:begin]) + raw[begin:end] + _times_alone(raw[end:])


def _words_of_metrics(raw: bytes, text: str) -> bytes:
    """A line with metrics: its prefixes, its numbers, and the words that name them."""
    start = max(raw.rfind(text.encode()), 0) if text else 0
    rest = _QUOTED.sub(_keep_plain, raw[start:])
    return raw[:start] + _WORD.sub(_keep_word, rest)


def _keep_word(match: re.Match[bytes]) -> bytes:
    word = match.group()
    if match["names"] is not None or set(words_of(word.decode("utf-8", "replace"))) <= (
        UNIT_WORDS if b"/" in word else VOCABULARY
    ):
        return word
    return word.translate(_STARS)


def _times_alone(text: bytes) -> bytes:
    kept = bytearray(text.translate(_STARS))
    for match in _TIME.finditer(text):
        kept[match.start() : match.end()] = match.group()
    return bytes(kept)
