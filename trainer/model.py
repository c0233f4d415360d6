"""The DFlash drafter (arXiv 2602.06036): a few Qwen3-style layers that draft a block of tokens at once.

The target's hidden states after K tapped layers are concatenated, projected (``fc``) and normed
(``hidden_norm``) once; every layer makes keys and values of them with the projections it uses for the block
itself. Queries come from the block alone: slot 0 holds the anchor token, the others MASK. Embedding and LM
head are the target's, frozen, and no part of this module. Parameter names are those of the serving format.

Letters: S context tokens, Q = A * B draft tokens, K taps, H hidden size, h heads, g key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.attention import attend
from trainer.config import LayerType, ModelConfig
from trainer.errors import ConfigError
from trainer.mask import BlockLayout, Mask, dense_mask
from trainer.shapes import TargetShape, tap_layers


@dataclass(frozen=True)
class DrafterShape:
    """The drafter's sizes, all known."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    taps: tuple[int, ...]
    block_size: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int

    @classmethod
    def of(cls, config: ModelConfig, target: TargetShape) -> DrafterShape:
        """The configured sizes, the target's where none is configured; ConfigError where heads do not divide."""
        defaults = {
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_dim": target.head_dim,
            "intermediate_size": target.intermediate_size,
        } | target.drafter
        chosen = {name: getattr(config, name) or default for name, default in defaults.items()}
        if chosen["num_heads"] % chosen["num_kv_heads"]:
            raise ConfigError(
                f"the drafter's {chosen['num_heads']} heads do not divide among {chosen['num_kv_heads']} key/value "
                "heads: set model.num_heads and model.num_kv_heads"
            )
        return cls(
            **chosen,
            hidden_size=target.hidden_size,
            num_layers=config.num_layers,
            vocab_size=target.vocab_size,
            taps=tap_layers(target.num_layers, config.num_taps),
            block_size=config.block_size,
            layer_types=config.types(),
            sliding_window=config.sliding_window,
            rope_theta=config.rope_theta or target.rope_theta,
            rms_norm_eps=target.rms_norm_eps,
            max_position_embeddings=target.max_position_embeddings,
        )

    def window(self, kind: LayerType) -> int | None:
        """W of a layer of this type, None for full attention."""
        return self.sliding_window if kind == "sliding_attention" else None


Rotary = tuple[Tensor, Tensor]


def rotary(position: Tensor, head_dim: int, theta: float) -> Rotary:
    """Cosines and sines [N, d] fp32 of positions [N], halves repeated as Qwen3 pairs them."""
    exponent = torch.arange(0, head_dim, 2, device=position.device, dtype=torch.float32) / head_dim
    angle = position.float()[:, None] * theta**-exponent
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, by: Rotary) -> Tensor:
    """Applies RoPE to [1, heads, N, d], in fp32."""
    cos, sin = by
    wide = x.float()
    low, high = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """The block's queries over context and block."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        H, d = shape.hidden_size, shape.head_dim
        self.head_dim = d
        self.q_proj = nn.Linear(H, shape.num_heads * d, bias=False)
        self.k_proj = nn.Linear(H, shape.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(H, shape.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * d, H, bias=False)
        self.q_norm = nn.RMSNorm(d, shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(d, shape.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """[N, heads * d] -> [1, heads, N, d]."""
        return x.view(x.shape[0], -1, self.head_dim).transpose(0, 1).unsqueeze(0)

    def keys_values(self, x: Tensor, at: Rotary) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values of [N, H] context or block tokens, each [1, g, N, d]."""
        key = self.k_norm(self.k_proj(x).view(x.shape[0], -1, self.head_dim))
        return rotate(key.transpose(0, 1).unsqueeze(0), at), self.heads(self.v_proj(x))

    def forward(self, x: Tensor, context: tuple[Tensor, Tensor], at: Rotary, mask: Mask) -> Tensor:
        query = self.q_norm(self.q_proj(x).view(x.shape[0], -1, self.head_dim))
        query = rotate(query.transpose(0, 1).unsqueeze(0), at)
        key, value = self.keys_values(x, at)
        out = attend(query, torch.cat((context[0], key), 2), torch.cat((context[1], value), 2), mask)
        return self.o_proj(out.squeeze(0).transpose(0, 1).reshape(x.shape[0], -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One pre-norm decoder layer. The context passes through no norm of the layer's own."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, context: tuple[Tensor, Tensor], at: Rotary, mask: Mask) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, at, mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


@dataclass
class Cache:
    """Keys and values of the context for every layer, for one document of at most ``capacity`` tokens."""

    keys: list[Tensor]  # a layer: [1, g, capacity, d]
    values: list[Tensor]
    capacity: int
    length: int = 0


class Drafter(nn.Module):
    """Target hidden states and a block's embeddings in, the block's final hidden states out.

    ``forward`` drafts all blocks of a packed row (training); ``append`` and ``draft`` do one block at a time
    on a cache (inference). Both run the same layers and the same mask predicate.
    """

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.taps) * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Norms 1, all else normal with deviation 0.02; the same on every rank of a device type."""
        generator = torch.Generator(self.fc.weight.device).manual_seed(seed)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)

    def stack(self) -> list[tuple[Layer, LayerType]]:
        """The layers with their attention types."""
        return list(zip(cast("list[Layer]", list(self.layers)), self.shape.layer_types, strict=True))

    def rotary(self, position: Tensor) -> Rotary:
        """RoPE tables of positions [N]."""
        return rotary(position, self.shape.head_dim, self.shape.rope_theta)

    def context(self, taps: Tensor) -> Tensor:
        """[N, K * H] tapped hidden states -> [N, H], shared by all layers."""
        return self.hidden_norm(self.fc(taps))  # type: ignore[no-any-return]

    def forward(
        self,
        taps: Tensor,  # [S, K * H]
        position: Tensor,  # [S]
        block: Tensor,  # [Q, H] embeddings of the block tokens
        block_position: Tensor,  # [Q]
        masks: Mapping[LayerType, Mask],
    ) -> Tensor:
        """[Q, H] after the final norm; rows of empty blocks are meaningless and carry no weight."""
        return self.body(taps, self.rotary(position), block, self.rotary(block_position), masks)

    def body(
        self, taps: Tensor, at_context: Rotary, block: Tensor, at_block: Rotary, masks: Mapping[LayerType, Mask]
    ) -> Tensor:
        """``forward`` behind the RoPE tables: the part that is compiled.

        Compiled together, every kernel that rotates would compute its own powers and sines again, each layer
        and both ways; as inputs the tables are read.
        """
        context = self.context(taps)
        for layer, kind in self.stack():
            pair = layer.self_attn.keys_values(context, at_context)
            block = layer(block, pair, at_block, masks[kind])
        return self.norm(block)  # type: ignore[no-any-return]

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache on the model's device, in its dtype."""
        weight = self.fc.weight
        size = (1, self.shape.num_kv_heads, capacity, self.shape.head_dim)
        keys, values = ([weight.new_empty(size) for _ in self.layers] for _ in range(2))
        return Cache(keys, values, capacity)

    @torch.no_grad()
    def append(self, cache: Cache, taps: Tensor) -> None:
        """Adds the next tokens' hidden states, [n, K * H], at positions cache.length and on."""
        low, high = cache.length, cache.length + taps.shape[0]
        if high > cache.capacity:
            raise ValueError(f"{high} tokens in a cache of {cache.capacity}")
        context = self.context(taps)
        at = self.rotary(torch.arange(low, high, device=taps.device))
        for number, (layer, _) in enumerate(self.stack()):
            key, value = layer.self_attn.keys_values(context, at)
            cache.keys[number][:, :, low:high] = key
            cache.values[number][:, :, low:high] = value
        cache.length = high

    @torch.no_grad()
    def draft(self, cache: Cache, block: Tensor) -> Tensor:
        """[B, H] embeddings of one block whose anchor stands at position ``cache.length`` -> [B, H].

        The cache holds exactly the tokens before the anchor. B may be less than the trained block size.
        """
        slots, anchor = block.shape[0], cache.length
        at = self.rotary(torch.arange(anchor, anchor + slots, device=block.device))
        for number, (layer, kind) in enumerate(self.stack()):
            window = self.shape.window(kind)
            low = 0 if window is None else max(0, anchor - (window - 1))
            # The mask depends on distances alone, so the window's part of the cache is a context of its own.
            here = torch.tensor([anchor - low], device=block.device, dtype=torch.int32)
            layout = BlockLayout(anchor - low, slots, here, torch.zeros_like(here))
            pair = (cache.keys[number][:, :, low:anchor], cache.values[number][:, :, low:anchor])
            block = layer(block, pair, at, dense_mask(layout, window))
        return self.norm(block)  # type: ignore[no-any-return]
