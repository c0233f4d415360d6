"""A target on the trainer's own transformer: SmolLM2 from its GGUF file, or random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.batch import PackedBatch, TargetFeatures
from trainer.targets.interface import BatchSession, DecodableTarget, Extension, Session
from trainer.targets.transformer import KeyValueCache, Transformer, attend_by_document, attend_varlen
from trainer.tokenizer import Tokenizer


class OwnTarget(DecodableTarget):
    """On the trainer's own transformer."""

    def __init__(self, name: str, model: Transformer, tokenizer: Tokenizer, **further: Any) -> None:
        self.model = model.requires_grad_(False).eval()
        super().__init__(name, model.shape, tokenizer, model.embed.weight, model.head.weight, **further)

    @torch.no_grad()
    def features(self, batch: PackedBatch) -> TargetFeatures:
        """Runs the layers up to the deepest tap, documents kept apart; padding is a document of its own."""
        bounds = document_bounds(batch.document)
        flash = self.device.type == "cuda" and self.dtype in (torch.bfloat16, torch.float16)
        attend = attend_varlen(bounds, self.device) if flash else attend_by_document(bounds)
        tokens, position = batch.tokens.to(self.device), batch.position.to(self.device)
        _, taps = self.model.run(tokens, position, attend, self.tap_layers, whole=False)
        return TargetFeatures(batch, taps)

    def session(self, capacity: int) -> Session:
        return OwnSession(self, capacity)

    def batch_session(self, capacity: int) -> BatchSession:
        return OwnBatchSession(self, capacity)

    def cache(self, rows: int, capacity: int) -> KeyValueCache:
        """An empty cache that fits the model."""
        return KeyValueCache(self.model.shape, rows, capacity, self.device, self.dtype)

    @torch.no_grad()
    def extend(self, cache: KeyValueCache, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [R, N, H] and taps [R, N, K * H] of ``tokens`` [R, N]; lengths are the caller's."""
        position, attend = cache.attend(tokens.shape[1])
        hidden, taps = self.model.run(tokens, position, attend, self.tap_layers, whole=True)
        assert hidden is not None
        return hidden, taps


class OwnSession:
    """One sequence."""

    def __init__(self, target: OwnTarget, capacity: int) -> None:
        self._target = target
        self._cache = target.cache(1, capacity)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.lengths[0]

    def extend(self, tokens: Sequence[int]) -> Extension:
        row = torch.tensor([list(tokens)], device=self._target.device)
        hidden, taps = self._target.extend(self._cache, row)
        self._cache.lengths[0] += len(tokens)
        return Extension(hidden[0], taps[0])

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        self._cache.lengths[0] = length


class OwnBatchSession:
    """Sequences in step; prompts are padded on the right, where no token before sees the padding."""

    def __init__(self, target: OwnTarget, capacity: int) -> None:
        self._target = target
        self._capacity = capacity
        self._cache: KeyValueCache | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self._cache = self._target.cache(len(prompts), self._capacity)
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        rows = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        hidden, _ = self._target.extend(self._cache, rows.to(self._target.device))
        self._cache.lengths = lengths
        last = torch.tensor(lengths, device=hidden.device) - 1
        return hidden[torch.arange(len(prompts), device=hidden.device), last]

    def step(self, tokens: Tensor) -> Tensor:
        if self._cache is None:
            raise ValueError("step before prefill")
        hidden, _ = self._target.extend(self._cache, tokens[:, None])
        self._cache.lengths = [length + 1 for length in self._cache.lengths]
        return hidden[:, 0]


def document_bounds(document: Tensor) -> list[int]:
    """Where the documents of a packed row begin, and the row's end, from ``PackedBatch.document``.

    >>> document_bounds(torch.tensor([0, 0, 1, 1, 1, -1]))
    [0, 2, 5, 6]
    """
    _, counts = torch.unique_consecutive(document.cpu(), return_counts=True)
    return [0, *counts.cumsum(0).tolist()]
