"""Small drafters and features for the tests."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.anchors import AnchorRow
from trainer.attention import Backend, make_mask
from trainer.config import LayerType, ModelConfig
from trainer.model import Drafter, DrafterShape
from trainer.shapes import TargetShape

TARGET = TargetShape("test", 32, 8, 4, 2, 8, 64, 64, 1e4, 4096)
FULL: tuple[LayerType, ...] = ("full_attention",)
SLIDING: tuple[LayerType, ...] = ("sliding_attention", "full_attention", "sliding_attention")


def small_drafter(
    layer_types: tuple[LayerType, ...] = SLIDING, *, block_size: int = 4, window: int = 6, seed: int = 0
) -> Drafter:
    """Three layers at most, in fp32; weights large enough that attention matters."""
    config = ModelConfig(
        block_size=block_size,
        num_layers=len(layer_types),
        num_taps=2,
        layer_types=layer_types,
        sliding_window=window if "sliding_attention" in layer_types else None,
    )
    drafter = Drafter(DrafterShape.of(config, TARGET))
    drafter.init_weights(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return drafter


def embedding(seed: int = 9) -> Tensor:
    """[V, H]."""
    return torch.randn(TARGET.vocab_size, TARGET.hidden_size, generator=torch.Generator().manual_seed(seed))


def random_taps(length: int, seed: int = 3) -> Tensor:
    """[S, 2 * H]."""
    return torch.randn(length, 2 * TARGET.hidden_size, generator=torch.Generator().manual_seed(seed))


def masks_of(drafter: Drafter, row: AnchorRow, backend: Backend = "sdpa") -> dict[LayerType, object]:
    """A mask for each layer type in use."""
    shape = drafter.shape
    return {kind: make_mask(row.layout, shape.window(kind), backend) for kind in set(shape.layer_types)}


def run_blocks(drafter: Drafter, taps: Tensor, position: Tensor, row: AnchorRow) -> Tensor:
    """[A, B, H]: the training forward of a row."""
    block = embedding()[row.tokens.reshape(-1)]
    out = drafter(taps, position, block, row.position.reshape(-1), masks_of(drafter, row))
    return out.view(*row.tokens.shape, -1)
