"""Numbers that a trainer prints: dicts, JSON inside a line, progress bars, and `label: number unit` in any order.

A line becomes a row of fields as one of a JSON log does; which field plays which role is decided elsewhere
(`roles.assign_roles`). Lines come without prefixes and are bounded (`prefixes.LONGEST`).
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

from envguard.acquire.runs.prefixes import Line
from envguard.acquire.runs.roles import (
    NAMES,
    Path,
    Row,
    counts_nan,
    flatten,
    is_gradient,
    is_loss,
    rate_of,
    words_of,
)

WORDS = (b"loss", b"Loss", b"LOSS", b"it/s", b"s/it", b"tok/s", b"tokens/s", b"grad", b"Grad", b"iter", b"Iter",
         b"step", b"Step", b"perplexity", b"SamplesPerSec")  # fmt: skip
"""A line of metrics holds one of these."""
HINT = re.compile(b"|".join(map(re.escape, WORDS)))
_PAIR = re.compile(
    r"""['"](?P<name>[^'"\n]{1,120})['"]:\s{0,4}"""
    r"""(?:'(?P<one>[^'\n]{0,200})'|"(?P<two>[^"\n]{0,200})"|(?P<bare>[^,'"{}\[\]\n]{1,60}))"""
)
_UNITS = (
    r"(?:tok|toks|token|tokens|sample|samples|example|examples|seq|seqs|it|iter|iters|step|steps|word|words|img|images)"
    r"/(?:gpu/)?(?:s|sec|second)\b(?:/(?:gpu|device))?|s/(?:it|iter|step)|ms/(?:it|iter|step)|TFLOP[sS]?(?:/s)?(?:/GPU)?|ms|s|%"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?P<number>[-+]?1\.#(?:IND|QNAN|SNAN|INF)|[-+]?(?:\d{1,3}(?:,\d{3}){1,6}(?:\.\d{1,20})?|\d{1,25}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,4})?"
    r"|[-+]?(?:[nN][aA][nN]|[iI][nN][fF](?:inity)?)(?![A-Za-z]))(?P<scale>[kKMG]?)"
    r"(?:\s?(?P<unit>" + _UNITS + r")(?!\s{0,4}[:=]?\s{0,4}[-+]?[.\d])(?![\w/]))?(?![\w])(?!\.\d)"
)
_SEPARATORS = re.compile(r"[|,;\[\]{}]|\s-\s|\s{3,}")
_PLACE = re.compile(r"\[(?P<epoch>\d{1,9})\]\s?\[\s{0,8}(?P<step>\d{1,12})/\d{1,12}\]")
_EPOCH = re.compile(r"[Ee]poch\D{0,4}(?P<epoch>\d{1,9})")
MOST_PAIRS = 120
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_EXACT = {name for role in ("step", "epoch") for name in NAMES[role]} - {"it", "update"} | {"update"}


def read_metrics(line: Line) -> Row | None:
    """The fields of a line; None where it has no numbers with names."""
    text = line.text
    found: dict[Path, Any] = {}
    if line.bar is not None:
        found.update(_of_bar(line.bar))
    opening = text.find("{")
    if opening >= 0 and text.rstrip().endswith("}") and ('"' in text or "'" in text):
        found.update(_of_dict(text[opening:].rstrip()))
        if opening:
            found = {**_labelled(text[:opening]), **found}
    else:
        place = _PLACE.search(text)  # MMEngine: the epoch, and the step in it
        if place is not None:
            found.update({("epoch",): int(place["epoch"]), ("step",): int(place["step"])})
        found.update(_labelled(text))
    if line.time is not None and found:
        found.setdefault(("asctime",), line.time)
    if line.rank is not None and found:
        found.setdefault(("rank",), line.rank)
    return found or None


def _of_dict(text: str) -> dict[Path, Any]:
    """A JSON object, or what Python prints of a dict, in which NaN stands bare and is no literal."""
    if text.startswith('{"'):
        try:
            return flatten(json.loads(text))
        except (ValueError, RecursionError):
            pass
    found: dict[Path, Any] = {}
    for match in _PAIR.finditer(text):
        quoted = match["one"] if match["one"] is not None else match["two"]
        found[(match["name"],)] = _value(quoted if quoted is not None else match["bare"].strip())
        if len(found) >= MOST_PAIRS:
            break
    return found


def _value(text: str) -> Any:
    try:
        return float(text) if len(text) <= 40 else text
    except ValueError:
        return None if text in ("None", "null") else text


def _of_bar(bar: re.Match[str]) -> dict[Path, Any]:
    """A progress bar: the step, and the rate under its own unit, seconds a step turned round by the unit."""
    found: dict[Path, Any] = {("step",): int(bar["done"]), ("bar",): f"{bar['about'].strip()[:40]}/{bar['total']}"}
    epoch = _EPOCH.search(bar["about"])
    if epoch is not None:
        found[("epoch",)] = int(epoch["epoch"])
    unit = bar["unit"]
    if bar["rate"] != "?" and bar["rate"].count(".") <= 1 and bar["rate"] != ".":
        each = unit.partition("/")
        seconds = each[0] == "s"
        rate = float(bar["rate"])
        name = "it/s" if "it" in (each[0], each[2]) else f"{each[2]}/s" if seconds else unit
        if rate > 0:
            found[(name,)] = 1 / rate if seconds else rate
    return {**_labelled(bar["more"].lstrip(", ")), **found}


def _labelled(text: str) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    end = 0
    for match in _NUMBER.finditer(text):
        between = text[end : match.start()]
        label = _SEPARATORS.split(between[-100:].rstrip(" \t:=>(\"'"))[-1].lstrip(" \t:=>)(\"'").rstrip()
        name = _name(label, match["unit"], between[-8:].rstrip(" ").endswith("/"))
        if match["number"][-1].isalpha() and not (between.rstrip().endswith((":", "=")) or (name and _fails(name))):
            continue  # a word of a name: `number of nan iterations`
        end = match.end()
        if name is None or (name,) in found:
            continue
        digits = match["number"].replace(",", "")
        try:
            value = math.nan if "#" in digits else float(digits)
            found[(name,)] = value * _SCALES[match["scale"].lower()]
        except ValueError:
            continue
        if len(found) >= MOST_PAIRS:
            break
    return found


@lru_cache(maxsize=8192)
def _name(label: str, unit: str | None, second: bool) -> str | None:
    """A number's name: what stands before it down to the words that mean something, and its unit.

    None for the `second` of `100/1000`.
    """
    unit = unit or ""
    if "/" in unit or unit.upper().startswith("TFLOP"):
        if rate_of(label) is None or not label:
            label = ""
    elif second and not label.strip("/ "):
        return None
    label = label.strip("/ ") if not label.endswith("/s") else label
    if not label:
        return unit if "/" in unit or unit.upper().startswith("TFLOP") else None
    words = label.split()
    for count in range(len(words)):
        shorter = " ".join(words[count:])
        if _means_something(shorter):
            label = shorter
            break
    else:
        label = " ".join(words[-3:])
    return f"{label} ({unit})" if unit and unit.lower() not in label.lower().split() else label


@lru_cache(maxsize=4096)
def _fails(name: str) -> bool:
    """Whether a name is of what may be no number."""
    return is_loss(words_of(name)) or is_gradient(words_of(name))


def _means_something(label: str) -> bool:
    words = words_of(label)
    if counts_nan(words) or {"number", "num", "skipped", "scale", "consumed", "eta"} & set(words):
        return True
    return label.lower() in _EXACT or is_loss(words) or is_gradient(words) or rate_of(label) is not None
