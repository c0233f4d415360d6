"""Compiled steps: counted, forbidden after warm-up, never eager in silence, cold starts without a race."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from benchmarks.trainer_runs import write_toml
from tests.trainer.drafters import FULL, embedding, masks_of, random_taps, small_drafter
from tests.trainer.rows import packed_row
from tests.trainer.runs import (
    PRELOAD,
    environment,
    log_of,
    small_config,
    start_process,
    train_here,
    train_ranks,
)
from trainer.anchors import draw_anchors
from trainer.compile import CACHE_VARIABLE, CompiledDrafter, compile_strictly, private_cache, shorten_tracing
from trainer.config import Config
from trainer.errors import CompileError
from trainer.loss import block_loss
from trainer.mask import block_tables, compiled_tables

pytestmark = pytest.mark.timeout(280)


def arguments(drafter: Any, length: int) -> tuple[Any, ...]:
    batch = packed_row([length])
    row = draw_anchors(batch, anchors=8, block_size=4, mask_token_id=63, seed=0)
    block = embedding()[row.tokens.reshape(-1)]
    return random_taps(length), batch.position, block, row.position.reshape(-1), masks_of(drafter, row)


def _met(work: Callable[..., None], cache: Path, queue: Any, *rest: Any) -> None:
    os.environ[CACHE_VARIABLE] = str(cache)
    try:
        work(*rest)
        queue.put("nothing")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def in_process(work: Callable[..., None], cache: Path, *rest: Any) -> str:
    """What ``work`` raises in a process of its own: compilation leaves its marks on the whole process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    queue = context.Queue()
    process = context.Process(target=_met, args=(work, cache, queue, *rest))
    process.start()
    result = str(queue.get(timeout=200))
    process.join()
    return result


def _new_shape_after_warm_up() -> None:
    drafter = small_drafter(FULL)
    compiled = CompiledDrafter(drafter, enabled=True, shapes=1)
    with torch.no_grad():
        first: Tensor = compiled(*arguments(drafter, 32))
        torch.testing.assert_close(first, drafter(*arguments(drafter, 32)), rtol=1e-4, atol=1e-5)
        compiled.freeze()
        compiled(*arguments(drafter, 32))
        assert compiled.recompiles == 0
        compiled(*arguments(drafter, 48))


def test_a_new_shape_after_warm_up_is_an_error(tmp_path: Path) -> None:
    assert "CompileError: a compiled function met a new shape" in in_process(_new_shape_after_warm_up, tmp_path)


def _tables_of(window: int | None) -> None:
    batch = packed_row([300, 120, 60], padded_to=512)
    layout = draw_anchors(batch, anchors=40, block_size=16, mask_token_id=63, seed=0).layout
    layout.anchor[12:20] = -1
    arguments = (layout.anchor, layout.start, layout.context, layout.block_size, window)
    for fused, plain in zip(compiled_tables()(*arguments), block_tables(*arguments), strict=True):
        torch.testing.assert_close(fused, plain, rtol=0, atol=0)


@pytest.mark.parametrize("window", [None, 32], ids=["full", "window 32"])
def test_the_compiled_block_tables_are_the_plain_ones(tmp_path: Path, window: int | None) -> None:
    assert in_process(_tables_of, tmp_path, window) == "nothing"


@pytest.mark.parametrize(
    ("device", "triton", "shortened"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_what_tracing_would_wait_for_is_done_before_where_a_gpu_compiles(
    device: str, triton: bool, shortened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on CPU, and not where triton is missing: a run that compiles nothing works without it."""
    from torch._inductor.runtime import triton_compat

    digested = threading.Event()
    monkeypatch.setattr(triton_compat, "HAS_TRITON", triton)
    monkeypatch.setattr(triton_compat, "triton_key", digested.set)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK")
    shorten_tracing(torch.device(device))
    assert digested.wait(5 if shortened else 0.2) == shortened
    assert os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == ("1" if shortened else None)


def _by_rule() -> None:
    from torch._inductor.graph import GraphLowering

    seen: list[tuple[bool, bool]] = []
    generate = GraphLowering.codegen

    def watched(graph: Any) -> Any:
        seen.append((graph.is_backward, torch._inductor.config.deterministic))
        return generate(graph)

    pytest.MonkeyPatch().setattr(GraphLowering, "codegen", watched)  # this process ends with the test
    compile_strictly()
    _tables_of(None)
    drafter = small_drafter(FULL)
    hidden = CompiledDrafter(drafter, enabled=True, shapes=1)(*arguments(drafter, 32))
    labels = torch.ones(8, 3, dtype=torch.int64)
    block_loss(hidden, embedding(), labels, labels > 0, 4.0, compiled=True).numerator.backward()
    assert seen == [(False, True), (False, True), (False, True), (True, True)]


def test_every_graph_gets_its_tiles_by_rule(tmp_path: Path) -> None:
    """Timed at each cold start, reductions would give a resumed run other losses; test_cuda.py shows it on a GPU.

    torch forgets a flag that is set for the process once it has traced the first function.
    """
    assert in_process(_by_rule, tmp_path) == "nothing"


def _eager_flex() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    compile_strictly()
    query = torch.zeros(1, 1, 16, 16)
    with torch.no_grad():
        flex_attention(query, query.clone(), query.clone())


def test_flex_attention_that_is_not_compiled_is_an_error(tmp_path: Path) -> None:
    assert "flex_attention called without torch.compile" in in_process(_eager_flex, tmp_path)


def test_a_second_thread_may_not_run_the_drafter() -> None:
    drafter = small_drafter(FULL)
    compiled = CompiledDrafter(drafter, enabled=False, shapes=1)
    met: list[Exception] = []

    def call() -> None:
        try:
            compiled(*arguments(drafter, 32))
        except CompileError as error:
            met.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "second thread" in str(met[0])


def test_the_cache_is_private_and_of_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    path = private_cache(str(tmp_path / "cache"))
    assert path.name.startswith(torch.__version__)
    assert path.stat().st_mode & 0o777 == 0o700
    assert os.environ[CACHE_VARIABLE] == str(path)
    path.chmod(0o770)
    with pytest.raises(CompileError, match="others may write"):
        private_cache(str(tmp_path / "cache"))
    monkeypatch.setenv(CACHE_VARIABLE, default_cache_dir())  # as torch itself does when dynamo is imported
    assert private_cache(str(tmp_path / "other")).is_relative_to(tmp_path / "other")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert private_cache("unused") == tmp_path / "own"


def test_headers_that_others_may_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps them in its default place, whatever cache is named."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    default = Path(default_cache_dir())
    assert default.is_relative_to(tmp_path)
    default.mkdir()
    default.chmod(0o777)
    with pytest.raises(CompileError, match=f"{default.name} is another user.s or others may write"):
        private_cache("unused")


def compiled_config(folder: Path, run: str, **sections: dict[str, Any]) -> Config:
    sections["model"] = {"num_layers": 1, "layer_types": ["full_attention"]}
    sections["data"] = {"length_buckets": [512]}
    sections["train"] = {"compile": True, "compile_cache": str(folder / f"{run}-cache"), **sections.get("train", {})}
    return small_config(folder, run, **sections)


def test_a_compiled_run_counts_its_cache_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    config = compiled_config(tmp_path, "compiled", train={"max_steps": 4})
    for expected in ("cold", "warm"):
        process = start_process(config)
        process.join()
        assert process.exitcode == 0
        last = log_of(config)[-1]
        assert last["recompiles"] == 0
        assert (last["cache_misses"] > 0) == (expected == "cold")
        assert (last["cache_hits"] > 0) == (expected == "warm")
        for path in Path(config.checkpoint.dir).glob("step_*"):
            path.rename(tmp_path / f"{expected}-{path.name}")
    messages = (tmp_path / "compiled" / "run.log").read_text()
    assert messages.count("compiled rows of 512 tokens in") == 2
    # What one layout has compiled serves the next: a drafter rank finds all that the one process left.
    cache = {"compile_cache": config.train.compile_cache, "max_steps": 1}
    ranks = compiled_config(tmp_path, "ranks", train=cache)
    assert train_ranks(ranks) == [0, 0]
    assert log_of(ranks)[-1]["cache_misses"] == 0
    assert log_of(ranks)[-1]["cache_hits"] == log_of(config)[-1]["cache_hits"]
    plain = compiled_config(tmp_path, "plain", train={"max_steps": 4, "compile": False})
    train_here(plain)
    for mine, other in zip(log_of(config)[-4:], log_of(plain), strict=True):
        assert mine["loss_mean"] == pytest.approx(other["loss_mean"], rel=1e-5)


def cold_config(folder: Path) -> Config:
    """One layer and one row length, forward and backward, on a target and two drafters; nothing compiled yet."""
    return compiled_config(
        folder,
        "start",
        topology={"targets": 1, "drafters": 2},
        train={"max_steps": 2, "rows_per_step": 2},
    )


def one_compiled_and_the_other_took_all(config: Config) -> None:
    last = log_of(config)[-1]
    assert last["step"] == 2
    assert last["recompiles"] == 0
    assert last["cache_misses"] > 0  # all of them the leader's:
    assert last["cache_hits"] == last["cache_misses"]  # the follower met nothing that was not there


STARTS = int(os.environ.get("COLD_STARTS", "20"))
BY_TORCHRUN = 2
"""As users start them, with nothing imported; the other ranks begin with torch in memory, in half the time."""


@pytest.mark.slow
@pytest.mark.parametrize("start", range(STARTS - BY_TORCHRUN))
def test_a_cold_start_of_several_ranks_never_fails(tmp_path: Path, start: int) -> None:
    """One rank compiles, the others hit its cache; never two at once, and nothing depends on luck."""
    config = cold_config(tmp_path)
    assert train_ranks(config) == [0, 0, 0]
    one_compiled_and_the_other_took_all(config)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(BY_TORCHRUN))
def test_a_cold_start_under_torchrun_never_fails(tmp_path: Path, start: int) -> None:
    config = cold_config(tmp_path)
    command = [sys.executable, "-m", "trainer", "train", str(write_toml(tmp_path / "run.toml", config))]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one_compiled_and_the_other_took_all(config)
