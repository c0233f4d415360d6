"""The order of rows, and the prefetch thread."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ConfigError, TrainerError
from trainer.source import Plan, Prefetcher


def test_rows_run_through_the_epochs() -> None:
    plan = Plan(rows=(3, 2, 4), rows_per_step=2)
    assert plan.total_steps == 4
    assert plan.rows_of(0, 1) == range(8)
    assert [plan.locate(row) for row in range(9)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3),
    ]  # fmt: skip
    assert plan.locate(9) == (3, 0)


def test_max_steps_and_too_few_rows() -> None:
    assert Plan((5, 5), 1, max_steps=3).total_steps == 3
    assert Plan((5,), 1, max_steps=9).total_steps == 5
    with pytest.raises(ConfigError, match="make no step"):
        Plan((1, 1), 3)


def test_a_run_that_goes_on_with_other_rows_a_step_trains_on_those_that_are_left() -> None:
    """Of 12 rows 8 are done, by steps of 2 or of 1: the rest makes steps of 1 or of 2."""
    assert Plan((6, 6), 1, step=4, row=8).total_steps == 8
    assert Plan((6, 6), 2, step=8, row=8).total_steps == 10
    assert Plan((6, 6), 2, step=8, row=8).rows_of(0, 1) == range(8, 12)
    assert Plan((6, 6), 2, max_steps=9, step=8, row=8).rows_of(1, 2) == range(9, 10, 2)
    fewer_epochs = Plan((6,), 1, step=8, row=8)
    assert (fewer_epochs.total_steps, len(fewer_epochs.rows_of(0, 1))) == (8, 0)


@given(st.integers(1, 5), st.integers(0, 40))
def test_workers_share_the_rows_by_their_number_alone(workers: int, start: int) -> None:
    plan = Plan((40,), 1, step=start, row=start)
    shares = [list(plan.rows_of(worker, workers)) for worker in range(workers)]
    assert sorted(row for share in shares for row in share) == list(range(start, 40))
    for worker, share in enumerate(shares):
        assert all(row % workers == worker for row in share)
        assert share == sorted(share)


def test_prefetching_is_bounded_and_in_order() -> None:
    made: list[int] = []

    def make(row: int) -> int:
        made.append(row)
        return row * row

    prefetcher = Prefetcher(make, range(10), depth=2)
    time.sleep(0.2)
    assert len(made) <= 4
    assert prefetcher.depth() == 2
    assert [prefetcher.get() for _ in range(10)] == [row * row for row in range(10)]
    with pytest.raises(TrainerError, match="no more rows"):
        prefetcher.get()
    prefetcher.close()


def test_an_error_in_the_thread_reaches_the_loop() -> None:
    def make(row: int) -> int:
        if row == 2:
            raise OSError("the disk is gone")
        return row

    prefetcher = Prefetcher(make, range(5), depth=1)
    assert [prefetcher.get(), prefetcher.get()] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.get()
    prefetcher.close()


def test_closing_ends_the_thread_that_waits_for_room() -> None:
    prefetcher = Prefetcher(lambda row: row, range(1000), depth=1)
    prefetcher.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
