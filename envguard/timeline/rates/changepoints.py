"""Change points in a series of rates: PELT on robustly condensed logarithms.

PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a linear computational cost", JASA 107,
2012) finds the segmentation of least cost exactly; the cost is squared error. It is made robust, as Fearnhead and
Rigaill ("Changepoint detection in the presence of outliers", JASA 114, 2019) advise, by bounding what one outlier
may add: values are medians of bins, clipped to a running median. Noise is estimated from first differences by their
median absolute deviation, so that the changes themselves do not widen it. Only the order of values counts, never the
time between them, so that a gap in the log is no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median, median_low

MOST_BINS = 800
SHORTEST = 4
"""Bins that a segment has at least: shorter dips are outliers."""
LEAST_SIGMA = 0.01
"""Noise below one per cent is not believed: it would turn a rounding of the log into a change."""
CLIP_SIGMAS = 3.0
CLIP_WINDOW = 7
PENALTY = 4.0
FEW = 60
LEAST_ROWS = 12


def condense(values: Sequence[float], most: int = MOST_BINS) -> tuple[list[float], int]:
    """Medians of equal bins of consecutive values, and the size of a bin.

    A median is one of the bin's values, so that a bin across a change has one level or the other and none between.
    """
    size = max(1, math.ceil(len(values) / most))
    return [median_low(values[start : start + size]) for start in range(0, len(values), size)], size


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the noise, from the middle and the upper quartile of first differences.

    The median alone takes a run whose batches come in two lengths (half of the differences are none) for a quiet one,
    and every chance row of one length for a level of its own.
    """
    steps = sorted(abs(after - before) for before, after in pairwise(values))
    if not steps:
        return LEAST_SIGMA
    upper = steps[3 * len(steps) // 4]
    return max(LEAST_SIGMA, 1.4826 * median(steps) / math.sqrt(2), upper / 1.1503 / math.sqrt(2))


def clip(values: Sequence[float], sigma: float) -> list[float]:
    """Each value drawn to within `CLIP_SIGMAS` of the median around it."""
    half = CLIP_WINDOW // 2
    out = []
    for index, value in enumerate(values):
        middle = median(values[max(0, index - half) : index + half + 1])
        out.append(min(max(value, middle - CLIP_SIGMAS * sigma), middle + CLIP_SIGMAS * sigma))
    return out


def pelt(values: Sequence[float], penalty: float, shortest: int = SHORTEST) -> list[int]:
    """Starts of all segments but the first, of the cheapest segmentation under squared error.

    >>> pelt([0.0] * 10 + [1.0] * 10, penalty=0.5)
    [10]
    """
    total, squares = [0.0], [0.0]
    for value in values:
        total.append(total[-1] + value)
        squares.append(squares[-1] + value * value)
    count = len(values)
    best = [-penalty] + [math.inf] * count
    previous = [0] * (count + 1)
    candidates = [0]
    expires: dict[int, int] = {}
    for end in range(shortest, count + 1):
        costs = []
        for start in candidates:
            length = end - start
            summed = total[end] - total[start]
            costs.append(best[start] + squares[end] - squares[start] - summed * summed / length)
        lowest = min(costs)
        best[end] = lowest + penalty
        previous[end] = candidates[costs.index(lowest)]
        # A start that is worse by more than the penalty now can never become the best one, once a segment that
        # starts here instead is long enough to be one.
        for start, cost in zip(candidates, costs, strict=True):
            if cost > best[end]:
                expires.setdefault(start, end + shortest)
        candidates = [start for start in candidates if expires.get(start, end + 2) > end + 1]
        if end + 1 >= 2 * shortest:
            candidates.append(end + 1 - shortest)
    cuts = []
    end = count
    while end > 0 and previous[end] > 0:
        end = previous[end]
        cuts.append(end)
    return cuts[::-1]


def change_points(values: Sequence[float]) -> list[int]:
    """Indexes at which the level of a positive series changes, found on its logarithm."""
    if len(values) < LEAST_ROWS:
        return []
    # The logarithm of a median is the median of logarithms: taken of the few bins, not of a million values.
    middles, size = condense(values)
    bins = [math.log(value) for value in middles]
    sigma = noise(bins)
    steady = clip(bins, sigma)
    # Few values tell the noise badly: the penalty grows where they are few.
    penalty = PENALTY * sigma * sigma * (math.log(len(steady)) + FEW / len(steady))
    return [_refine(values, cut * size, size) for cut in pelt(steady, penalty)]


def _refine(values: Sequence[float], about: int, size: int) -> int:
    """The exact index of a change that is known to a bin: the split of the neighbourhood with the least absolute
    error around the two medians."""
    low, high = max(1, about - size), min(len(values) - 1, about + size)
    if size == 1:
        low, high = max(1, about - 2), min(len(values) - 1, about + 2)
    left = median(values[max(0, low - 8 * size) : low])
    right = median(values[high : high + 8 * size])
    middle = math.sqrt(left * right)
    falls = right < left
    error, best, lowest = 0, about, math.inf
    # Moving the split to the right by one puts a value on the left side: wrong there when it lies beyond the middle.
    for split in range(low, high + 1):
        if error < lowest:
            lowest, best = error, split
        if split < high:
            beyond = values[split] < middle if falls else values[split] > middle
            error += 1 if beyond else -1
    return best
