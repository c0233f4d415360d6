"""One process beside T targets and D drafters: the same losses, and what waits where: `python -m benchmarks ranks`.

Every layout trains the same toy run of a random target through the real command line, from nothing to its last step:
the same seeds and the same rows a step. The table tells how far its losses lie from one process's, how many packed
rows waited for the targets (`q_pre`) and rows of hidden states for the drafters (`q_hs`), and the drafters' wait.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainer_runs import command_of, read_log, write_texts
from trainer.config import build_config

LAYOUTS = ("1+1", "2+1", "3+1", "1+2", "2+2", "1+3")
ROWS = 6
"""A step; a multiple of every layout's drafters."""


def train(folder: Path, layout: str | None, steps: int) -> list[dict[str, Any]]:
    """The log of a run; without a layout, of one process. RuntimeError where it fails."""
    targets, _, drafters = (layout or "1+1").partition("+")
    text = write_texts(folder, (f"{number} is a number. " * (1 + number % 13) for number in range(600)))
    name = layout or "alone"
    config = build_config(
        {
            "model": {"num_layers": 2, "anchors": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
            "target": {"kind": "random", "shape": "tiny"},
            "data": {
                "paths": [str(text)], "cache_dir": str(folder / "data"), "token_budget": 512, "max_batch_size": 16,
            },
            "train": {
                "max_steps": steps, "rows_per_step": ROWS, "dtype": "float32",
                "compile_cache": str(folder / "inductor"),
            },
            "checkpoint": {"dir": str(folder / name), "every": 0, "stamp": False},
            "topology": {"targets": int(targets), "drafters": int(drafters), "queue_depth": 2, "prefetch": 8},
            "log": {"display": False},
        }
    )  # fmt: skip
    command = command_of(config, folder, ranks=layout is not None)
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"{name} ended with {found.returncode}: {found.stderr[-2000:]}")
    return read_log(config)


def compared(log: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """One layout's figures."""
    pairs = [(mine["loss_mean"], other["loss_mean"]) for mine, other in zip(log, alone, strict=True)]
    settled = log[len(log) // 3 :]
    return {
        "steps": len(log),
        "identical": sum(mine == other for mine, other in pairs),
        "largest_relative_difference": max(abs(mine - other) / abs(other) for mine, other in pairs),
        "q_pre": [statistics.median(line["q_pre"][i] for line in settled) for i in range(len(log[0]["q_pre"]))],
        "q_hs": [statistics.median(line["q_hs"][i] for line in settled) for i in range(len(log[0]["q_hs"]))],
        "wait_share": sum(line["data_wait_s"] for line in settled) / sum(line["step_s"] for line in settled),
        "step_s": statistics.median(line["step_s"] for line in settled),
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints a line a layout; `--out` keeps the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks")
    parser.add_argument("--layout", action="append", metavar="T+D")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["CPU"],
    }
    with tempfile.TemporaryDirectory() as made:
        alone = train(Path(made), None, options.steps)
        for layout in options.layout or LAYOUTS:
            found = compared(train(Path(made), layout, options.steps), alone)
            results[layout] = found
            print(
                f"{layout}  {found['identical']:3} of {found['steps']} losses identical, the furthest "
                f"{found['largest_relative_difference']:.1e}  q_pre {found['q_pre']}  q_hs {found['q_hs']}  "
                f"wait {found['wait_share']:.1%}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
