"""One packed row through the drafter, forward and backward, and the sums that a step adds up over rows and ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.anchors import AnchorRow, draw_anchors
from trainer.attention import Backend, make_mask
from trainer.batch import PackedBatch, TargetFeatures
from trainer.compile import CompiledDrafter
from trainer.flops import drafter_flops, target_flops
from trainer.loss import Totals, block_loss
from trainer.mask import BlockLayout
from trainer.model import Drafter, DrafterShape
from trainer.source import Facts, Supply


@dataclass
class RowRunner:
    """Runs rows through the drafter; gradients of the *summed* loss stay in the parameters."""

    drafter: Drafter
    compiled: CompiledDrafter
    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H]
    backend: Backend
    anchors: int
    mask_token_id: int
    seed: int
    gamma: float

    def draw(self, batch: PackedBatch) -> AnchorRow:
        """The row's anchors, on the drafter's device."""
        row = draw_anchors(
            batch,
            anchors=self.anchors,
            block_size=self.drafter.shape.block_size,
            mask_token_id=self.mask_token_id,
            seed=self.seed,
        )
        return row.to(self.embedding.device)

    def run(self, features: TargetFeatures, row: AnchorRow) -> Totals:
        """Forward and backward."""
        shape, device = self.drafter.shape, self.embedding.device
        masks = {
            kind: make_mask(row.layout, shape.window(kind), self.backend, compiled=self.compiled.enabled)
            for kind in dict.fromkeys(shape.layer_types)
        }
        hidden = self.compiled(
            features.taps.to(device, self.embedding.dtype),
            features.batch.position.to(device),
            F.embedding(row.tokens.reshape(-1), self.embedding),
            row.position.reshape(-1),
            masks,
        )
        totals = block_loss(hidden, self.head, row.labels, row.valid, self.gamma, compiled=self.compiled.enabled)
        totals.numerator.backward()  # type: ignore[no-untyped-call]
        return totals

    def warm(self, length: int) -> float:
        """Compiles forward and backward for rows of ``length`` tokens; returns the seconds it took.

        Its gradients are of made-up values: the caller drops them.
        """
        began = time.perf_counter()
        shape, device = self.drafter.shape, self.embedding.device
        blank = torch.zeros(length, dtype=torch.int64)
        batch = PackedBatch(0, 0, blank, torch.arange(length), blank.int(), blank.bool(), (0,))
        taps = torch.zeros(length, len(shape.taps) * shape.hidden_size, dtype=self.embedding.dtype, device=device)
        blocks = torch.zeros(self.anchors, shape.block_size, dtype=torch.int64)
        start = torch.zeros(self.anchors, dtype=torch.int32)
        layout = BlockLayout(length, shape.block_size, start, start)
        row = AnchorRow(layout, blocks, blocks, blocks[:, 1:], blocks[:, 1:] == 0, self.anchors, 0)
        self.run(TargetFeatures(batch, taps), row.to(device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began


class Tally:
    """What a step's rows sum to: one vector, so that all ranks need one all-reduce.

    Besides the loss sums it holds counts, times and queue lengths, and whether any rank was asked to stop.
    """

    COUNTS = ("tokens", "anchors", "documents", "dropped", "flops", "wait", "target", "stop", "recompiles")
    CACHE = ("hits", "misses")
    PER_DRAFTER = ("numerator", "denominator", "q_hs", "memory")

    def __init__(self, shape: DrafterShape, facts: Facts, targets: int, drafters: int, drafter: int) -> None:
        self.shape, self.facts, self.drafter = shape, facts, drafter
        self.counts = dict.fromkeys((*self.COUNTS, *self.CACHE), 0.0)
        self.own = dict.fromkeys(self.PER_DRAFTER, 0.0)
        self.q_pre, self.q_pre_seen = [0.0] * targets, [0.0] * targets
        self.drafters = drafters
        self.sums: Tensor | None = None

    def add(self, supply: Supply, row: AnchorRow, totals: Totals, target: int, *, own_target: bool) -> None:
        """Adds one row. ``own_target``: its target ran in this process, so its FLOPs are part of the step."""
        packed = totals.pack()
        self.sums = packed if self.sums is None else self.sums + packed
        batch = supply.features.batch
        self.counts["tokens"] += int((batch.document >= 0).sum())
        self.counts["anchors"] += row.live
        self.counts["documents"] += len(batch.sample_ids)
        self.counts["dropped"] += row.dropped_documents
        self.counts["wait"] += supply.wait
        self.counts["target"] += supply.target
        keys = visible_means(row.layout, self.shape)
        self.counts["flops"] += drafter_flops(self.shape, batch.length, row.live, keys=keys)
        if own_target:
            self.counts["flops"] += target_flops(
                self.facts.shape, self.facts.taps[-1], batch.length, float((batch.position + 1).sum())
            )
        self.q_pre[target] += supply.q_pre
        self.q_pre_seen[target] += 1

    def pack(self) -> Tensor:
        """The vector [n] float64 to be summed over drafters."""
        if self.sums is None:
            raise ValueError("a step without rows")
        own = torch.zeros(self.drafters, len(self.PER_DRAFTER), dtype=torch.float64)
        self.own["numerator"], self.own["denominator"] = self.sums[:2].tolist()
        own[self.drafter] = torch.tensor(list(self.own.values()), dtype=torch.float64)
        flat = torch.tensor([*self.counts.values(), *self.q_pre, *self.q_pre_seen], dtype=torch.float64)
        return torch.cat([self.sums, torch.cat([flat, own.reshape(-1)]).to(self.sums.device)])

    def unpack(self, summed: Tensor) -> Summary:
        """Reads the summed vector."""
        size = 4 + 2 * (self.shape.block_size - 1)
        totals = Totals.unpack(summed[:size].cpu())
        values = summed[size:].tolist()
        counts = dict(zip(self.counts, values, strict=False))
        values = values[len(counts) :]
        targets = len(self.q_pre)
        pairs = zip(values[:targets], values[targets : 2 * targets], strict=True)
        q_pre = [round(waiting / seen) if seen else None for waiting, seen in pairs]
        columns = torch.tensor(values[2 * targets :]).double().view(self.drafters, -1).t().tolist()
        numerators, denominators, q_hs, memory = columns
        losses = [n / d if d > 0 else 0.0 for n, d in zip(numerators, denominators, strict=True)]
        return Summary(totals, counts, losses, q_pre, [round(q) for q in q_hs], int(max(memory)))


@dataclass(frozen=True)
class Summary:
    """A step's sums over all drafters."""

    totals: Totals
    counts: dict[str, float]
    losses: list[float]  # one a drafter
    q_pre: list[int | None]  # one a target; None: no row of this step came from it
    q_hs: list[int]  # one a drafter
    peak_memory: int


def visible_means(layout: BlockLayout, shape: DrafterShape) -> list[float]:
    """Keys that a live query sees on average, one a layer."""
    live = (layout.anchor >= 0).repeat_interleave(layout.block_size)
    means = {}
    for kind in dict.fromkeys(shape.layer_types):
        lower, upper, _ = layout.bounds(shape.window(kind))
        seen = (upper - lower)[live].double().mean() if bool(live.any()) else torch.zeros(())
        means[kind] = float(seen) + layout.block_size
    return [means[kind] for kind in shape.layer_types]
