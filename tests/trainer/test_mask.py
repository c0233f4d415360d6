"""The mask against an oracle written from the definition, pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.trainer.rows import packed_row
from trainer.anchors import draw_anchors
from trainer.batch import PackedBatch
from trainer.mask import FLEX_BLOCK, BlockLayout, block_mask, dense_mask


def oracle(batch: PackedBatch, anchor: list[int], block_size: int, window: int | None) -> Tensor:
    """[Q, S + Q] by two loops, from document numbers and positions alone."""
    S, Q = batch.length, len(anchor) * block_size
    seen = torch.zeros(Q, S + Q, dtype=torch.bool)
    for query in range(Q):
        at, slot = anchor[query // block_size], query % block_size
        if at < 0:
            continue
        for key in range(S):
            same = batch.document[key] == batch.document[at] and batch.position[key] < batch.position[at]
            distance = batch.position[at] + slot - batch.position[key]
            seen[query, key] = bool(same) and (window is None or bool(distance <= window - 1))
        for key in range(Q):
            beside = key // block_size == query // block_size
            seen[query, S + key] = beside and (window is None or key % block_size <= slot)
    return seen


def layout_of(batch: PackedBatch, anchor: list[int], block_size: int) -> BlockLayout:
    start = [int((batch.document == batch.document[at]).nonzero()[0]) if at >= 0 else 0 for at in anchor]
    return BlockLayout(
        batch.length,
        block_size,
        torch.tensor(anchor, dtype=torch.int32),
        torch.tensor(start, dtype=torch.int32),
    )


ROWS = {
    "one document": (packed_row([40]), [0, 7, 39]),
    "documents": (packed_row([20, 1, 30, 13]), [5, 19, 20, 21, 40, 63]),
    "overlapping anchors": (packed_row([60]), [10, 10, 11, 12, 13, 25]),
    "padding and empty blocks": (packed_row([20, 15], padded_to=64), [4, 22, -1, 30, -1, -1]),
    "nothing but empty blocks": (packed_row([20], padded_to=32), [-1, -1]),
}


@pytest.mark.parametrize("window", [None, 8, 16], ids=["full", "window 8", "window 16"])
@pytest.mark.parametrize("name", ROWS)
def test_dense_mask_equals_the_definition(name: str, window: int | None) -> None:
    batch, anchor = ROWS[name]
    expected = oracle(batch, anchor, 8, window)
    assert torch.equal(dense_mask(layout_of(batch, anchor, 8), window), expected)


def test_rows_of_empty_blocks_see_nothing() -> None:
    batch, anchor = ROWS["padding and empty blocks"]
    mask = dense_mask(layout_of(batch, anchor, 8)).view(6, 8, -1)
    assert mask.any(-1).any(-1).tolist() == [at >= 0 for at in anchor]


def blocks_of(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Which FLEX_BLOCK squares of a dense mask are partly, and which fully, visible."""
    Q, K = mask.shape
    rows, columns = -(-Q // FLEX_BLOCK), -(-K // FLEX_BLOCK)
    some = torch.zeros(rows, columns, dtype=torch.bool)
    every = torch.zeros(rows, columns, dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            square = mask[row * FLEX_BLOCK : (row + 1) * FLEX_BLOCK, column * FLEX_BLOCK :][:, :FLEX_BLOCK]
            some[row, column] = square.any()
            every[row, column] = bool(square.all()) and square.shape[1] == FLEX_BLOCK
    return some & ~every, every


def listed(count: Tensor, index: Tensor, columns: int) -> Tensor:
    """The squares that a BlockMask's counts and indices name."""
    dense = torch.zeros(count.shape[-1], columns, dtype=torch.bool)
    for row in range(count.shape[-1]):
        dense[row, index[0, 0, row, : count[0, 0, row]].long()] = True
    return dense


@pytest.mark.parametrize("window", [None, 16, 200], ids=["full", "window 16", "window 200"])
@pytest.mark.parametrize("block_size", [10, 16], ids=["block 10 straddles", "block 16"])
@pytest.mark.parametrize("seed", range(4))
def test_block_mask_names_the_same_squares_in_both_directions(seed: int, block_size: int, window: int | None) -> None:
    lengths = [[1024], [300, 5, 700], [128, 256, 128, 400], [900]][seed]
    batch = packed_row(lengths, padded_to=1024, seed=seed)
    row = draw_anchors(batch, anchors=51, block_size=block_size, mask_token_id=0, seed=seed)
    layout = row.layout
    if seed == 3:  # holes in the middle too
        layout.anchor[5:25] = -1
    partial, full = blocks_of(dense_mask(layout, window))
    mask = block_mask(layout, window)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    assert mask.q_num_blocks is not None
    assert mask.q_indices is not None
    assert mask.full_q_num_blocks is not None
    assert mask.full_q_indices is not None
    assert mask.seq_lengths == (layout.queries, 1024 + layout.queries)
    rows, columns = partial.shape
    assert torch.equal(listed(mask.kv_num_blocks, mask.kv_indices, columns), partial)
    assert torch.equal(listed(mask.full_kv_num_blocks, mask.full_kv_indices, columns), full)
    assert torch.equal(listed(mask.q_num_blocks, mask.q_indices, rows), partial.T)
    assert torch.equal(listed(mask.full_q_num_blocks, mask.full_q_indices, rows), full.T)
    assert full.any() or window is not None or seed == 2  # the case is worth something


def test_context_that_ends_inside_a_square() -> None:
    batch = packed_row([200, 133])
    layout = draw_anchors(batch, anchors=20, block_size=8, mask_token_id=0, seed=1).layout
    partial, full = blocks_of(dense_mask(layout))
    mask = block_mask(layout)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    named = listed(mask.kv_num_blocks, mask.kv_indices, partial.shape[1])
    named_full = listed(mask.full_kv_num_blocks, mask.full_kv_indices, partial.shape[1])
    assert torch.equal(named | named_full, partial | full)
    assert not (named_full & ~full).any()
