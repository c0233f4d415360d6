"""The drafter's step against the FLOP floor, on one device: `python -m benchmarks drafter`.

Measures, in this order: the device's own bf16 matrix rate (the median of products of random 8192-matrices), the
block mask's build time and memory, cold and warm compile seconds, the step (forward + backward of a packed row,
random inputs), its peak memory, and the loss against the plain implementation in fp32. The floor is the FLOPs of
`trainer.flops` (LM head counted on all slots, as published floors do) over the measured matrix rate.

On a CPU it runs the same code at toy size, which checks the benchmark and measures nothing worth quoting.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.anchors import AnchorRow, draw_anchors
from trainer.attention import Backend, choose_backend, make_mask
from trainer.batch import PackedBatch
from trainer.compile import CompileCounts, CompiledDrafter, compile_strictly
from trainer.config import LayerType, ModelConfig, TrainConfig
from trainer.flops import drafter_flops
from trainer.loss import block_loss
from trainer.mask import Mask
from trainer.model import Drafter, DrafterShape
from trainer.shapes import SHAPES

GAMMA = 7.0


@dataclass
class Result:
    """One configuration's figures; seconds, bytes, FLOP/s."""

    shape: str
    context: int
    anchors: int
    device: str
    torch: str
    backend: str
    matrix_rate: float
    sustained_rate: float
    floor_s: float
    step_s: float
    over_floor: float
    over_sustained_floor: float
    context_tok_s: float
    forward_s: float
    loss_and_head_s: float
    peak_bytes: int
    mask_s: float
    mask_peak_bytes: int
    first_step_s: float
    graphs: int
    hits: int
    misses: int
    loss: float
    reference_loss: float | None
    relative_error: float | None


def timed(device: torch.device, act: Callable[[], object], repeats: int) -> float:
    """Median seconds of `act`, by events on a GPU and by the clock on a CPU."""
    taken = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            act()
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            act()
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def matrix_rate(device: torch.device) -> float:
    """bf16 FLOP/s of a large square product of random matrices (zeros run faster than data will)."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    return 2.0 * size**3 / timed(device, lambda: a @ b, 20)


def sustained_rate(device: torch.device, seconds: float = 2.0) -> float:
    """The same in the last third of a run as long as a timed benchmark: power limits show after a while."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    rates = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        rates.append(2.0 * size**3 / timed(device, lambda: a @ b, 20))
    return statistics.median(rates[-(len(rates) // 3 + 1) :])


@dataclass
class Problem:
    """Random inputs of one packed row of one document, all of it supervised."""

    drafter: Drafter
    head: Tensor
    taps: Tensor
    position: Tensor
    row: AnchorRow
    block: Tensor

    @classmethod
    def make(
        cls, shape: DrafterShape, context: int, anchors: int, device: torch.device, dtype: torch.dtype
    ) -> Problem:
        """The same numbers for the same sizes: weights, hidden states, tokens and anchors are seeded."""
        generator = torch.Generator().manual_seed(0)
        batch = PackedBatch(
            epoch=0,
            index=0,
            tokens=torch.randint(0, shape.vocab_size - 1, (context,), generator=generator),
            position=torch.arange(context),
            document=torch.zeros(context, dtype=torch.int32),
            supervised=torch.ones(context, dtype=torch.bool),
            sample_ids=(0,),
        )
        row = draw_anchors(
            batch, anchors=anchors, block_size=shape.block_size, mask_token_id=shape.vocab_size - 1, seed=0
        ).to(device)
        with device:
            drafter = Drafter(shape).to(dtype)
            drafter.init_weights(0)
            on_device = torch.Generator(device).manual_seed(1)
            size = (context, len(shape.taps) * shape.hidden_size)
            taps = torch.randn(size, generator=on_device, dtype=torch.float32).to(dtype)
            head = (torch.randn(shape.vocab_size, shape.hidden_size, generator=on_device) * 0.02).to(dtype)
        block = head[row.tokens.reshape(-1)]
        return cls(drafter, head, taps, batch.position.to(device), row, block)

    def masks(self, backend: Backend, *, compiled: bool = False) -> dict[LayerType, Mask]:
        """One mask a kind of layer."""
        shape = self.drafter.shape
        return {
            kind: make_mask(self.row.layout, shape.window(kind), backend, compiled=compiled)
            for kind in dict.fromkeys(shape.layer_types)
        }

    def forward(self, run: Callable[..., Tensor], masks: dict[LayerType, Mask]) -> Tensor:
        """[Q, H]."""
        return run(self.taps, self.position, self.block, self.row.position.reshape(-1), masks)

    def loss(self, hidden: Tensor, compiled: bool) -> Tensor:
        """The weighted mean cross-entropy."""
        totals = block_loss(hidden, self.head, self.row.labels, self.row.valid, GAMMA, compiled=compiled)
        return totals.numerator / totals.denominator


def reference_loss(problem: Problem) -> float:
    """The same row by the plain implementation in fp32: eager layers, all logits in slices."""
    drafter = Drafter(problem.drafter.shape).to(problem.taps.device)
    drafter.load_state_dict({name: value.float() for name, value in problem.drafter.state_dict().items()})
    wide = Problem(
        drafter, problem.head.float(), problem.taps.float(), problem.position, problem.row, problem.block.float()
    )
    backend: Backend = "flex" if problem.taps.is_cuda else "sdpa"
    with torch.no_grad():
        hidden = wide.forward(drafter, wide.masks(backend))
        return float(wide.loss(hidden, compiled=False))


def measure(name: str, context: int, anchors: int, device: torch.device, repeats: int, rate: float) -> Result:
    """One configuration, warmed and timed."""
    shape = DrafterShape.of(_model_config(name, anchors), SHAPES[name])
    cuda = device.type == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    backend = choose_backend(TrainConfig(), device)
    problem = Problem.make(shape, context, anchors, device, dtype)
    problem.masks(backend, compiled=cuda)
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    mask_s = timed(device, lambda: problem.masks(backend, compiled=cuda), 10)
    mask_peak = torch.cuda.max_memory_allocated() - before if cuda else 0
    masks = problem.masks(backend, compiled=cuda)
    run = CompiledDrafter(problem.drafter, enabled=cuda, shapes=1)

    def step() -> Tensor:
        problem.drafter.zero_grad(set_to_none=True)
        loss = problem.loss(problem.forward(run, masks), compiled=cuda)
        loss.backward()
        return loss.detach()

    began = time.perf_counter()
    step()
    if cuda:
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(2):
        step()
    run.freeze()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    step_s = timed(device, step, repeats)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    lasting = sustained_rate(device)
    loss = float(step())
    with torch.no_grad():
        hidden = problem.forward(run, masks) if not cuda else None
    forward_s = _forward_seconds(problem, run, masks, device, repeats)
    head_s = _head_seconds(problem, device, repeats, cuda)
    del hidden
    torch.compiler.set_stance("default")
    expected = reference_loss(problem)
    floor = drafter_flops(shape, context, anchors, head_on_anchors=True) / rate
    counts = CompileCounts.now()
    return Result(
        shape=name, context=context, anchors=anchors,
        device=torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        torch=torch.__version__, backend=backend, matrix_rate=rate,
        sustained_rate=lasting, floor_s=floor, step_s=step_s, over_floor=step_s / floor,
        over_sustained_floor=step_s / floor / rate * lasting,
        context_tok_s=context / step_s, forward_s=forward_s, loss_and_head_s=head_s,
        peak_bytes=peak, mask_s=mask_s, mask_peak_bytes=mask_peak, first_step_s=first, graphs=counts.graphs,
        hits=counts.hits, misses=counts.misses, loss=loss, reference_loss=expected,
        relative_error=abs(loss - expected) / abs(expected),
    )  # fmt: skip


def drafter_layers(name: str) -> dict[str, Any]:
    """The published drafter's layers for a target of this shape; a smaller drafter for `tiny`."""
    if name == "qwen3.6-27b":
        return {"layer_types": ("sliding_attention",) * 4 + ("full_attention",), "sliding_window": 2048}
    return {"num_layers": 2 if name == "tiny" else 5}


def _model_config(name: str, anchors: int) -> ModelConfig:
    return ModelConfig(anchors=anchors, **drafter_layers(name))


def _forward_seconds(
    problem: Problem, run: CompiledDrafter, masks: dict[LayerType, Mask], device: torch.device, repeats: int
) -> float:
    # With gradients: the no-grad graph would be another compile.
    return timed(device, lambda: problem.forward(run, masks), repeats)


def _head_seconds(problem: Problem, device: torch.device, repeats: int, compiled: bool) -> float:
    hidden = torch.randn_like(problem.block, requires_grad=True)
    return timed(device, lambda: problem.loss(hidden, compiled).backward(), repeats)


def main(arguments: list[str] | None = None) -> int:
    """Runs the named configurations and prints a table; `--out` keeps the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks drafter")
    parser.add_argument("--case", action="append", metavar="SHAPE:CONTEXT:ANCHORS")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="write a table of the kernels of the first case")
    options = parser.parse_args(arguments)
    compile_strictly()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = options.case or (
        ["qwen3-8b:4096:512", "qwen3.6-27b:4096:512"] if device.type == "cuda" else ["tiny:256:16"]
    )
    rate = matrix_rate(device)
    print(f"{device}: bf16 matrix rate {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}")
    results = []
    for case in cases:
        name, context, anchors = case.split(":")
        torch._dynamo.reset()
        result = measure(name, int(context), int(anchors), device, options.repeats, rate)
        results.append(result)
        print(
            f"{case:24} step {result.step_s * 1e3:8.1f} ms  floor {result.floor_s * 1e3:7.1f} ms  "
            f"ratio {result.over_floor:5.2f} "
            f"({result.over_sustained_floor:.2f} of {result.sustained_rate / 1e12:.0f} TFLOP/s sustained)  "
            f"{result.context_tok_s / 1e3:6.1f} Ktok/s  "
            f"forward {result.forward_s * 1e3:.1f} ms  head+loss {result.loss_and_head_s * 1e3:.1f} ms  "
            f"peak {result.peak_bytes / 2**30:.1f} GiB  mask {result.mask_s * 1e3:.2f} ms "
            f"{result.mask_peak_bytes / 2**20:.0f} MiB  first {result.first_step_s:.1f} s  "
            f"loss {result.loss:.4f} vs {result.reference_loss:.4f}",
            flush=True,
        )
        if options.profile and result is results[0]:
            profile(name, int(context), int(anchors), device, options.profile)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return 0


def profile(name: str, context: int, anchors: int, device: torch.device, out: Path) -> None:
    """Writes the kernels of three steps, by their device time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch._dynamo.reset()
    shape = DrafterShape.of(_model_config(name, anchors), SHAPES[name])
    cuda = device.type == "cuda"
    problem = Problem.make(shape, context, anchors, device, torch.bfloat16 if cuda else torch.float32)
    masks = problem.masks("flex" if cuda else "sdpa")
    run = CompiledDrafter(problem.drafter, enabled=cuda, shapes=1)
    for _ in range(2):
        problem.loss(problem.forward(run, masks), compiled=cuda).backward()
    activities = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profiler(activities=activities) as seen:
        for _ in range(3):
            problem.loss(problem.forward(run, masks), compiled=cuda).backward()
        if cuda:
            torch.cuda.synchronize()
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    out.write_text(seen.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    raise SystemExit(main())
