"""The demo's training loop, run by the stage's own interpreter: `python train.py OPTIONS`.

A stand-in for a trainer, honest about it: it imports torch (a stand-in that maps a real library), does real work of
a fixed amount a step in one of two ways, and writes the rate that it measured. The fast way needs a "compiled kernel"
in the compile-cache folder that this very torch build wrote; without one every step is done the slow way, as a run
falls to slow kernels when its cache does not fit. It knows nothing of the rest of envguard but `envguard.stamp`.

Written to the project folder as `train.py`; standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import signal
import time

TOKENS_A_STEP = 4096
FAST_ROUNDS, SLOW_ROUNDS = 1, 5


def main() -> int:
    options = _options()
    import torch

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    kernel = pathlib.Path(options.cache) / f"kernel-{torch.version.git_version}.json"
    if options.compile:
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text(json.dumps({"torch": torch.__version__}))
    state = hashlib.sha256(b"start").digest()
    step = options.first
    while not stopping and step < options.first + options.steps:
        rounds = FAST_ROUNDS if kernel.exists() else SLOW_ROUNDS
        began = time.perf_counter()
        for _ in range(rounds):
            state = hashlib.pbkdf2_hmac("sha256", state, b"", options.work)
        time.sleep(options.pause)
        took = time.perf_counter() - began
        _log(options, step, TOKENS_A_STEP / took)
        if step in options.save:
            _save(options, step, state)
        step += 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--save", type=int, nargs="*", default=[])
    parser.add_argument("--stamp", type=int, nargs="*", default=[])
    parser.add_argument("--cache", default="compile-cache")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--work", type=int, default=60_000)
    parser.add_argument("--pause", type=float, default=0.0)
    return parser.parse_args()


def _log(options: argparse.Namespace, step: int, rate: float) -> None:
    line = {
        "step": step,
        "time": time.time(),
        "loss": 2.0 + 8.0 / (step + 1),
        "tok_s": round(rate, 1),
        "q_pre": [50] * 5,
        "q_hs": 0,
        "samples": 902_087,
    }
    with open("checkpoints/train_log.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _save(options: argparse.Namespace, step: int, state: bytes) -> None:
    """Written beside and renamed, as a trainer must; stamped where it is asked for."""
    target = pathlib.Path("checkpoints") / f"step_{step}"
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.mkdir(parents=True)
    (temporary / "model.bin").write_bytes(state * 64)
    (temporary / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 0}))
    os.rename(temporary, target)
    if step in options.stamp:
        import envguard

        envguard.stamp(target)


if __name__ == "__main__":
    raise SystemExit(main())
