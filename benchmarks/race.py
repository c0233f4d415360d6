"""The compile race, and the design that has none: `python -m benchmarks race`.

In one process, several threads each call a compiled drafter of their own on a cold cache, forward and backward, as
trainers that run their workers as threads do. Each try ends in one of: finished, an error (its first line is kept),
or no progress for a while: a deadlock. Beside it the trainer starts its ranks, one process a worker, from a cold
cache, as often.

    python -m benchmarks race --tries 3 --threads 3 --patience 60
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainer_runs import command_of, read_log, write_texts
from trainer.acceptance import one_document
from trainer.anchors import draw_anchors
from trainer.attention import choose_backend, make_mask
from trainer.compile import CACHE_VARIABLE
from trainer.config import ModelConfig, TrainConfig, build_config
from trainer.model import Drafter, DrafterShape
from trainer.shapes import SHAPES

ROUNDS = 10
"""Steps of each thread."""
HEADS: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "num_layers": 2}


def worker(number: int, device: torch.device, start: threading.Barrier, report: list[str]) -> None:
    """One thread: a compiled drafter of its own, a new row length halfway."""
    shape = DrafterShape.of(ModelConfig(**HEADS), SHAPES["tiny"])
    with device:
        drafter = Drafter(shape)
        drafter.init_weights(number)
    body = torch.compile(drafter, dynamic=False, fullgraph=True)
    start.wait()
    try:
        for round_ in range(ROUNDS):
            length = 512 if round_ < ROUNDS // 2 else 768
            batch = one_document([0] * length, supervised_from=0)
            row = draw_anchors(batch, anchors=32, block_size=16, mask_token_id=255, seed=round_).to(device)
            masks = {"full_attention": make_mask(row.layout, None, choose_backend(TrainConfig(), device))}
            taps = torch.randn(length, 5 * 32, device=device)
            block = torch.randn(row.layout.queries, 32, device=device)
            body(taps, batch.position.to(device), block, row.position.reshape(-1), masks).sum().backward()
            report.append(f"step {number}/{round_}")
    except Exception as error:
        report.append(f"error {type(error).__name__}: {str(error).strip().splitlines()[0]}")


def threads(count: int) -> int:
    """All threads at once in this process; prints each step, and its outcome last."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = threading.Barrier(count)
    report: list[str] = []
    workers = [
        threading.Thread(target=worker, args=(number, device, start, report), daemon=True) for number in range(count)
    ]
    for thread in workers:
        thread.start()
    said = 0
    while said < len(report) or any(thread.is_alive() for thread in workers):
        for line in report[said:]:
            print(line, flush=True)
            said += 1
        time.sleep(0.05)
    # Threads of torch's own may hang as well; nothing here is worth waiting for.
    sys.stdout.flush()
    os._exit(0)


def try_threads(count: int, patience: float) -> str:
    """What becomes of one process of threads on a cold cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks", "race", "--in-process", str(count)]
        process = subprocess.Popen(
            command, env={**os.environ, CACHE_VARIABLE: cache}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or []), daemon=True)
        reader.start()
        seen, since = 0, time.monotonic()
        while process.poll() is None and time.monotonic() - since < patience:
            time.sleep(0.2)
            if len(lines) > seen:
                seen, since = len(lines), time.monotonic()
        stuck = process.poll() is None
        process.kill()
        process.wait()
        reader.join()
    errors = [line.strip().removeprefix("error ") for line in lines if line.startswith("error")]
    steps = len(lines) - len(errors)
    if stuck:
        return f"deadlock: no progress for {patience:.0f} s after {steps} steps" + (
            f"; {errors[0]}" if errors else ""
        )
    return errors[0] if errors else f"finished, {steps} steps"


def try_ranks(folder: Path, number: int, targets: int, drafters: int) -> dict[str, Any]:
    """One cold start of the trainer's ranks: exit code, seconds, and what each drafter's cache met."""
    text = write_texts(folder, (f"{n} is a number, " * 12 for n in range(200)))
    config = build_config(
        {
            "model": {**HEADS, "anchors": 32},
            "target": {"kind": "random", "shape": "tiny"},
            "data": {
                "paths": [str(text)], "cache_dir": str(folder / "data"), "token_budget": 1024, "max_batch_size": 16,
            },
            "train": {
                "max_steps": 4, "rows_per_step": drafters, "compile": True,
                "compile_cache": str(folder / f"inductor-{number}"),
            },
            "checkpoint": {"dir": str(folder / f"run-{number}"), "stamp": False},
            "topology": {"targets": targets, "drafters": drafters},
            "log": {"display": False},
        }
    )  # fmt: skip
    command = command_of(config, folder, ranks=True)
    environ = {name: value for name, value in os.environ.items() if name != CACHE_VARIABLE}
    began = time.perf_counter()
    found = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    lines = read_log(config)
    last = lines[-1] if lines else {}
    return {
        "code": found.returncode,
        "seconds": seconds,
        **{name: last.get(name) for name in ("step", "cache_hits", "cache_misses", "recompiles", "attention")},
        "says": "" if found.returncode == 0 else found.stderr[-600:],
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints what became of each try."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks race")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without progress that are a deadlock")
    parser.add_argument("--ranks", default="1+2", metavar="T+D")
    parser.add_argument("--starts", type=int, default=3, help="cold starts of the trainer's ranks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--in-process", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.in_process:
        return threads(options.in_process)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'}")
    outcomes = []
    for _ in range(options.tries):
        outcomes.append(try_threads(options.threads, options.patience))
        print(f"{options.threads} threads in one process, cold cache: {outcomes[-1]}", flush=True)
    targets, _, drafters = options.ranks.partition("+")
    starts = []
    with tempfile.TemporaryDirectory() as made:
        for number in range(options.starts):
            starts.append(try_ranks(Path(made), number, int(targets), int(drafters)))
            print(f"{options.ranks} ranks, cold cache: {starts[-1]}", flush=True)
    failed = [start for start in starts if start["code"] != 0 or start["recompiles"] != 0]
    kinds = Counter(outcome.split(":")[0] for outcome in outcomes)
    print(f"threads: {dict(kinds)}; ranks: {len(failed)} of {len(starts)} starts failed")
    if options.out:
        value = {"torch": torch.__version__, "threads": outcomes, "ranks": starts}
        options.out.write_text(json.dumps(value, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
