"""A decoder-only transformer of the Llama and Qwen3 kind, for inference alone.

Layouts: activations [..., H], queries [..., heads, head_dim], keys and values [..., kv_heads, head_dim],
where the leading dimensions are one packed row [S] or sequences in step [R, N].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.shapes import TargetShape

_STEP = 64
"""Cached tokens are attended to in multiples of it, masked past each sequence's end: shapes and buffers repeat."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query, key, value) to the attention output, in the query's layout."""


class Layer(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm; ``qk_norm`` as in Qwen3."""

    def __init__(self, shape: TargetShape, qk_norm: bool) -> None:
        super().__init__()
        hidden, head_dim = shape.hidden_size, shape.head_dim
        self.head_dim = head_dim
        self.input_layernorm = nn.RMSNorm(hidden, shape.rms_norm_eps)
        self.q_proj = nn.Linear(hidden, shape.num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, shape.num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, shape.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head_dim, shape.rms_norm_eps) if qk_norm else nn.Identity()
        self.post_attention_layernorm = nn.RMSNorm(hidden, shape.rms_norm_eps)
        self.gate_proj = nn.Linear(hidden, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, hidden, bias=False)

    def forward(self, number: int, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        y = self.input_layernorm(x)
        heads = (*x.shape[:-1], -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(y).view(heads)), rotation)
        key = rotate(self.k_norm(self.k_proj(y).view(heads)), rotation)
        attended = attend(number, query, key, self.v_proj(y).view(heads))
        x = x + self.o_proj(attended.flatten(-2))
        y = self.post_attention_layernorm(x)
        return x + cast(Tensor, self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y)))


class Transformer(nn.Module):
    """Embedding, layers, final norm and LM head. Parameters start uninitialised: load or fill them."""

    def __init__(self, shape: TargetShape, *, qk_norm: bool) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, qk_norm) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Makes embedding and LM head one parameter where the shape says so; loading separates them."""
        if self.shape.tied:
            self.head.weight = self.embed.weight

    def run(
        self, tokens: Tensor, position: Tensor, attend: Attend, tapped: Sequence[int], *, whole: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The final hidden state, and the taps concatenated: [..., H] and [..., K * H].

        Unless ``whole``, stops after the deepest tapped layer, and the hidden state is None.
        """
        x = self.embed(tokens)
        rotation = rotation_of(position, self.shape, x.dtype)
        taps: dict[int, Tensor] = {}
        last = len(self.layers) if whole else max(tapped) + 1
        for number in range(last):
            x = self.layers[number](number, x, rotation, attend)
            if number in tapped:
                taps[number] = x
        return (self.norm(x) if whole else None), torch.cat([taps[number] for number in tapped], dim=-1)


def rotation_of(position: Tensor, shape: TargetShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RoPE's cosines and sines for each position, [..., 1, head_dim], computed in float32."""
    exponent = torch.arange(0, shape.head_dim, 2, device=position.device, dtype=torch.float32) / shape.head_dim
    angle = position[..., None, None].float() * shape.rope_theta**-exponent
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Applies RoPE in the layout of Hugging Face: element i is paired with i + head_dim / 2."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def attend_by_document(bounds: Sequence[int]) -> Attend:
    """Causal attention in a packed row, documents kept apart by construction: each is its own call.

    ``bounds`` are where documents begin, and the row's end.
    """

    def attend(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        for first, end in itertools.pairwise(bounds):
            q, k, v = (x[first:end].transpose(0, 1)[None] for x in (query, key, value))
            one = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out[first:end] = one[0].transpose(0, 1)
        return out

    return attend


def attend_varlen(bounds: Sequence[int], device: torch.device) -> Attend:
    """The same in one call a layer, by flash attention's variable-length kernel (CUDA, 16-bit types)."""
    from torch.nn.attention.varlen import varlen_attn  # torch.nn.attention.varlen exists from torch 2.10 on

    offsets = torch.tensor(bounds, dtype=torch.int32, device=device)
    longest = max(end - first for first, end in itertools.pairwise(bounds))

    def attend(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.shape[-2] // key.shape[-2]
        key, value = key.repeat_interleave(groups, -2), value.repeat_interleave(groups, -2)
        out = varlen_attn(query, key, value, offsets, offsets, longest, longest, window_size=(-1, 0))
        return cast(Tensor, out)

    return attend


class KeyValueCache:
    """Keys and values of R sequences, each with its own length.

    Entries past a sequence's length are never attended to, so that padding and rejected drafts need no
    erasing: the next tokens overwrite them.
    """

    def __init__(
        self, shape: TargetShape, rows: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        size = (shape.num_layers, 2, rows, capacity, shape.num_kv_heads, shape.head_dim)
        self._store = torch.zeros(size, device=device, dtype=dtype)
        self._row = torch.arange(rows, device=device)[:, None]
        self._groups = shape.num_heads // shape.num_kv_heads
        self.capacity = capacity
        self.lengths = [0] * rows

    def attend(self, new: int) -> tuple[Tensor, Attend]:
        """Positions [R, new] of the next tokens, and attention that stores and sees them.

        Raises ValueError where they do not fit.
        """
        end = max(self.lengths) + new
        if end > self.capacity:
            raise ValueError(f"a sequence of {end} tokens in a cache of {self.capacity}")
        end = min(self.capacity, -(-end // _STEP) * _STEP)
        device = self._store.device
        lengths = torch.tensor(self.lengths, device=device)
        position = lengths[:, None] + torch.arange(new, device=device)
        visible = torch.arange(end, device=device) <= position[..., None]
        # The queries that share keys stand below each other: SDPA's own grouping knows no fused kernel with a
        # mask, and would copy the whole cache once a query head.
        groups = self._groups
        visible = visible.repeat_interleave(groups, dim=1)[:, None]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._store[layer]
            keys[self._row, position] = key
            values[self._row, position] = value
            rows, _, heads, size = query.shape
            stacked = query.view(rows, new, heads // groups, groups, size).transpose(1, 2)
            out = functional.scaled_dot_product_attention(
                stacked.reshape(rows, heads // groups, new * groups, size),
                keys[:, :end].transpose(1, 2),
                values[:, :end].transpose(1, 2),
                attn_mask=visible,
            )
            return out.view(rows, heads // groups, new, groups, size).transpose(1, 2).reshape(query.shape)

        return position, attend
