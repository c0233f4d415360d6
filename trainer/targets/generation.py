"""Writing texts with a target: many prompts in step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.targets.interface import DecodableTarget


def generate(
    target: DecodableTarget,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """The target's continuation of each prompt, the end token included where it was reached.

    Greedy at temperature 0; else drawn with one generator a prompt (``seeds``), so that a response does
    not depend on how far its neighbours got. Sequences that have ended keep their place until all have.
    """
    session = target.batch_session(max(map(len, prompts)) + max_new_tokens)
    draws = _draws(seeds or range(len(prompts)), max_new_tokens) if temperature > 0 else None
    ends = torch.tensor(sorted(target.tokenizer.end_ids), device=target.device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=target.device)
    hidden = session.prefill(prompts)
    columns: list[Tensor] = []
    for step in range(max_new_tokens):
        logits = target.logits(hidden)
        token = logits.argmax(-1) if draws is None else _draw(logits / temperature, draws[:, step])
        columns.append(token)
        done |= torch.isin(token, ends)
        if bool(done.all()) or step == max_new_tokens - 1:
            break
        hidden = session.step(token)
    return [until_end(row, target.tokenizer.end_ids) for row in torch.stack(columns, dim=1).tolist()]


def _draws(seeds: Sequence[int], count: int) -> Tensor:
    """Uniform numbers [R, count], a row's from its own seed alone."""
    return torch.stack(
        [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    )


def _draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-transform sampling: one uniform number a row, [R, V] and [R] to [R]."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    threshold = (uniform.to(logits.device) * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


def until_end(tokens: list[int], end_ids: frozenset[int]) -> list[int]:
    """Up to the first end token, itself included; all of them where there is none."""
    end = next((index for index, token in enumerate(tokens, 1) if token in end_ids), None)
    return tokens[:end]
