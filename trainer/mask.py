"""Who may look at whom: one predicate, used for the dense mask and for flex_attention's BlockMask.

Keys are the S context tokens of a packed row followed by the Q = A * B draft tokens; queries are the draft
tokens alone. Slot k of the block anchored at row index p sees

- context tokens of its own document strictly before p (in a sliding layer of window W: from p + k - (W - 1));
- its own block (in a sliding layer: slots up to k), and never another block.

Documents are contiguous in a row, so "own document, before the anchor" is one interval [lower, p). A block
without an anchor sees nothing: its mask rows are all False and attention gives 0 for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from trainer.static_graph import static_graph

FLEX_BLOCK = 128
"""Side of flex_attention's own blocks, in tokens."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Tensor | BlockMask
Tables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class BlockLayout:
    """All that the mask depends on."""

    context: int  # S
    block_size: int  # B
    anchor: Tensor  # [A] int32, row index; -1: an empty block
    start: Tensor  # [A] int32, row index of the first token of the anchor's document; any value when empty

    @property
    def queries(self) -> int:
        """Q."""
        return int(self.anchor.shape[0]) * self.block_size

    def bounds(self, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Each query's context interval [lower, upper) and its block (-1: none); three [Q] int32 tensors."""
        query = torch.arange(self.queries, device=self.anchor.device, dtype=torch.int32)
        block = query // self.block_size
        live = self.anchor >= 0
        upper = torch.where(live, self.anchor, 0)[block]
        lower = torch.where(live, self.start, 0)[block]
        if window is not None:
            lower = torch.maximum(lower, upper + query % self.block_size - (window - 1))
        return torch.minimum(lower, upper), upper, torch.where(live[block], block, -1)


def mask_mod(layout: BlockLayout, window: int | None = None) -> MaskMod:
    """The predicate, in flex_attention's form ``(batch, head, query, key) -> visible``.

    ``window`` is W of a sliding layer, None in a full one.
    """
    lower, upper, block = layout.bounds(window)
    context, block_size = layout.context, layout.block_size

    def visible_full(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        before = (kv >= lower[q]) & (kv < upper[q])  # upper <= context: never a draft key
        own = (kv >= context) & ((kv - context) // block_size == block[q])
        return before | own

    def visible_sliding(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return visible_full(b, h, q, kv) & (kv - context <= q)

    return visible_full if window is None else visible_sliding


def dense_mask(layout: BlockLayout, window: int | None = None) -> Tensor:
    """[Q, S + Q] bool, True where visible: for SDPA on CPU, and small cases."""
    device = layout.anchor.device
    zero = torch.zeros((), device=device, dtype=torch.int32)
    query = torch.arange(layout.queries, device=device, dtype=torch.int32)[:, None]
    key = torch.arange(layout.context + layout.queries, device=device, dtype=torch.int32)[None, :]
    return mask_mod(layout, window)(zero, zero, query, key)


def block_mask(layout: BlockLayout, window: int | None = None, *, compiled: bool = False) -> BlockMask:
    """flex_attention's BlockMask, made from the anchors' intervals.

    ``create_block_mask`` would evaluate the predicate on all Q * (S + Q) pairs: gigabytes at a 49152-token
    row, and minutes to compile. One mask serves all heads, for a mask a head is what runs out of memory.
    ``compiled``: its some forty small operations in a few kernels.
    """
    tables = (compiled_tables() if compiled else block_tables)(
        layout.anchor, layout.start, layout.context, layout.block_size, window
    )
    # from_kv_blocks would derive the transposed half through vmap, which costs more than all the rest here.
    return BlockMask(
        (layout.queries, layout.context + layout.queries),
        *tables,
        BLOCK_SIZE=(FLEX_BLOCK, FLEX_BLOCK),
        mask_mod=mask_mod(layout, window),
    )


def block_tables(anchor: Tensor, start: Tensor, context: int, block_size: int, window: int | None) -> Tables:
    """Counts and numbers of the key blocks that each query block sees in part and whole, then the transposed four.

    Counts are [1, 1, rows], numbers [1, 1, rows, columns], int32, in the order of ``BlockMask``.
    """
    layout = BlockLayout(context, block_size, anchor, start)
    lower, upper, block = layout.bounds(window)
    query = torch.arange(layout.queries, device=anchor.device, dtype=torch.int32)
    draft_low = context + block * block_size
    draft_high = draft_low + block_size
    if window is not None:
        draft_high = torch.minimum(draft_high, context + query + 1)
    draft_high = torch.where(block >= 0, draft_high, draft_low)
    columns = torch.arange(-(-(context + layout.queries) // FLEX_BLOCK), device=anchor.device, dtype=torch.int16)
    some_context, all_context = _touched(lower, upper, columns)
    some_draft, all_draft = _touched(draft_low, draft_high, columns)
    some = _by_query_block(some_context | some_draft, fill=False).any(dim=1)
    # Rows that pad the last query block never run, so they do not keep a block from being full.
    every = _by_query_block(all_context | all_draft, fill=True).all(dim=1)
    partial = some & ~every
    return *_ordered(partial), *_ordered(every), *_ordered(partial.t()), *_ordered(every.t())


@functools.cache
def compiled_tables() -> Callable[..., Tables]:
    """``block_tables``, fused by the compiler."""
    return static_graph(block_tables)


def _touched(low: Tensor, high: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Which key blocks each query's interval [low, high) touches, and which it covers; two [Q, columns] bool.

    int16 block numbers keep the largest temporary at a byte or two an entry: 8 MB at Q = 16384, S = 49152.
    """

    def number(position: Tensor) -> Tensor:
        return position.to(torch.int16)[:, None]

    filled = low < high
    first, last = number(low // FLEX_BLOCK), number((high + FLEX_BLOCK - 1) // FLEX_BLOCK)
    some = (columns >= first) & (columns < last) & filled[:, None]
    first, last = number((low + FLEX_BLOCK - 1) // FLEX_BLOCK), number(high // FLEX_BLOCK)
    return some, (columns >= first) & (columns < last)


def _by_query_block(pairs: Tensor, *, fill: bool) -> Tensor:
    """[Q, columns] -> [query blocks, FLEX_BLOCK, columns]."""
    rows, columns = pairs.shape
    missing = -rows % FLEX_BLOCK
    if missing:
        pairs = torch.cat([pairs, pairs.new_full((missing, columns), fill)])
    return pairs.view(-1, FLEX_BLOCK, columns)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] bool -> the counts [1, 1, rows] and column numbers [1, 1, rows, columns] flex wants.

    The marked columns first, then the others, both ascending: a partition by two running counts, for a sort
    costs more than all the rest.
    """
    marked = blocks.cumsum(dim=-1)
    count = marked[:, -1]
    place = torch.where(blocks, marked, count[:, None] + (~blocks).cumsum(dim=-1)) - 1
    column = torch.arange(blocks.shape[1], device=blocks.device, dtype=torch.int32).expand_as(blocks)
    index = torch.zeros_like(column, memory_format=torch.contiguous_format).scatter(-1, place, column)
    return count.to(torch.int32)[None, None], index[None, None]
