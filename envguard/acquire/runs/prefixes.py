"""What stands before the words of a program in a log: colours, progress bars, ranks, times, levels and wrappers.

Launchers, containers and loggers each put something in front of a line. It is stripped here, once, so that every
pattern of a line may begin at its beginning. All patterns are bounded: a line of a megabyte costs its reading.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

LONGEST = 4096
"""Characters of a line that are looked at: no telling line is longer."""
MOST = 12
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]{0,24}[A-Za-z]|\][^\x07\x1b]{0,80}(?:\x07|\x1b\\))")
TIME = r"\d{4}[-/]\d{2}[-/]\d{2}[ T_]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z| ?[+-]\d{2}:?\d{2})?"
BAR = re.compile(
    r"(?P<about>[^|%\n]{0,120}?)\s{0,4}\d{1,3}%\|[^|\n]{0,300}\|\s{0,8}(?P<done>\d{1,12})/(?P<total>\d{1,12})\s{0,4}"
    r"\[(?P<spent>[\d:]{1,12})<(?P<left>[\d:?]{1,16}(?: days?, [\d:]{1,12})?),\s{0,8}(?P<rate>[\d.]{1,16}|\?)\s?"
    r"(?P<unit>[A-Za-z]{1,16}/s|s/[A-Za-z]{1,16})(?P<more>[^\]\n]{0,600})\]"
)
"""tqdm's bar, and Lightning's."""
_RANK = re.compile(
    r"\[(?:rank|default|worker)[ _]?(?P<a>\d{1,6})\]:?\s?"
    r"|\[Rank (?P<b>\d{1,6})\]:?\s?"
    r"|\[\d{1,6},(?P<c>\d{1,6})\]<std(?:out|err|diag)>:\s?"
    r"|(?P<d>\d{1,5}): (?=\S)"
    r"|\(\w{1,60} (?:pid|rank)=(?P<e>\d{1,8})[^)\n]{0,80}\)\s?"
)
_WRAPPERS = re.compile(
    rf"(?P<time>{TIME})(?: std(?:out|err) [FP] | ?)"
    rf"|\[(?P<inner>{TIME})\]\s?"
    r"|[IWEF](?P<glog>\d{4} \d{2}:\d{2}:\d{2}\.\d{1,9})\s{1,8}\d{1,10}\s[^\]\s]{1,200}:\d{1,6}\]\s?"
    r"|\[[IWEF]\d{3,4} \d{2}:\d{2}:\d{2}\.\d{1,9} [^\]\n]{1,120}\]\s?"
    r"|[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} [\w.-]{1,80} [\w./@-]{1,80}(?:\[\d{1,10}\])?: "
    r"|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?(?=[\s:|,-])(?::[\w.]{1,120}(?=:))?[:,]?\s{0,8}"
    r"|\[[A-Za-z_][\w./:-]{0,120}\](?=[\s:\[(-])\s?"
    r"|(?=[\w.-]{0,80}\d)[a-z][\w.-]{0,80}: (?=\S)"
    r"|[|>-]\s{0,4}(?=\D)"
    r"|(?:root|__main__|[a-z_]{1,40}(?:\.[a-z_]{1,40}){1,8})(?::\d{1,6})? [-|:]\s{0,4}"
)


@dataclass(frozen=True)
class Line:
    """A line's own words, with what its prefixes tell: the last time as text, the rank, a progress bar."""

    text: str
    time: str | None = None
    rank: int | None = None
    bar: re.Match[str] | None = None


def strip(raw: bytes) -> Line:
    """The words of a segment of a log, without what was put before them."""
    text = raw[: 4 * LONGEST].decode("utf-8", "replace")[:LONGEST]
    time = None
    if text.startswith('{"log":'):  # Docker's json-file driver
        text, time = _of_docker(text)
    text = _COLOUR.sub("", text).strip()
    rank: int | None = None
    bar: re.Match[str] | None = None
    for _ in range(MOST):
        found = _RANK.match(text)
        if found is not None:
            rank = next((int(group) for group in found.groups() if group is not None), rank)
        else:
            found = _WRAPPERS.match(text)
            if found is not None:
                time = found["time"] or found["inner"] or time
            elif bar is None and "%|" in text:
                found = bar = BAR.match(text)
        if found is None or not found.end():
            break
        text = text[found.end() :].lstrip()
    return Line(text, time, rank, bar)


def _of_docker(text: str) -> tuple[str, str | None]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return text, None
    if not isinstance(whole, dict) or not isinstance(whole.get("log"), str):
        return text, None
    time = whole.get("time")
    return whole["log"].rpartition("\r")[2], time if isinstance(time, str) else None
