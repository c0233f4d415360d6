"""Change points: found where they are, and not where a person would see none."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from envguard.timeline.rates.changepoints import change_points, pelt


def level(rate: float, rows: int, spread: float, seed: int = 0) -> list[float]:
    source = random.Random(f"{seed} {rate} {rows}")
    return [rate * math.exp(source.gauss(0, spread)) for _ in range(rows)]


def brute_force(values: list[float], penalty: float, shortest: int) -> float:
    """The least cost over all segmentations, by dynamic programming without pruning."""

    def cost(start: int, end: int) -> float:
        part = values[start:end]
        mean = sum(part) / len(part)
        return sum((value - mean) ** 2 for value in part)

    best = [-penalty] + [math.inf] * len(values)
    for end in range(1, len(values) + 1):
        for start in range(max(0, end - len(values)), end - shortest + 1):
            best[end] = min(best[end], best[start] + cost(start, end) + penalty)
    return best[-1]


@pytest.mark.parametrize("seed", range(30))
def test_pelt_finds_the_cheapest_segmentation(seed: int) -> None:
    source = random.Random(seed)
    values = [
        source.choice((0.0, 1.0, 2.5)) + source.gauss(0, 0.3) for _ in range(5) for _ in range(source.randint(1, 9))
    ]
    penalty = 0.6
    cuts = [0, *pelt(values, penalty), len(values)]
    total = -penalty
    for start, end in pairwise(cuts):
        part = values[start:end]
        mean = sum(part) / len(part)
        total += sum((value - mean) ** 2 for value in part) + penalty
    assert total == pytest.approx(brute_force(values, penalty, 4))


@pytest.mark.parametrize("rows", [16, 40, 690, 20_000])
@pytest.mark.parametrize("spread", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("seed", range(8))
def test_a_steady_series_has_no_change(rows: int, spread: float, seed: int) -> None:
    assert change_points(level(21_500, rows, spread, seed)) == []


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.05])
def test_the_story_changes_twice_and_at_the_very_rows(spread: float) -> None:
    series = level(21_500, 691, spread) + level(9_700, 120, spread) + level(4_300, 60, spread)
    assert change_points(series) == [691, 811]


def test_a_long_series_is_cut_at_the_row_although_it_is_searched_in_bins() -> None:
    series = level(21_500, 60_123, 0.03) + level(9_700, 30_000, 0.03)
    (cut,) = change_points(series)
    assert abs(cut - 60_123) <= 2


def test_slow_steps_at_each_checkpoint_are_no_change() -> None:
    series = level(21_500, 2_000, 0.02)
    for row in range(0, 2_000, 100):
        series[row] = 800.0
    assert change_points(series) == []


def test_a_short_dip_is_no_change_and_a_long_one_is_two() -> None:
    steady = level(21_500, 200, 0.01)
    assert change_points([*steady, *level(9_000, 2, 0.01), *steady]) == []
    assert change_points([*steady, *level(9_000, 40, 0.01), *steady]) == [200, 240]


@pytest.mark.parametrize("lengths", [(60, 100), (60, 80, 100), (60, 70, 80, 90, 100)])
@pytest.mark.parametrize("rows", [300, 800, 5_000])
@pytest.mark.parametrize("seed", range(5))
def test_batches_of_several_lengths_are_no_change_and_hide_none(
    lengths: tuple[int, ...], rows: int, seed: int
) -> None:
    chance = random.Random(seed)
    steady = [chance.choice(lengths) * (1 + chance.gauss(0, 0.05)) for _ in range(rows)]
    assert change_points(steady) == []
    fallen = [value if row < rows // 2 else value * 0.45 for row, value in enumerate(steady)]
    (cut,) = change_points(fallen)
    assert abs(cut - rows // 2) <= 25
