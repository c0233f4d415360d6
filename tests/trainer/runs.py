"""Small real training runs: a random target, a text file, a drafter of two layers."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from trainer.config import Config, build_config
from trainer.resume import Start

WORDS = "the cat sat on a mat while dogs ran around very fast and birds sang".split()  # noqa: SIM905


PRELOAD = [
    *("trainer.job", "trainer.data", "trainer.targets.random_weights"),
    *("torch._dynamo", "torch._inductor.compile_fx", "tests.trainer.vector_units"),
]
"""What the server that starts processes has loaded: neither a rank nor a compilation waits for imports."""


def write_text(path: Path, documents: int = 40, seed: int = 0, words: tuple[int, int] = (8, 40)) -> Path:
    """A jsonl file of made-up sentences; ``words``: the fewest and the most of one."""
    draw = random.Random(seed)
    lines = [{"text": " ".join(draw.choices(WORDS, k=draw.randint(*words)))} for _ in range(documents)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def small_config(folder: Path, run: str = "run", **sections: dict[str, Any]) -> Config:
    """Rows of at most 512 tokens, 3 epochs; ``sections`` override."""
    text = folder / "text.jsonl"
    table: dict[str, dict[str, Any]] = {
        "model": {
            "block_size": 4,
            "num_layers": 2,
            "num_taps": 2,
            "anchors": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 16,
        },
        "target": {"kind": "random", "shape": "tiny"},
        "data": {
            "paths": [str(text if text.exists() else write_text(text))],
            "cache_dir": str(folder / "cache"),
            "token_budget": 512,
            "length_buckets": [256, 512],
            "max_batch_size": 8,
        },
        "train": {"epochs": 3, "gamma": 2.0, "device": "cpu"},
        "checkpoint": {"dir": str(folder / run), "every": 0, "stamp": False},
        "log": {"display": False},
    }
    for section, values in sections.items():
        table.setdefault(section, {}).update(values)
    return build_config(table)


def uneven_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows with more anchors than tokens: their weights differ, and with them a mean of means from the mean.

    They are half as long as the others, which makes a step of theirs more than twice as quick.
    """
    text = folder / "short.jsonl"
    paths = [str(text if text.exists() else write_text(text, words=(4, 20)))]
    data = {"paths": paths, "token_budget": 256, "length_buckets": [128, 256], "max_batch_size": 2}
    return {"model": {"anchors": 128}, "data": data}


def train_here(config: Config, **start: Any) -> int:
    """A whole run in this process, on one thread as in the others."""
    import torch

    from trainer.job import run

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(config, Start(**start))
    finally:
        torch.set_num_threads(before)


def _child(config: Config, start: dict[str, Any]) -> None:
    raise SystemExit(train_here(config, **start))


def environment() -> dict[str, str]:
    """Of a trainer that is started from its command line: it can import what these tests can."""
    found = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1"}


def _starts(config: Config) -> ForkServerContext | SpawnContext:
    """How its processes begin: on a CPU from a server that has torch loaded already.

    What the server loads asks for GPUs, and CUDA does not work in what is forked from a process that did.
    """
    if config.train.device == "cuda":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def start_process(config: Config, **start: Any) -> BaseProcess:
    """The same run in a process of its own."""
    process = _starts(config).Process(target=_child, args=(config, start))
    process.start()
    return process


def _rank(config: Config, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    raise SystemExit(train_here(config))


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_ranks(config: Config) -> list[BaseProcess]:
    """One process a rank, drafters first, with the environment that torchrun would give them."""
    world = config.topology.targets + config.topology.drafters
    port = free_port()
    context = _starts(config)
    processes: list[BaseProcess] = []
    for rank in range(world):
        environment = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        process = context.Process(target=_rank, args=(config, environment))
        process.start()
        processes.append(process)
    return processes


def train_ranks(config: Config) -> list[int | None]:
    """A whole run on all ranks; their exit codes."""
    processes = start_ranks(config)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def wait_for_step(config: Config, step: int, processes: list[BaseProcess]) -> None:
    """Until the log has a step, or a process has ended."""
    while len(log_of(config)) < step and all(process.is_alive() for process in processes):
        time.sleep(0.01)


def kill(process: BaseProcess) -> None:
    """By SIGKILL."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)


def kill_one(processes: list[BaseProcess], victim: int) -> tuple[float, list[int | None]]:
    """Kills a rank; how many seconds the job took to end then, and the exit codes of all."""
    kill(processes[victim])
    began = time.monotonic()
    for process in processes:
        process.join(timeout=30)
    return time.monotonic() - began, [process.exitcode for process in processes]


def log_of(config: Config) -> list[dict[str, Any]]:
    """All finished lines of the log, in the order of writing."""
    path = Path(config.checkpoint.dir) / config.log.jsonl
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


EXACT = (
    "loss",
    "loss_mean",
    "grad_norm",
    "lr",
    "accuracy",
    "acceptance_length",
    "epoch",
    "batch",
    "documents",
    "anchors",
)
"""What must be equal to the bit on resume."""


def curve(config: Config) -> dict[int, dict[str, Any]]:
    """Each step's exact values; a step that was logged twice must have had the same ones."""
    steps: dict[int, dict[str, Any]] = {}
    for line in log_of(config):
        exact = {name: line[name] for name in EXACT}
        assert steps.setdefault(line["step"], exact) == exact
    return steps
