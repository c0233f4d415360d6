"""No pattern takes quadratic time: each of the product, as it is used, over long texts of its own."""

from __future__ import annotations

import collections
import re
import time
from typing import Any

import pytest

from tests.patterns import Use, slow_texts, uses

SIZES = (1 << 12, 1 << 14, 1 << 16)
FULL = 1 << 20
"""The size of a line that a reader takes."""
QUICK_S = 0.02
"""Below this no growth is measured. A quadratic pattern takes over a second for 64 KiB."""
GROWTH = 8
"""Four times the text: 4 when linear, 16 when quadratic. For sixteen times the text 80: 16 and 256."""
MADE_IN_A_FUNCTION = {
    "envguard/fingerprint/rules.py": "the globs of its own rules, over one name at a time",
    "envguard/acquire/packages/contents.py": "the globs that a project watches, over one path at a time",
}
FOUND, MADE = uses()


def seconds(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    call = getattr(pattern, method)
    began = time.process_time()
    result = call(text[:0], text) if method in {"sub", "subn"} else call(text)
    if method == "finditer":
        collections.deque(result, maxlen=0)  # a list of a million matches measures the collector of garbage
    return time.process_time() - began


def growth(use: Use, method: str) -> str | None:
    """The text over which a pattern is not linear, and the seconds; None where there is none."""
    seeds = [seed for seed, _ in slow_texts(use.pattern, 8)]
    before = [0.0] * len(seeds)
    for size in SIZES:
        now = []
        for number, (seed, text) in enumerate(slow_texts(use.pattern, size)):
            most = max(QUICK_S, GROWTH * before[number])
            took = seconds(use.pattern, method, text)
            if took > most:  # once more: another process may have had the caches
                took = min(took, seconds(use.pattern, method, text))
            if took > most:
                return f"{use.where}: {method} over {seed}: {took:.2f} s for {size} characters"
            now.append(took)
        before = now
    slowest = before.index(max(before))
    text = list(slow_texts(use.pattern, FULL))[slowest][1]
    most = 5 * FULL / SIZES[-1] * max(before[slowest], QUICK_S / GROWTH)
    took = seconds(use.pattern, method, text)
    if took <= most or (took := seconds(use.pattern, method, text)) <= most:
        return None
    return f"{use.where}: {method} over {seeds[slowest]}: {took:.2f} s for {FULL} characters"


@pytest.mark.parametrize("use", FOUND, ids=lambda use: use.where)
def test_a_pattern_takes_linear_time(use: Use) -> None:
    assert [growth(use, method) for method in use.methods] == [None] * len(use.methods)


def test_every_pattern_is_found() -> None:
    assert len(FOUND) > 150
    assert {call.partition(":")[0] for call in MADE} == set(MADE_IN_A_FUNCTION)


@pytest.mark.parametrize(
    "pattern", [r"https?://[!-~]*?\.whl", r"(?:a-?)+$", r"\s+$", r"\w+\.\w+=", r"\d+x", r"<x>\s*([^<]+?)\s*</x>"]
)
def test_a_quadratic_pattern_is_flagged(pattern: str) -> None:
    assert growth(Use("here", re.compile(pattern), ("search",)), "search") is not None
