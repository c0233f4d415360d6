"""Losses and gradient norms that are no numbers, wherever a framework writes them; a step that was skipped is one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.acquire.logs import BASE, iso, read_folder, write

STEPS = range(60)


def rows(fields: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps({"step": i, "time": iso(BASE + i), **row}) + "\n" for i, row in enumerate(fields))


def nan_from(first: int, value: object = math.nan) -> list[object]:
    return [value if i >= first else 2.0 for i in STEPS]


DYING = [{"loss": 0.0 if i > 27 else 2.0, "grad_norm": math.nan if i > 27 else 1.0} for i in STEPS]
CASES: dict[str, tuple[str, str]] = {
    "loss NaN": ("a.jsonl", rows({"loss": value} for value in nan_from(28))),
    "loss as text": ("a.jsonl", rows({"loss": value} for value in nan_from(28, "NaN"))),
    **{f"loss as {text}": ("a.jsonl", rows({"loss": value} for value in nan_from(28, text)))
       for text in ("-nan", "1.#IND", "-1.#QNAN", "1.#INF", "-nan(ind)",
                    "tensor(nan, device='cuda:0')", "np.float64(nan)")},
    **{f"{text} in a line": ("train.log", "".join(f"step {i} loss: {text if i > 27 else 2.0}\n" for i in STEPS))
       for text in ("-nan", "1.#IND", "-1.#QNAN", "tensor(nan, device='cuda:0')")},
    "loss infinite": ("a.jsonl", rows({"loss": value} for value in nan_from(28, -math.inf))),
    "loss 0.0 and grad_norm NaN": ("a.jsonl", rows(DYING)),
    "nested": ("a.jsonl", rows({"metrics": {"train": row}} for row in DYING)),
    "eval_loss NaN": ("a.jsonl", rows({"loss": 2.0, **({"eval_loss": math.nan} if i in (28, 59) else {})}
                                      for i in STEPS)),
    "another loss": ("a.jsonl", rows({"loss": 2.0, "aux_loss": value} for value in nan_from(28))),
    "trainer_state.json": ("outputs/e/checkpoint-60/trainer_state.json", json.dumps(
        {"global_step": 60, "log_history": [{"step": i, **row} for i, row in enumerate(DYING)]})),
    "a file of one list": ("train_log.json", json.dumps([{"step": i, **row} for i, row in enumerate(DYING)])),
    "Trainer's dicts": ("train.log", "".join(f"{ {**row, 'epoch': i / 60} }\n" for i, row in enumerate(DYING))),
    "Trainer's dicts, with numbers as text": ("train.log", "".join(
        str({name: str(value) for name, value in row.items()}) + "\n" for row in DYING)),
    "Megatron": ("train.log", "".join(
        f" iteration {i:8}/  500000 | lm loss: {'NAN' if i > 27 else '1.0E+01'} | grad norm: 1.0 |\n"
        for i in STEPS)),
    "Megatron's count": ("train.log", "".join(
        f" iteration {i:8}/  500000 | lm loss: 1.0E+01 | number of nan iterations:   {int(i > 27)} |\n"
        for i in STEPS)),
    "fairseq": ("train.log", "".join(f'2026-05-18 10:00:00 | INFO | train_inner | {{"epoch": 1, "loss": '
                                     f'"{"nan" if i > 27 else 2.1}", "num_updates": "{i}"}}\n' for i in STEPS)),
    "CSV": ("lightning_logs/version_0/metrics.csv", "epoch,step,train_loss\n"
            + "".join(f"0,{i},{'nan' if i > 27 else 2.0}\n" for i in STEPS)),
    "CSV with blank cells": ("lightning_logs/version_0/metrics.csv", "epoch,step,train_loss_step,val_loss\n"
        + "".join(
        f"0,{i},{'nan' if i > 27 else 2.0},\n0,{i},,1.0\n" for i in STEPS)),
    "W&B's summary": ("wandb/run-20260518_100000-abc/files/wandb-summary.json", json.dumps(
        {"_step": 28, "_timestamp": BASE, "train/loss": "NaN"})),
    "a rank that is not the first": ("a.jsonl", "".join(json.dumps(
        {"step": i, "rank": k, "loss": math.nan if k and i > 27 else 2.0}) + "\n" for i in STEPS for k in (0, 1))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_number_from_a_step_on(tmp_path: Path, case: str) -> None:
    write(tmp_path, *CASES[case])
    read = read_folder(tmp_path)
    (title,) = read.titles
    assert "not a number from" in title
    (item,) = read.failed
    row = item.found.since
    assert item.found.again is None
    assert item.log.step[row] == 28 or ("dicts" in case and item.log.line[row] == 29)


SKIPPED: dict[str, tuple[str, str, str | None]] = {
    "one loss": ("a.jsonl", rows({"loss": math.nan if i == 28 else 2.0} for i in STEPS),
                 "the loss is not a number at step 28, and is one again at step 29 (a.jsonl)"),
    "two stretches, the second to the end": (
        "a.jsonl", rows({"loss": math.nan if i == 5 or i > 50 else 2.0} for i in STEPS),
        "the loss is not a number from step 51 on (a.jsonl)"),
    "loss scaling finds its scale": (
        "a.jsonl", rows({"loss": 2.0, "grad_norm": math.inf if i < 3 else 1.0} for i in STEPS), None),
}  # fmt: skip


@pytest.mark.parametrize("case", SKIPPED)
def test_a_step_that_was_skipped_is_one_step(tmp_path: Path, case: str) -> None:
    name, text, title = SKIPPED[case]
    write(tmp_path, name, text)
    assert read_folder(tmp_path).titles == ([title] if title is not None else [])
