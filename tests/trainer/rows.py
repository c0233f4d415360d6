"""Packed rows for the tests, made by hand: no tokenizer and no data set."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.batch import PackedBatch


def packed_row(
    lengths: Sequence[int],
    *,
    padded_to: int | None = None,
    prompt: int = 0,
    vocab: int = 64,
    seed: int = 0,
    epoch: int = 0,
    index: int = 0,
    first_id: int = 0,
) -> PackedBatch:
    """Documents of the given lengths with random tokens; the first ``prompt`` tokens of each are no labels."""
    generator = torch.Generator().manual_seed(seed)
    total = padded_to or sum(lengths)
    tokens = torch.zeros(total, dtype=torch.int64)
    position = torch.zeros(total, dtype=torch.int64)
    document = torch.full((total,), -1, dtype=torch.int32)
    supervised = torch.zeros(total, dtype=torch.bool)
    at = 0
    for number, length in enumerate(lengths):
        tokens[at : at + length] = torch.randint(1, vocab, (length,), generator=generator)
        position[at : at + length] = torch.arange(length)
        document[at : at + length] = number
        supervised[at + prompt : at + length] = True
        at += length
    ids = tuple(range(first_id, first_id + len(lengths)))
    return PackedBatch(epoch, index, tokens, position, document, supervised, ids)
