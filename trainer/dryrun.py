"""``train --dry-run``: shapes, memory, FLOPs and the plan, from sizes alone; nothing is allocated or trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from trainer.config import Config
from trainer.data.packing import row_lengths
from trainer.flops import drafter_flops, drafter_parameters, peak_flops, target_flops
from trainer.loss import chunk_rows
from trainer.mask import FLEX_BLOCK
from trainer.model import DrafterShape
from trainer.shapes import TargetShape, shape_of
from trainer.source import Plan
from trainer.topology import choose_dtype

REFERENCE = "H200"
"""The device whose nominal peak turns FLOPs into seconds."""


@dataclass(frozen=True)
class Sizes:
    """Everything that the estimates follow from."""

    config: Config
    target: TargetShape
    drafter: DrafterShape
    length: int  # S of the longest row
    width: int  # bytes of a drafter's number

    @property
    def queries(self) -> int:
        """Q."""
        return self.config.model.anchors * self.drafter.block_size

    def memory(self) -> dict[str, int]:
        """Bytes on a drafter's device, by what they hold. The last two are estimates from above."""
        H, V, Q, S = self.drafter.hidden_size, self.target.vocab_size, self.queries, self.length
        d, h, g = self.drafter.head_dim, self.drafter.num_heads, self.drafter.num_kv_heads
        parameters = drafter_parameters(self.drafter)
        heads = 1 if self.target.tied else 2
        # Kept for backward, a layer: the residual twice, both norms' outputs, queries and keys before and after
        # norm and rotation, values, attention's output with its row sums, and the MLP's gate, up and product.
        a_query = self.width * (4 * H + 4 * h * d + 3 * self.drafter.intermediate_size) + 4 * h
        keys = self.width * 4 * g * d * (S + Q)
        layers = self.drafter.num_layers * (Q * a_query + keys)
        context = self.width * S * (len(self.drafter.taps) + 2) * H
        predicted = self.config.model.anchors * (self.drafter.block_size - 1)
        return {
            "drafter": self.width * parameters,
            "embedding and LM head (frozen)": self.width * heads * V * H,
            "gradients": 4 * parameters + (self.width * parameters if self.width < 4 else 0),
            "AdamW moments": 8 * parameters,
            "fp32 master weights": 4 * parameters if self.width < 4 else 0,
            "activations kept for backward": layers + context + 2 * self.width * Q * H,
            "logits of a chunk": 3 * 4 * chunk_rows(predicted, V, "cuda") * V,
        }


def sizes_of(config: Config) -> Sizes:
    """The configured sizes; ConfigError where they do not fit together or cannot be told."""
    target = shape_of(config.target)
    drafter = DrafterShape.of(config.model, target)
    length = row_lengths(config.data.token_budget, config.data.length_buckets)[-1]
    # Planned for a GPU, whatever this machine has, unless the configuration says CPU.
    device = torch.device("cpu" if config.train.device == "cpu" else "cuda")
    return Sizes(config, target, drafter, length, choose_dtype(config.train.dtype, device).itemsize)


def show(config: Config, console: Console | None = None) -> None:
    """Prints everything."""
    console = console or Console()
    sizes = sizes_of(config)
    for table in (shapes_table(sizes), memory_table(sizes), flops_table(sizes), plan_table(sizes)):
        console.print(table)


def shapes_table(sizes: Sizes) -> Table:
    """What passes through a step."""
    S, Q, H = sizes.length, sizes.queries, sizes.drafter.hidden_size
    keys = S + Q
    blocks = f"{-(-Q // FLEX_BLOCK)} x {-(-keys // FLEX_BLOCK)}"
    model, shape, target = sizes.config.model, sizes.drafter, sizes.target
    table = Table("shapes", "", show_header=True, title="Shapes of the longest row")
    windows = ", ".join(str(shape.window(kind) or "full") for kind in shape.layer_types)
    rows = {
        "target": f"{target.name}: {target.num_layers} layers, H {H}, vocabulary {target.vocab_size}",
        "taps (layers, 0-based)": ", ".join(map(str, shape.taps)),
        "hidden states [S, K * H]": f"[{S}, {len(shape.taps) * H}]",
        "draft tokens Q = A x B": f"{model.anchors} x {shape.block_size} = {Q}",
        "anchors a token": f"{model.anchors / S:.4f}",
        "heads, key/value heads, head size": f"{shape.num_heads}, {shape.num_kv_heads}, {shape.head_dim}",
        "windows of the layers": windows,
        "attention [Q, S + Q]": f"[{Q}, {keys}], block mask {blocks}",
        "predicted positions a row": f"{model.anchors * (shape.block_size - 1)}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def memory_table(sizes: Sizes) -> Table:
    """GiB on a drafter's device."""
    table = Table("on a drafter's device", "GiB", title="Memory")
    table.columns[1].justify = "right"
    memory = sizes.memory()
    for name, value in (*memory.items(), ("sum", sum(memory.values()))):
        table.add_row(name, f"{value / 2**30:.2f}", end_section=name == list(memory)[-1])
    return table


def flops_table(sizes: Sizes) -> Table:
    """TFLOPs of a row, and the least time they take."""
    peak = peak_flops(REFERENCE) or 1.0
    drafter = drafter_flops(sizes.drafter, sizes.length, sizes.config.model.anchors)
    document = min(sizes.config.data.max_length, sizes.length)
    target = target_flops(sizes.target, sizes.drafter.taps[-1], sizes.length, sizes.length * document / 2)
    table = Table("one row", "TFLOPs", f"ms at the {REFERENCE}'s {peak / 1e12:.0f} TFLOP/s", title="Work")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, flops in (("drafter, forward and backward", drafter), ("target up to the deepest tap", target)):
        table.add_row(name, f"{flops / 1e12:.1f}", f"{flops / peak * 1e3:.0f}")
    table.add_row("targets for each drafter that keep it busy", "", f"{target / drafter:.2f}")
    return table


def plan_table(sizes: Sizes) -> Table:
    """Ranks, rows and steps, as far as the data can be counted here."""
    config = sizes.config
    table = Table("", "", show_header=False, title="Plan")
    topology = config.topology
    alone = topology.targets == topology.drafters == 1
    world = (
        "1 process, or 1 target and 1 drafter"
        if alone
        else f"{topology.targets} targets, {topology.drafters} drafters"
    )
    table.add_row("ranks", world)
    table.add_row("drafter parameters", f"{drafter_parameters(sizes.drafter) / 1e6:.1f} M")
    table.add_row("rows a step", str(config.rows_per_step()))
    table.add_row("AdamW", f"lr {config.train.lr:g}, warm-up {config.train.warmup:g}, clip {config.train.clip:g}")
    table.add_row("slot decay gamma", f"{config.gamma():g}")
    missing = [path for path in config.data.paths if not Path(path).is_file()]
    if missing or not config.data.paths:
        table.add_row("steps", f"not countable here: {', '.join(missing) or 'data.paths'} missing")
        return table
    from trainer.data import open_dataset
    from trainer.targets import open_tokenizer

    dataset = open_dataset(config.data, open_tokenizer(config.target))
    rows = tuple(dataset.num_batches(epoch) for epoch in range(config.train.epochs))
    plan = Plan(rows, config.rows_per_step(), config.train.max_steps)
    table.add_row("epochs", plan.epochs)
    table.add_row("steps", str(plan.total_steps))
    return table
