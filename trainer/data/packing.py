"""Which documents share a packed row: a pure function of lengths, settings, seed and epoch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_OPEN_ROWS = 16  # rows filled at a time: more waste less padding and mix the order less evenly


@dataclass(frozen=True)
class Row:
    """A packed row: its static length and its documents, in order."""

    length: int
    documents: tuple[int, ...]


def row_lengths(token_budget: int, length_buckets: Sequence[int]) -> tuple[int, ...]:
    """The static lengths that rows have, ascending; the last one is the most that is packed."""
    return tuple(length_buckets) or (token_budget,)


def pack_epoch(
    lengths: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    allowed: Sequence[int],
    max_documents: int,
) -> list[Row]:
    """All documents, each once, in rows of the ``allowed`` lengths with at most ``max_documents`` each.

    Documents come in an order drawn from (seed, epoch) and go where they leave the least room (best fit
    among a few open rows). A row gets the shortest allowed length that holds it. No length exceeds the
    last allowed one.
    """
    generator = np.random.default_rng([seed, epoch])
    capacity = allowed[-1]
    # (tokens left, when it last grew, documents), ascending: the tightest first, of equal ones the oldest.
    open_rows: list[tuple[int, int, list[int]]] = []
    done: list[tuple[int, int, list[int]]] = []
    order = generator.permutation(len(lengths))
    for time, (number, need) in enumerate(zip(order.tolist(), lengths[order].tolist(), strict=True)):
        best = bisect.bisect_left(open_rows, (need,))
        if best < len(open_rows):
            left, _, documents = open_rows.pop(best)
        else:
            if len(open_rows) == _OPEN_ROWS:
                done.append(open_rows.pop(0))
            left, documents = capacity, []
        documents.append(number)
        row = (left - need, time, documents)
        if len(documents) == max_documents:
            done.append(row)
        else:
            bisect.insort(open_rows, row)
    done += sorted(open_rows, key=lambda row: row[1])
    # Full rows close first and the loose ones last: without a shuffle an epoch would end on its oddities.
    return [
        Row(allowed[bisect.bisect_left(allowed, capacity - left)], tuple(documents))
        for left, _, documents in (done[index] for index in generator.permutation(len(done)))
    ]
