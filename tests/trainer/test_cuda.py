"""On an NVIDIA GPU: flex_attention forward and backward, the block mask's cost, compiled runs, shared GPUs."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from benchmarks.trainer_runs import write_toml
from tests.trainer.rows import packed_row
from tests.trainer.runs import (
    curve,
    environment,
    kill,
    kill_one,
    log_of,
    small_config,
    start_process,
    start_ranks,
    train_ranks,
    wait_for_step,
)
from trainer.anchors import draw_anchors
from trainer.attention import Backend, attend, make_mask
from trainer.errors import RankFailed
from trainer.mask import block_mask, dense_mask

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(560),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    # torch warns of its own imports, of TF32 left off, of an autograd thread that is the first to touch the GPU.
    pytest.mark.filterwarnings(
        "default::UserWarning:torch.*",
        "default::DeprecationWarning:torch.*",
        "error:.*flex_attention called without torch.compile.*",
    ),
]


@pytest.mark.parametrize("window", [None, 100], ids=["full", "window 100"])
def test_flex_equals_sdpa_forward_and_backward(window: int | None) -> None:
    batch = packed_row([300, 120, 60], padded_to=512)
    row = draw_anchors(batch, anchors=64, block_size=16, mask_token_id=0, seed=0)
    row.layout.anchor[20:36] = -1
    row = row.to(torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((1, 4, 1024, 64), (1, 2, 512 + 1024, 64), (1, 2, 512 + 1024, 64))
    inputs = [torch.randn(shape, generator=generator, device="cuda") for shape in shapes]
    outer = torch.randn(shapes[0], generator=generator, device="cuda")
    found = {}
    backends: tuple[Backend, ...] = ("sdpa", "flex")
    for backend in backends:
        query, key, value = leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = attend(query, key, value, make_mask(row.layout, window, backend))
        found[backend] = [out, *torch.autograd.grad(out, leaves, outer)]
    assert not found["flex"][0][:, :, 20 * 16 : 36 * 16].any()
    assert not found["flex"][1][:, :, 20 * 16 : 36 * 16].any()
    for mine, other in zip(found["flex"], found["sdpa"], strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)  # tf32 products in the kernel


@pytest.mark.parametrize("window", [None, 2048], ids=["full", "window 2048"])
def test_the_block_mask_of_a_large_row_costs_a_millisecond_and_50_mb(window: int | None) -> None:
    batch = packed_row([4096] * 12)
    layout = draw_anchors(batch, anchors=1024, block_size=16, mask_token_id=0, seed=0).to(torch.device("cuda")).layout
    for _ in range(3):
        mask = block_mask(layout, window, compiled=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        mask = block_mask(layout, window, compiled=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - before
    print(f"block mask, window {window}: {statistics.median(times):.3f} ms, {peak / 2**20:.1f} MiB")
    assert mask.seq_lengths == (16384, 49152 + 16384)
    assert peak < 50e6
    assert statistics.median(times) < 1.0


def test_the_block_mask_on_the_gpu_is_that_of_the_cpu() -> None:
    batch = packed_row([300, 120, 60], padded_to=512)
    layout = draw_anchors(batch, anchors=64, block_size=16, mask_token_id=0, seed=0).layout
    moved = type(layout)(layout.context, layout.block_size, layout.anchor.cuda(), layout.start.cuda())
    for window in (None, 64):
        assert torch.equal(dense_mask(layout, window), dense_mask(moved, window).cpu())
        here = block_mask(layout, window)
        for compiled in (False, True):
            there = block_mask(moved, window, compiled=compiled)
            assert torch.equal(here.to_dense(), there.to_dense().cpu())
            assert all(torch.equal(mine, other.cpu()) for mine, other in zip(parts(here), parts(there), strict=True))


def parts(mask: BlockMask) -> list[torch.Tensor]:
    """Its tables."""
    found = [mask.kv_num_blocks, mask.full_kv_num_blocks, mask.q_num_blocks, mask.full_q_num_blocks]
    lists = [mask.kv_indices, mask.full_kv_indices, mask.q_indices, mask.full_q_indices]
    return [part for part in [*found, *lists] if part is not None]


def cuda_config(folder: Path, run: str, **sections: dict[str, Any]) -> Any:
    compiled = {"device": "cuda", "compile_cache": str(folder / "cache"), "epochs": 20}
    sections["train"] = {**compiled, **sections.get("train", {})}
    sections["model"] = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, **sections.get("model", {})}
    return small_config(folder, run, **sections)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    return tmp_path_factory.mktemp("cuda")


def test_a_compiled_run_on_flex_equals_a_plain_one_on_sdpa(folder: Path) -> None:
    """On one device: a random target's weights are drawn on it, and differ between kinds of device."""
    train = {"dtype": "float32", "max_steps": 6}
    compiled = cuda_config(folder, "flex", train=train)
    plain = cuda_config(folder, "sdpa", train={**train, "compile": False, "attention": "sdpa"})
    for config in (compiled, plain):
        process = start_process(config)
        process.join()
        assert process.exitcode == 0
    assert all(line["attention"] == "flex" and line["recompiles"] == 0 for line in log_of(compiled))
    assert all(line["attention"] == "sdpa" for line in log_of(plain))
    for mine, other in zip(log_of(compiled), log_of(plain), strict=True):
        assert mine["loss_mean"] == pytest.approx(other["loss_mean"], rel=2e-3)


def test_a_run_killed_on_the_gpu_resumes_exactly(folder: Path) -> None:
    whole = cuda_config(folder, "whole", train={"max_steps": 40})
    killed = cuda_config(folder, "killed", train={"max_steps": 40}, checkpoint={"every": 6})
    process = start_process(whole)
    process.join()
    assert process.exitcode == 0
    process = start_process(killed)
    wait_for_step(killed, 15, [process])
    kill(process)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(log_of(killed)) < 40
    process = start_process(killed)
    process.join()
    assert process.exitcode == 0
    assert "resum" in (folder / "killed" / "run.log").read_text()
    assert curve(killed) == curve(whole)


def test_losses_do_not_depend_on_how_fast_kernels_seemed(folder: Path) -> None:
    """A run resumed without its cache compiles and times anew; here the slowest candidates win, then any.

    Sums over 64 numbers depend on the tiles of the kernel, those over 32 do not.
    """
    model = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "anchors": 32, "block_size": 16}
    curves = []
    for name, distort in (("timed", ""), ("inverse", "inverse"), ("random", "random")):
        cache = str(folder / f"{name}-cache")
        config = cuda_config(folder, name, model=model, train={"max_steps": 30, "compile_cache": cache})
        command = [sys.executable, "-m", "trainer", "train", str(write_toml(folder / f"{name}.toml", config))]
        environ = {**environment(), "TORCHINDUCTOR_DISTORT_BENCHMARKING_RESULT": distort}
        subprocess.run(command, env=environ, check=True)
        curves.append(curve(config))
    assert curves[0] == curves[1] == curves[2]


def test_ranks_share_a_gpu_through_host_memory(folder: Path) -> None:
    train = {"max_steps": 4, "rows_per_step": 2, "dtype": "float32"}
    ranks = cuda_config(folder, "ranks", train=train, topology={"targets": 1, "drafters": 2})
    alone = cuda_config(folder, "alone", train=train)
    assert train_ranks(ranks) == [0, 0, 0]
    process = start_process(alone)
    process.join()
    for mine, other in zip(log_of(ranks), log_of(alone), strict=True):
        assert mine["loss_mean"] == pytest.approx(other["loss_mean"], rel=1e-6)


several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")


@several
def test_a_target_and_a_drafter_on_two_gpus_train_as_one_process(folder: Path) -> None:
    """Over NCCL, in bf16, to the bit: one drafter's sums have one order."""
    train = {"max_steps": 20, "rows_per_step": 2}
    ranks = cuda_config(folder, "nccl", train=train)
    alone = cuda_config(folder, "one", train=train)
    assert train_ranks(ranks) == [0, 0]
    process = start_process(alone)
    process.join()
    assert process.exitcode == 0
    assert "over nccl" in (folder / "nccl" / "run.log").read_text()
    assert curve(ranks) == curve(alone)


@several
@pytest.mark.parametrize("victim", [0, 1], ids=["the drafter", "the target"])
def test_a_rank_killed_on_its_gpu_ends_the_job_and_the_resumed_run_is_exact(folder: Path, victim: int) -> None:
    name = f"victim-{victim}"
    config = cuda_config(folder, name, train={"max_steps": 60}, checkpoint={"every": 6})
    processes = start_ranks(config)
    wait_for_step(config, 15, processes)
    took, codes = kill_one(processes, victim)
    print(f"{name}: the job ended {took:.1f} s after the kill")
    assert took < 10
    assert codes.pop(victim) == -signal.SIGKILL
    assert codes == [RankFailed.exit_code]
    if victim:
        assert "rank 1" in (folder / name / "run.log").read_text()
    assert len(log_of(config)) < 60
    assert train_ranks(config) == [0, 0]
    whole = cuda_config(folder, f"whole-{victim}", train={"max_steps": 60})
    process = start_process(whole)
    process.join()
    assert curve(config) == curve(whole)
