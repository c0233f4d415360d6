"""The drafter's loss, as sums that can be added over micro-batches and ranks, and its measures.

Slot k = 1 .. B - 1 weighs exp(-(k - 1) / gamma) where its label is valid, else 0; the loss is the weighted sum
of cross-entropies over the sum of the weights (a count as denominator would change loss and clipping
2.3 times). Slot 0, the anchor itself, has no loss and never meets the LM head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.static_graph import static_graph

CHUNK_ELEMENTS = {"cuda": 2**28, "cpu": 2**26}
"""Most logits that exist at a time; 2**28 are 1 GiB in fp32."""


def slot_weights(block_size: int, gamma: float, device: torch.device | None = None) -> Tensor:
    """[B - 1] fp32, of slots 1 and on."""
    return torch.exp(-torch.arange(block_size - 1, dtype=torch.float32, device=device) / gamma)


@dataclass
class Totals:
    """Sums over blocks. They add up; means are taken once, after everything has been added."""

    numerator: Tensor  # weighted cross-entropy
    denominator: Tensor  # weights
    correct: Tensor  # [B - 1] right predictions a slot
    valid: Tensor  # [B - 1] labels a slot
    accepted: Tensor  # simulated acceptance length, 1 + leading matches, summed over blocks with a label
    blocks: Tensor  # blocks with a label

    def pack(self) -> Tensor:
        """All sums in one float64 vector, for one all-reduce."""
        parts = (self.numerator, self.denominator, self.accepted, self.blocks, self.correct, self.valid)
        return torch.cat([part.detach().double().reshape(-1) for part in parts])

    @classmethod
    def unpack(cls, packed: Tensor) -> Totals:
        """The inverse of ``pack``."""
        correct, valid = packed[4:].chunk(2)
        return cls(packed[0], packed[1], correct, valid, packed[2], packed[3])

    @property
    def loss(self) -> float:
        """The weighted mean; 0 without any label."""
        return float(self.numerator / self.denominator) if float(self.denominator) > 0 else 0.0

    @property
    def accuracy(self) -> list[float | None]:
        """Right predictions over labels, a slot; None where a slot has no label."""
        pairs = zip(self.correct.tolist(), self.valid.tolist(), strict=True)
        return [right / count if count else None for right, count in pairs]

    @property
    def acceptance_length(self) -> float | None:
        """Mean simulated acceptance length; 1 is the least by definition."""
        return float(self.accepted / self.blocks) if float(self.blocks) > 0 else None


def block_loss(
    hidden: Tensor,  # [A * B, H], the drafter's output
    head: Tensor,  # [V, H], frozen
    labels: Tensor,  # [A, B - 1]
    valid: Tensor,  # [A, B - 1]
    gamma: float,
    *,
    compiled: bool = False,
) -> Totals:
    """The sums of one packed row; ``numerator`` carries the gradient to ``hidden``."""
    blocks, slots = labels.shape
    predicted = hidden.view(blocks, slots + 1, -1)[:, 1:].reshape(blocks * slots, -1)
    weight = slot_weights(slots + 1, gamma, hidden.device) * valid
    numerator, right = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        predicted, head, labels.reshape(-1), weight.reshape(-1), compiled_chunk() if compiled else _chunk
    )
    right = right.view(blocks, slots) & valid
    leading = right.long().cumprod(dim=1).sum(dim=1)
    live = valid.any(dim=1)
    return Totals(
        numerator,
        weight.sum(),
        right.sum(dim=0),
        valid.sum(dim=0),
        ((1 + leading) * live).sum(),
        live.sum(),
    )


class _LinearCrossEntropy(torch.autograd.Function):
    """Weighted cross-entropy of ``hidden @ head.T`` without ever holding all logits.

    The head is frozen, so the gradient to ``hidden`` is all that backward needs; each chunk leaves it behind
    while its logits exist, and nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        weight: Tensor,
        chunk: Callable[..., tuple[Tensor, Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        step = chunk_rows(hidden.shape[0], head.shape[0], hidden.device.type)
        parts = [
            chunk(*(rows.narrow(0, low, step) for rows in (hidden, labels, weight)), head)
            for low in range(0, hidden.shape[0], step)
        ]
        losses, rights, gradients = zip(*parts, strict=True)
        ctx.save_for_backward(torch.cat(gradients))
        right = torch.cat(rights)
        ctx.mark_non_differentiable(right)
        return torch.stack(losses).sum(), right

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None, None


def _chunk(hidden: Tensor, labels: Tensor, weight: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of [n, H] rows: the weighted sum, which rows are right, and the sum's gradient [n, H]."""
    logits = _logits(hidden, head)
    normaliser = torch.logsumexp(logits, dim=-1)
    own = logits.gather(1, labels[:, None]).squeeze(1)
    numerator = (weight * (normaliser - own)).sum()
    right = logits.argmax(dim=-1) == labels
    share = torch.exp(logits - normaliser[:, None])
    column = torch.arange(logits.shape[1], device=logits.device)
    gradient = torch.where(column == labels[:, None], share - 1, share)
    return numerator, right, (gradient * weight[:, None]).to(hidden.dtype) @ head


def _logits(hidden: Tensor, head: Tensor) -> Tensor:
    """[n, V] in fp32: on CUDA the matrix units' own fp32 sums, not rounded to bf16 on the way."""
    if hidden.dtype == torch.float32:
        return hidden @ head.t()
    if hidden.is_cuda:
        return torch.mm(hidden, head.t(), out_dtype=torch.float32)
    return (hidden @ head.t()).float()


@functools.cache
def compiled_chunk() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """``_chunk`` fused by the compiler."""
    return static_graph(_chunk)


def chunk_rows(rows: int, vocab: int, device: str) -> int:
    """Rows a chunk: a divisor of ``rows``, so that all chunks have one shape, within CHUNK_ELEMENTS."""
    limit = max(1, CHUNK_ELEMENTS.get(device, CHUNK_ELEMENTS["cpu"]) // vocab)
    pieces = -(-rows // limit)
    while rows % pieces:
        pieces += 1
    return rows // pieces
