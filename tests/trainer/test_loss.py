"""The loss against torch's own cross-entropy on full logits, and the measures against counting by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from trainer import loss as loss_module
from trainer.loss import Totals, block_loss, chunk_rows, slot_weights

BLOCKS, SIZE, HIDDEN, VOCAB = 6, 5, 12, 30


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(BLOCKS * SIZE, HIDDEN, generator=generator)
    head = torch.randn(VOCAB, HIDDEN, generator=generator)
    labels = torch.randint(0, VOCAB, (BLOCKS, SIZE - 1), generator=generator)
    valid = torch.rand(BLOCKS, SIZE - 1, generator=generator) > 0.3
    valid[2] = False
    return hidden, head, labels, valid


def reference(
    hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor, gamma: float
) -> torch.Tensor:
    """The sum, slot by slot, with all logits in memory."""
    logits = (hidden.float() @ head.float().t()).view(BLOCKS, SIZE, VOCAB)
    total = torch.zeros(())
    for block in range(BLOCKS):
        for k in range(1, SIZE):
            if valid[block, k - 1]:
                own = F.cross_entropy(logits[block, k], labels[block, k - 1])
                total = total + math.exp(-(k - 1) / gamma) * own
    return total


@pytest.mark.parametrize("rows_a_chunk", [1000, 7], ids=["one chunk", "several chunks"])
def test_sum_and_gradient_equal_those_of_full_logits(rows_a_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_ELEMENTS, "cpu", rows_a_chunk * VOCAB)
    hidden, head, labels, valid = inputs()
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    totals = block_loss(ours, head, labels, valid, gamma=4.0)
    (3 * totals.numerator).backward()
    expected = reference(theirs, head, labels, valid, 4.0)
    (3 * expected).backward()
    torch.testing.assert_close(totals.numerator, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert ours.grad is not None
    assert not ours.grad.view(BLOCKS, SIZE, -1)[:, 0].any()  # slot 0 has no loss
    assert not ours.grad.view(BLOCKS, SIZE, -1)[2].any()  # nor has a block without labels


def test_the_denominator_is_the_sum_of_the_weights() -> None:
    hidden, head, labels, valid = inputs()
    totals = block_loss(hidden, head, labels, valid, gamma=4.0)
    expected = sum(math.exp(-k / 4.0) for row in valid.tolist() for k, on in enumerate(row) if on)
    assert float(totals.denominator) == pytest.approx(expected)
    assert totals.loss == pytest.approx(float(reference(hidden, head, labels, valid, 4.0)) / expected)


def test_weights_of_a_block_of_16() -> None:
    weights = slot_weights(16, 7.0)
    assert weights.shape == (15,)
    assert weights[0] == 1.0
    assert float(weights[7]) == pytest.approx(math.exp(-1.0))


def test_accuracy_and_simulated_length() -> None:
    """Predictions are made right or wrong by hand; a mismatch or a missing label ends the run of matches."""
    labels = torch.arange(1, 13).view(3, 4)
    right = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]], dtype=torch.bool)
    valid = torch.ones(3, 4, dtype=torch.bool)
    valid[1, 2:] = False  # the document ends there
    hidden = torch.zeros(3, 5, 16)
    hidden[:, 1:] = F.one_hot(torch.where(right, labels, 0), 16).float()
    totals = block_loss(hidden.view(15, 16), torch.eye(16), labels, valid, gamma=4.0)
    assert totals.accuracy == [2 / 3, 3 / 3, 1 / 2, 2 / 2]
    assert totals.acceptance_length == pytest.approx((3 + 3 + 1) / 3)


def test_totals_add_up_over_shards_as_over_the_whole() -> None:
    hidden, head, labels, valid = inputs()
    whole = block_loss(hidden, head, labels, valid, 4.0)
    halves = [
        block_loss(rows, head, tags, on, 4.0).pack()
        for rows, tags, on in zip(hidden.chunk(2), labels.chunk(2), valid.chunk(2), strict=True)
    ]
    both = Totals.unpack(halves[0] + halves[1])
    assert both.loss == pytest.approx(whole.loss)
    assert both.accuracy == whole.accuracy
    assert both.acceptance_length == whole.acceptance_length


def test_no_label_at_all_is_a_zero_loss_and_no_measure() -> None:
    hidden, head, labels, valid = inputs()
    totals = block_loss(hidden, head, labels, torch.zeros_like(valid), 4.0)
    assert totals.loss == 0.0
    assert totals.acceptance_length is None
    assert totals.accuracy == [None] * 4


def test_bf16_logits_are_summed_in_fp32() -> None:
    hidden, head, labels, valid = inputs()
    narrow = block_loss(hidden.bfloat16(), head.bfloat16(), labels, valid, 4.0)
    exact = reference(hidden.bfloat16(), head.bfloat16(), labels, valid, 4.0)
    assert narrow.numerator.dtype == torch.float32
    torch.testing.assert_close(narrow.numerator, exact, rtol=1e-2, atol=0)


@pytest.mark.parametrize(("rows", "vocab"), [(7680, 151936), (15360, 248320), (7680, 49152), (7, 30)])
def test_chunks_are_equal_and_within_the_limit(rows: int, vocab: int) -> None:
    step = chunk_rows(rows, vocab, "cuda")
    assert rows % step == 0
    assert step * vocab <= 2**28
    assert step * vocab > 2**26 or step == rows
