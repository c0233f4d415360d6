"""What one prompt says of a drafter, by the two paths that must agree.

- real: greedy speculative decoding on caches, as served;
- simulated: the training forward over the finished text, at every anchor, and at those that decoding visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import torch
from torch.nn import functional

from trainer.anchors import draw_anchors
from trainer.attention import make_mask
from trainer.batch import PackedBatch
from trainer.decode import leading_matches, propose, speculate
from trainer.errors import ConfigError
from trainer.model import Drafter
from trainer.prompts import Prompt
from trainer.targets.generation import generate
from trainer.targets.interface import DecodableTarget
from trainer.tokenizer import TextError

_TIE = {torch.float32: 1e-3, torch.bfloat16: 0.25}  # logits this near are equal but for rounding
_BLOCKS = 64  # blocks whose logits exist at a time


class Measured(msgspec.Struct, frozen=True):
    """Of one prompt: acceptance lengths, and whether its text is that of plain greedy decoding."""

    prompt: str
    tokens: int
    real: list[int]
    """Of each decoding step."""
    simulated: list[int]
    """At the anchors that decoding would visit."""
    every: list[int]
    """At all anchors."""
    text: Literal["identical", "tie", "different"]


def measure(
    target: DecodableTarget, drafter: Drafter, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[Measured]:
    """Measures ``drafter`` on ``prompts``, whose plain greedy texts are written in step.

    ConfigError where a prompt cannot be encoded.
    """
    encoded = [_encode(target, prompt) for prompt in prompts]
    plain = generate(target, encoded, max_new_tokens)
    return [
        _measure_one(target, drafter, prompt.name, ids, text, max_new_tokens)
        for prompt, ids, text in zip(prompts, encoded, plain, strict=True)
    ]


def _measure_one(
    target: DecodableTarget, drafter: Drafter, name: str, ids: list[int], plain: list[int], max_new_tokens: int
) -> Measured:
    decoded = speculate(target, drafter, ids, max_new_tokens)
    every = simulate(target, drafter, ids, decoded.tokens)
    text: Literal["identical", "tie", "different"] = "identical"
    if decoded.tokens != plain:
        text = "tie" if is_tie(target, ids, decoded.tokens, plain) else "different"
    return Measured(name, len(decoded.tokens), decoded.lengths, walk(every), every, text)


@torch.no_grad()
def simulate(target: DecodableTarget, drafter: Drafter, prompt: Sequence[int], response: Sequence[int]) -> list[int]:
    """The acceptance length at each response token but the last, by the forward that training runs.

    The target reads the finished text at once, and every token is an anchor; the drafter must not see what
    comes after it.
    """
    if len(response) < 2:
        return []
    batch = one_document([*prompt, *response], supervised_from=len(prompt))
    shape = drafter.shape
    taps = target.features(batch).taps.to(drafter.fc.weight.dtype)
    row = draw_anchors(
        batch, anchors=len(response) - 1, block_size=shape.block_size, mask_token_id=target.mask_token_id, seed=0
    )
    row = row.to(target.device)
    masks = {kind: make_mask(row.layout, shape.window(kind), "sdpa") for kind in set(shape.layer_types)}
    block = functional.embedding(row.tokens.reshape(-1), target.embedding()).to(taps.dtype)
    hidden = drafter(taps, batch.position.to(target.device), block, row.position.reshape(-1), masks)
    hidden = hidden.view(row.live, shape.block_size, -1)[:, 1:]
    # A few blocks at a time: the logits of all of them would be the largest thing in memory.
    guesses = [guess for part in hidden.split(_BLOCKS) for guess in propose(target, part)]
    # Labels stop where the text does, so those of a block are its first ones.
    wanted = [labels[valid] for labels, valid in zip(row.labels, row.valid, strict=True)]
    return [1 + leading_matches(guess, want.tolist()) for guess, want in zip(guesses, wanted, strict=True)]


def walk(lengths: Sequence[int]) -> list[int]:
    """The lengths at the anchors that decoding visits, given the length at every anchor.

    >>> walk([2, 1, 1, 3, 1, 1, 1])
    [2, 1, 3, 1]
    """
    visited, anchor = [], 0
    while anchor < len(lengths):
        visited.append(lengths[anchor])
        anchor += lengths[anchor]
    return visited


def is_tie(target: DecodableTarget, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two texts part at a token whose two candidates the target rates equal but for rounding."""
    parted = leading_matches(ours, theirs)
    if parted == min(len(ours), len(theirs)):
        return False
    hidden = target.session(len(prompt) + parted).extend([*prompt, *ours[:parted]]).hidden[-1]
    logits = target.logits(hidden)
    return abs(float(logits[ours[parted]] - logits[theirs[parted]])) <= _TIE[target.dtype]


def _encode(target: DecodableTarget, prompt: Prompt) -> list[int]:
    try:
        return target.tokenizer.encode_prompt(prompt.messages)
    except TextError as error:
        raise ConfigError(f"{prompt.name}: {error}") from error


def one_document(tokens: list[int], supervised_from: int) -> PackedBatch:
    length = len(tokens)
    return PackedBatch(
        epoch=0,
        index=0,
        tokens=torch.tensor(tokens),
        position=torch.arange(length),
        document=torch.zeros(length, dtype=torch.int32),
        supervised=torch.arange(length) >= supervised_from,
        sample_ids=(0,),
    )
