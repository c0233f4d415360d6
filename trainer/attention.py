"""Which attention runs: compiled flex_attention, or SDPA with the dense mask of the same predicate.

flex_attention has no backward on CPU, so CPU training uses SDPA and its log says so. Run without
``torch.compile``, flex_attention materialises all scores and merely warns once: here it is compiled or an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.mask import BlockLayout, Mask, block_mask, dense_mask
from trainer.static_graph import static_graph

Backend = Literal["sdpa", "flex"]
Flex = Callable[..., Tensor]


def choose_backend(config: TrainConfig, device: torch.device) -> Backend:
    """The backend that trains on ``device``; ConfigError where the configured one cannot."""
    if config.attention == "auto":
        return "flex" if device.type == "cuda" else "sdpa"
    if config.attention == "flex" and device.type != "cuda":
        raise ConfigError("train.attention = 'flex' needs CUDA: flex_attention has no backward on CPU")
    return config.attention


def make_mask(layout: BlockLayout, window: int | None, backend: Backend, *, compiled: bool = False) -> Mask:
    """The mask in the form that ``backend`` takes; ``compiled``: flex's by compiled code."""
    return block_mask(layout, window, compiled=compiled) if backend == "flex" else dense_mask(layout, window)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Attention of [1, heads, Q, d] queries over [1, kv heads, S + Q, d] keys; the mask picks the backend.

    Query rows that see nothing come out as exact zeros and pass no gradient.
    """
    if isinstance(mask, BlockMask):
        flex = cast("Flex", flex_attention) if torch.compiler.is_compiling() else compiled_flex()
        return flex(query, key, value, block_mask=mask, enable_gqa=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


@functools.cache
def compiled_flex() -> Flex:
    """flex_attention by itself, compiled: for callers outside a compiled model."""
    return static_graph(flex_attention)
