"""Greedy speculative decoding: the drafter proposes a block, the target keeps what it would have written.

The text is the target's own, token by token, whatever the drafter proposes; only the number of target steps
depends on it. The drafter runs on its cache, as it would when served, and sliding layers keep their window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainer.model import Cache, Drafter
from trainer.targets.generation import until_end
from trainer.targets.interface import DecodableTarget


@dataclass(frozen=True)
class Decoded:
    """A response, its end token included where it was reached, and how it came about.

    Each step drafts from an anchor and verifies with one run of the target. ``lengths[i]`` is the acceptance
    length of step i: 1 + the drafted tokens that became part of the response. The first token comes from the
    prompt itself and from no step.
    """

    tokens: list[int]
    anchors: list[int]  # index in the response of each step's anchor
    lengths: list[int]


def speculate(target: DecodableTarget, drafter: Drafter, prompt: Sequence[int], max_new_tokens: int) -> Decoded:
    """The target's greedy response to ``prompt``, drafted block by block."""
    block_size = drafter.shape.block_size
    capacity = len(prompt) + max_new_tokens + block_size
    session = target.session(capacity)
    cache = drafter.new_cache(capacity)
    seen = session.extend(prompt)
    drafter.append(cache, _taps_for(drafter, seen.taps))
    tokens = [int(target.logits(seen.hidden[-1]).argmax())]
    anchors: list[int] = []
    lengths: list[int] = []
    ends = target.tokenizer.end_ids
    while tokens[-1] not in ends and len(tokens) < max_new_tokens:
        anchors.append(len(tokens) - 1)
        drafted = draft_block(target, drafter, cache=cache, anchor=tokens[-1])
        block = [tokens[-1], *drafted]
        known = session.length
        seen = session.extend(block)
        wanted = target.logits(seen.hidden).argmax(-1).tolist()
        accepted = leading_matches(drafted, wanted)
        new = until_end(wanted[: accepted + 1][: max_new_tokens - len(tokens)], ends)
        tokens += new
        lengths.append(1 + min(accepted, len(new)))
        session.truncate(known + 1 + accepted)
        drafter.append(cache, _taps_for(drafter, seen.taps[: 1 + accepted]))
    return Decoded(tokens, anchors, lengths)


@torch.no_grad()
def draft_block(target: DecodableTarget, drafter: Drafter, *, cache: Cache, anchor: int) -> list[int]:
    """The B - 1 tokens proposed after ``anchor``, which stands right after what the cache holds."""
    ids = [anchor] + [target.mask_token_id] * (drafter.shape.block_size - 1)
    block = functional.embedding(torch.tensor(ids, device=target.device), target.embedding())
    hidden = drafter.draft(cache, block.to(drafter.fc.weight.dtype))
    # Slot k stands at the position of the token that it predicts; slot 0 is the anchor itself.
    drafted: list[int] = propose(target, hidden[1:])
    return drafted


def propose(target: DecodableTarget, hidden: Tensor) -> Any:
    """The likeliest tokens for the drafter's final hidden states [..., H], as nested lists."""
    return target.logits(hidden.to(target.dtype)).argmax(-1).tolist()


def leading_matches(drafted: Sequence[int], wanted: Sequence[int]) -> int:
    """How many drafted tokens equal the wanted ones before the first that does not.

    >>> leading_matches([5, 6, 7], [5, 6, 8, 9])
    2
    """
    for count, (draft, want) in enumerate(zip(drafted, wanted, strict=False)):
        if draft != want:
            return count
    return min(len(drafted), len(wanted))


def _taps_for(drafter: Drafter, taps: Tensor) -> Tensor:
    return taps.to(drafter.fc.weight.dtype)
