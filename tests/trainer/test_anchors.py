"""The draw of anchors: who gets how many, which pairs count, and that the labels are not shifted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rows import packed_row
from trainer.anchors import AnchorRow, divide_budget, draw_anchors
from trainer.batch import PackedBatch

MASK = 63


def draw(batch: PackedBatch, anchors: int = 12, seed: int = 0) -> AnchorRow:
    return draw_anchors(batch, anchors=anchors, block_size=4, mask_token_id=MASK, seed=seed)


def chosen(row: AnchorRow) -> list[int]:
    return [int(at) for at in row.layout.anchor if at >= 0]


def test_slot_k_is_labelled_with_the_token_k_after_the_anchor() -> None:
    batch = packed_row([30, 20], prompt=3)
    row = draw(batch)
    assert row.live == 12
    for number, at in enumerate(chosen(row)):
        assert row.tokens[number].tolist() == [int(batch.tokens[at]), MASK, MASK, MASK]
        for slot in (1, 2, 3):
            inside = at + slot < batch.length and batch.document[at + slot] == batch.document[at]
            assert row.valid[number, slot - 1] == inside
            if inside:
                assert row.labels[number, slot - 1] == batch.tokens[at + slot]
            assert row.position[number, slot] == batch.position[at] + slot


def test_an_unsupervised_slot_has_no_label_but_the_next_one_has() -> None:
    batch = packed_row([8])
    batch.supervised[:] = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0], dtype=torch.bool)
    row = draw(batch)
    assert chosen(row) == [2]  # the only pair of supervised tokens
    assert row.valid[0].tolist() == [True, False, True]


def test_anchors_are_supervised_pairs_of_one_document_without_repeats() -> None:
    batch = packed_row([5, 9, 1, 20], prompt=2, padded_to=48)
    row = draw(batch, anchors=40)
    anchors = chosen(row)
    assert len(set(anchors)) == len(anchors) == row.live == 2 + 6 + 0 + 17
    for at in anchors:
        assert batch.supervised[at]
        assert batch.supervised[at + 1]
        assert batch.document[at] == batch.document[at + 1]
    assert row.dropped_documents == 1


def test_empty_blocks_carry_mask_tokens_and_no_label() -> None:
    row = draw(packed_row([4], padded_to=16), anchors=6)
    assert row.live == 3
    assert (row.tokens[3:] == MASK).all()
    assert not row.valid[3:].any()


def test_a_documents_draw_depends_on_seed_epoch_and_sample_not_on_its_place() -> None:
    alone = packed_row([40], first_id=7, seed=1)
    longer = packed_row([40, 40], first_id=7, seed=1)
    first = chosen(draw(alone))
    assert [at for at in chosen(draw(longer, anchors=24)) if at < 40] == first
    moved = dataclasses.replace(longer, sample_ids=(3, 7))
    assert [at - 40 for at in chosen(draw(moved, anchors=24)) if at >= 40] == first
    assert chosen(draw(dataclasses.replace(alone, index=5))) == first
    assert chosen(draw(dataclasses.replace(alone, epoch=1))) != first
    assert chosen(draw(dataclasses.replace(alone, sample_ids=(8,)))) != first
    assert chosen(draw(alone, seed=1)) != first


def test_a_row_of_more_documents_than_anchors_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw(packed_row([4] * 13))


def test_the_budget_follows_supervised_tokens() -> None:
    counts = divide_budget(100, np.array([10, 30, 60]), np.array([9, 29, 59]))
    # a tenth of the budget is more than the first document has pairs for
    assert counts.tolist() == [9, 29, 59]
    assert divide_budget(50, np.array([10, 30, 60]), np.array([9, 29, 59])).tolist() == [5, 15, 30]
    assert divide_budget(4, np.array([1, 1, 998]), np.array([1, 1, 900])).tolist() == [1, 1, 2]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), min_size=1, max_size=64),
    st.integers(64, 2000),
)
def test_the_budget_is_spent_within_the_limits(documents: list[tuple[int, int]], budget: int) -> None:
    weights = np.array([weight for weight, _ in documents])
    limits = np.array([limit for _, limit in documents])
    counts = divide_budget(budget, weights, limits)
    assert (counts <= limits).all()
    assert ((counts >= 1) | (limits == 0)).all()
    assert counts.sum() == min(budget, limits.sum())
