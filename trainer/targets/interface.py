"""What every target is and offers: hidden states for the drafter, text, and decoding with a key/value cache.

Shapes: R sequences decoded together, N new tokens, K taps, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trainer.batch import PackedBatch, TargetFeatures
from trainer.errors import ConfigError
from trainer.shapes import TargetShape, tap_layers
from trainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Extension:
    """What the target says of tokens appended to a cached sequence."""

    hidden: Tensor  # [N, H], after the final norm: what the LM head reads
    taps: Tensor  # [N, K * H], as in ``TargetFeatures``


class Session(Protocol):
    """One sequence and its key/value cache."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    def extend(self, tokens: Sequence[int]) -> Extension:
        """Appends tokens; they see the cache and, causally, each other."""
        ...

    def truncate(self, length: int) -> None:
        """Forgets all tokens past the first ``length``: the rejected part of a draft."""
        ...


class BatchSession(Protocol):
    """Sequences that grow in step, one token each; used to write training responses."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Reads the prompts; returns the hidden state of each one's last token, [R, H]."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token to each sequence, ``tokens`` [R]; returns their hidden states, [R, H]."""
        ...


class DecodableTarget(ABC):
    """A frozen language model: what the drafter sees of it, text, and decoding.

    ``digest`` names the weights' content.
    """

    def __init__(
        self,
        name: str,
        shape: TargetShape,
        tokenizer: Tokenizer,
        embedding: Tensor,  # [V, H]
        head: Tensor,  # [V, H]
        *,
        digest: str,
        num_taps: int,
        mask_token_id: int | None,
    ) -> None:
        self.name, self.shape, self.tokenizer = name, shape, tokenizer
        self._embedding, self._head, self._digest = embedding, head, digest
        self.vocab_size = embedding.shape[0]
        self.dtype, self.device = embedding.dtype, embedding.device
        self.tap_layers = tap_layers(shape.num_layers, num_taps)
        self.mask_token_id = choose_mask_id(tokenizer, self.vocab_size, mask_token_id)

    @abstractmethod
    def features(self, batch: PackedBatch) -> TargetFeatures:
        """Runs the layers up to the deepest tap, documents kept apart; no gradient."""

    @abstractmethod
    def session(self, capacity: int) -> Session:
        """An empty sequence of at most ``capacity`` tokens."""

    @abstractmethod
    def batch_session(self, capacity: int) -> BatchSession:
        """Empty sequences of at most ``capacity`` tokens each, prompt included."""

    def embedding(self) -> Tensor:
        """The token embedding, [V, H], frozen; the drafter embeds its block with it."""
        return self._embedding

    def lm_head(self) -> Tensor:
        """The output projection, [V, H], frozen; the drafter's logits come from it."""
        return self._head

    def identity(self) -> dict[str, str | int | float]:
        """Whatever must be equal on resume: name, content of the weights, tokenizer, sizes."""
        return {
            "name": self.name,
            "weights": self._digest,
            "tokenizer": self.tokenizer.digest,
            "hidden_size": self.shape.hidden_size,
            "num_layers": self.shape.num_layers,
            "vocab_size": self.vocab_size,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] to float32 [..., V] with the mask id at minus infinity: the target never writes it."""
        logits = functional.linear(hidden, self._head).float()
        logits[..., self.mask_token_id] = -torch.inf
        return logits


def choose_mask_id(tokenizer: Tokenizer, vocab_size: int, asked: int | None = None) -> int:
    """The id of MASK: one that the target never reads or writes.

    By preference an embedding row past the tokenizer's own ids; else the last special token that neither
    ends a text nor appears in the chat template. Encoding never yields a special token from a user's text,
    and ``logits`` bars the id, so that no prompt is damaged where a generator strips it.
    """
    used = tokenizer.used_ids
    if asked is not None:
        if not 0 <= asked < vocab_size:
            raise ConfigError(f"target.mask_token_id = {asked} is outside the vocabulary of {vocab_size}")
        if asked in used or (asked < tokenizer.size and asked not in tokenizer.special.values()):
            raise ConfigError(f"target.mask_token_id = {asked} is a token that the target reads or writes")
        return asked
    if tokenizer.size < vocab_size:
        return tokenizer.size
    free = [token for token in tokenizer.special.values() if token not in used and token < vocab_size]
    if not free:
        raise ConfigError("the target has no unused special token for MASK: give target.mask_token_id")
    return max(free)
