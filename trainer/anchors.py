"""Which tokens of a packed row are drafted from: the anchors, their blocks and their labels.

The draw depends on (seed, epoch, sample id) and on how the row is packed, never on which rank draws it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.batch import PackedBatch
from trainer.mask import BlockLayout

STREAM = 0x616E63
"""Keeps this random stream apart from others of the same seed."""


@dataclass(frozen=True)
class AnchorRow:
    """The drafted blocks of one packed row: A blocks of B slots."""

    layout: BlockLayout
    tokens: Tensor  # [A, B] int64: the anchor's token, then MASK; an empty block is all MASK
    position: Tensor  # [A, B] int64: the anchor's position + k
    labels: Tensor  # [A, B - 1] int64: token at anchor + k for slot k = 1 .. B - 1; 0 where not valid
    valid: Tensor  # [A, B - 1] bool: anchor + k is a supervised token of the anchor's document
    live: int  # blocks with an anchor
    dropped_documents: int  # documents with no two supervised tokens in a row

    def to(self, device: torch.device) -> AnchorRow:
        """The same row on ``device``."""
        layout = self.layout
        return AnchorRow(
            BlockLayout(layout.context, layout.block_size, layout.anchor.to(device), layout.start.to(device)),
            self.tokens.to(device),
            self.position.to(device),
            self.labels.to(device),
            self.valid.to(device),
            self.live,
            self.dropped_documents,
        )


def draw_anchors(batch: PackedBatch, *, anchors: int, block_size: int, mask_token_id: int, seed: int) -> AnchorRow:
    """Draws up to ``anchors`` anchors from a row and lays out their blocks, on CPU.

    An anchor and the token after it are both supervised and of one document. Each document with such a pair
    gets at least one anchor, the others go by supervised tokens; drawn without replacement.

    Raises ValueError if the row has more such documents than anchors.
    """
    document = batch.document.numpy()
    supervised = batch.supervised.numpy() & (document >= 0)
    pair = np.zeros(len(document), dtype=bool)
    pair[:-1] = supervised[:-1] & supervised[1:] & (document[:-1] == document[1:])
    documents = len(batch.sample_ids)
    starts = np.searchsorted(np.where(document < 0, documents, document), np.arange(documents + 1))
    spans = list(itertools.pairwise(starts))
    candidates = np.array([pair[low:high].sum() for low, high in spans], dtype=np.int64)
    weights = np.array([supervised[low:high].sum() for low, high in spans], dtype=np.int64)
    anchor = np.full(anchors, -1, dtype=np.int32)
    start = np.zeros(anchors, dtype=np.int32)
    filled = 0
    for number, count in enumerate(divide_budget(anchors, weights, candidates)):
        low, high = spans[number]
        draw = np.random.default_rng([STREAM, seed, batch.epoch, batch.sample_ids[number]])
        # A prefix of a permutation, so that a larger budget draws a superset.
        chosen = draw.permutation(np.flatnonzero(pair[low:high]))[:count]
        anchor[filled : filled + count] = low + np.sort(chosen)
        start[filled : filled + count] = low
        filled += int(count)
    dropped = int((candidates == 0).sum())
    return _lay_out(batch, anchor, start, block_size, mask_token_id, filled, dropped)


def divide_budget(budget: int, weights: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divides ``budget`` in proportion to ``weights``, at least 1 and at most ``limits`` each, 0 at limit 0.

    All of the budget is given out unless the limits forbid it. Raises ValueError below one each.
    """
    open_ = limits > 0
    if open_.sum() > budget:
        raise ValueError(f"{int(open_.sum())} documents share {budget} anchors; each needs at least one")
    if limits.sum() <= budget:
        return limits.copy()
    low, high = 0.0, float(limits.max()) / float(weights[open_].min())
    for _ in range(100):  # the rate at which clipped shares sum to the budget
        rate = (low + high) / 2
        short = np.clip(rate * weights[open_], 1, limits[open_]).sum() < budget
        low, high = (rate, high) if short else (low, rate)
    shares = np.zeros(len(limits))
    shares[open_] = np.clip(low * weights[open_], 1, limits[open_])
    given = np.floor(shares).astype(np.int64)
    order = np.argsort(given - shares, kind="stable")  # largest remainder first
    room = [number for number in order if given[number] < limits[number]]
    given[room[: budget - int(given.sum())]] += 1
    return given


def _lay_out(
    batch: PackedBatch,
    anchor: NDArray[np.int32],
    start: NDArray[np.int32],
    block_size: int,
    mask_token_id: int,
    live: int,
    dropped: int,
) -> AnchorRow:
    at = torch.from_numpy(anchor)
    empty = at < 0
    slot = torch.arange(block_size)
    source = torch.where(empty, 0, at).long()[:, None] + slot  # [A, B] row indices
    inside = source < batch.length
    source = source.clamp(max=batch.length - 1)
    document = batch.document[source]
    valid = inside & batch.supervised[source] & (document == document[:, :1]) & ~empty[:, None]
    tokens = torch.full_like(source, mask_token_id)
    tokens[:, 0] = torch.where(empty, mask_token_id, batch.tokens[source[:, 0]])
    position = torch.where(empty[:, None], 0, batch.position[source[:, :1]] + slot)
    labels = torch.where(valid, batch.tokens[source], 0)
    layout = BlockLayout(batch.length, block_size, at, torch.from_numpy(start))
    return AnchorRow(layout, tokens, position, labels[:, 1:], valid[:, 1:], live, dropped)
