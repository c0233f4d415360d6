"""Whole training runs beside their parts: `python -m benchmarks training`.

Times the target's forward, the drafter's forward and backward, and the optimizer, each by itself on one device;
then starts real runs of `python -m trainer train` on a random target and reads their log. What the parts allow is,
for one process, the sum of their times a row; for T targets and D drafters, the slower side's. A run is killed once
it has its steps, so that no checkpoint of tens of gigabytes is written.

    python -m benchmarks training --shape qwen3-8b --context 4096 --anchors 512 --layout 1+1
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.drafter import drafter_layers, matrix_rate, timed
from benchmarks.trainer_runs import command_of, read_log, write_texts
from trainer.config import Config, build_config
from trainer.runlog import JsonLines, StepRecord
from trainer.topology import Alone, Place, choose_device

DOCUMENT = 8192
"""Longest document, in tokens: one byte is one token of a random target."""


def config_of(folder: Path, options: argparse.Namespace, layout: tuple[int, int], run: str) -> Config:
    """A run of one row a drafter and step on made-up text; never a checkpoint."""
    targets, drafters = layout
    length = min(DOCUMENT, options.context) - 8
    rows = max(8, (options.steps + 4) * 8)
    text = write_texts(folder, ((f"{number} is a number. " * length)[:length] for number in range(rows)))
    return build_config(
        {
            "model": {"anchors": options.anchors, **drafter_layers(options.shape)},
            "target": {"kind": "random", "shape": options.shape},
            "data": {
                "paths": [str(text)],
                "cache_dir": str(folder / "data"),
                "token_budget": options.context,
                "max_length": min(DOCUMENT, options.context),
            },
            "train": {"compile_cache": str(options.cache or folder / "inductor"), "epochs": 100},
            "checkpoint": {"dir": str(folder / run), "every": 0, "stamp": False},
            "topology": {"targets": targets, "drafters": drafters},
            "log": {"display": False},
        }
    )


def parts(config: Config, repeats: int) -> dict[str, Any]:
    """Seconds a row of the target, of the drafter forward and backward, and of an optimizer step, in this process."""
    from trainer.source import open_local
    from trainer.train import build, warm_up

    place = Place(0, 1, 1, 1, choose_device(config))
    source = open_local(config, place)
    runner, optimizer = build(config, place, source)
    began = time.perf_counter()
    warm_up(runner, optimizer, source.facts.row_lengths)
    warm = time.perf_counter() - began
    batch = source._dataset.batch(0, 0)
    features = source._target.features(batch)
    row = runner.draw(batch)

    def train() -> None:
        runner.run(features, row)
        optimizer.collect()

    train()
    optimizer.step(0, 1, 1.0, Alone().sum)
    device = place.device
    target = timed(device, lambda: source._target.features(batch), repeats)
    drafter = timed(device, train, repeats)
    step = timed(device, lambda: optimizer.step(0, 1, 1.0, Alone().sum), repeats)
    torch.compiler.set_stance("default")
    return {"target_s": target, "drafter_s": drafter, "optimizer_s": step, "warm_up_s": warm}


def whole(config: Config, folder: Path, steps: int, *, ranks: bool) -> dict[str, Any]:
    """What the log of a real run says, its first steps left out; the run is killed after `steps`."""
    directory = Path(config.checkpoint.dir)
    command = command_of(config, folder, ranks=ranks)
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=(folder / f"{directory.name}.err").open("w"))
    lines: list[dict[str, Any]] = []
    first = None
    while len(lines) < steps and process.poll() is None:
        time.sleep(0.05)
        lines = read_log(config)
        if lines and first is None:
            first = time.perf_counter() - began
    if len(lines) < steps:
        tail = (folder / f"{directory.name}.err").read_text()[-2000:]
        raise RuntimeError(f"the run ended with {process.wait()} after {len(lines)} steps: {tail}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    settled = lines[min(4, steps // 2) :]
    compiled = re.findall(r"in ([\d.]+) s: (\d+) cache hits, (\d+) misses", (directory / "run.log").read_text())
    median = {
        name: statistics.median(line[name] for line in settled)
        for name in ("step_s", "tok_s", "data_wait_s", "target_s")
    }
    return {
        **median,
        "mfu": settled[-1]["mfu"],
        "anchors_per_token": settled[-1]["anchors_per_token"],
        "wait_share": sum(line["data_wait_s"] for line in settled) / sum(line["step_s"] for line in settled),
        "q_pre": settled[-1]["q_pre"],
        "q_hs": settled[-1]["q_hs"],
        "peak_memory": settled[-1]["peak_memory"],
        "recompiles": settled[-1]["recompiles"],
        "first_step_after_s": first,
        "compile": [(float(seconds), int(hits), int(misses)) for seconds, hits, misses in compiled],
        "logging_s": logging_seconds(lines[-1], folder),
    }


def logging_seconds(line: dict[str, Any], folder: Path) -> float:
    """Of one line of the log."""
    record = StepRecord(**line)
    sink = JsonLines(folder / "logging.jsonl")
    began = time.perf_counter()
    for _ in range(1000):
        sink.write(record)
    sink.close()
    return (time.perf_counter() - began) / 1000


def allowed(found: dict[str, Any], layout: tuple[int, int]) -> float:
    """Seconds a row that the parts allow."""
    targets, drafters = layout
    drafter = found["drafter_s"] + found["optimizer_s"]
    if layout == (0, 0):
        return float(found["target_s"] + drafter)
    return float(max(found["target_s"] / targets, drafter / drafters))


def describe(run: dict[str, Any], rows: int) -> str:
    """One run in a paragraph."""
    share = "" if run["of_allowed"] is None else f"{run['of_allowed']:.1%} of what the parts allow, "
    return (
        f"step {run['step_s'] * 1e3:.1f} ms of {rows} rows, {run['tok_s'] / 1e3:.1f} Ktok/s, {share}"
        f"MFU {run['mfu'] or 0:.1%}, data wait {run['wait_share']:.1%}, q_pre {run['q_pre']} q_hs {run['q_hs']}, "
        f"peak {run['peak_memory'] / 2**30:.1f} GiB, first step after {run['first_step_after_s']:.1f} s, "
        f"compiled {run['compile']}, a log line {run['logging_s'] * 1e6:.0f} us"
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints a line a layout; `--out` keeps the figures as JSON."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks training")
    parser.add_argument("--shape", default="qwen3-8b" if cuda else "tiny")
    parser.add_argument("--context", type=int, default=4096 if cuda else 512)
    parser.add_argument("--anchors", type=int, default=512 if cuda else 64)
    parser.add_argument("--steps", type=int, default=30 if cuda else 8)
    parser.add_argument("--repeats", type=int, default=10, help="of each part")
    parser.add_argument("--layout", action="append", metavar="T+D", help="'alone', or ranks; default: alone")
    parser.add_argument("--cache", type=Path, help="compile cache to use; by default an empty one")
    parser.add_argument("--no-parts", action="store_true", help="only the runs: how a start goes from a cache")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    device = torch.device("cuda" if cuda else "cpu")
    rate = matrix_rate(device)
    print(f"{device}: bf16 matrix rate {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}")
    results: dict[str, Any] = {"matrix_rate": rate, "torch": torch.__version__, **vars(options)}
    if cuda:
        results["device"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        runs = {}
        for name in options.layout or ["alone"]:
            targets, _, drafters = name.partition("+")
            layout = (int(targets), int(drafters)) if drafters else (0, 0)
            config = config_of(folder, options, layout if drafters else (1, 1), name)
            runs[name] = (layout, whole(config, folder, options.steps, ranks=bool(drafters)))
            print(f"{name}: {runs[name][1]['step_s'] * 1e3:.1f} ms a step", flush=True)
        # Last, since this process keeps its memory on the device until it ends.
        found = None if options.no_parts else parts(config_of(folder, options, (1, 1), "parts"), options.repeats)
    results |= {"parts": found, "runs": {name: run for name, (_, run) in runs.items()}}
    print(f"{options.shape}, {options.context} tokens, {options.anchors} anchors")
    if found:
        print(
            f"  a row: target {found['target_s'] * 1e3:.1f} ms, drafter {found['drafter_s'] * 1e3:.1f} ms, "
            f"optimizer {found['optimizer_s'] * 1e3:.1f} ms"
        )
    for name, (layout, run) in runs.items():
        rows = max(1, layout[1])
        run["of_allowed"] = allowed(found, layout) / (run["step_s"] / rows) if found else None
        print(f"{name:6} {describe(run, rows)}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2, default=str) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
