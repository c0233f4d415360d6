"""The rate of a log, whatever a framework calls it and in whatever form it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.runs.roles import number, rate_of
from tests.acquire.logs import BASE, iso, naive, read_folder, steps, write

Line = Callable[[int, int, float], str]


def jsonl(**fields: Callable[[float], Any]) -> Line:
    def line(step: int, time: int, rate: float) -> str:
        row = {"step": step, "time": iso(time), "loss": 2.0}
        return json.dumps(row | {name: value(rate) for name, value in fields.items()}) + "\n"

    return line


def named(name: str) -> Line:
    return jsonl(**{name: lambda rate: rate})


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("tok_s", "tok/s"), ("tokens_per_second_per_gpu", "tok/s/GPU"), ("tokens_per_sec_per_gpu", "tok/s/GPU"),
        ("throughput/device/tokens_per_sec", "tok/s/GPU"), ("throughput/tokens_per_sec", "tok/s"),
        ("train/tokens_per_sec", "tok/s"), ("tgs (tokens/gpu/second)", "tok/s/GPU"), ("tok/sec", "tok/s"),
        ("tokens/sec/gpu", "tok/s/GPU"), ("tokensPerSecond", "tok/s"), ("trained_tokens_per_sec", "tok/s"),
        ("SamplesPerSec", "samples/s"), ("train/samples_per_second", "samples/s"), ("throughput(img/s)", "images/s"),
        ("steps_per_second", "steps/s"), ("perf/throughput", "tok/s"), ("speed", "/s"),
    ],
)  # fmt: skip
def test_a_rate_by_any_name_with_its_unit(tmp_path: Path, name: str, unit: str) -> None:
    write(tmp_path, "train_log.jsonl", "".join(named(name)(*row) for row in steps()))
    read = read_folder(tmp_path)
    assert [(log.unit, round(change.before.rate), round(change.after.rate), change.after.first)
            for log in read.logs.trained for change in read.changes] == [(unit, 21500, 4300, 200)]  # fmt: skip
    assert read.undecided == []


FORMS: dict[str, tuple[str, Line]] = {
    "text with K": ("a.jsonl", jsonl(tok_s=lambda rate: f"{rate / 1000:.1f}K")),
    "text with thousands": ("a.jsonl", jsonl(tok_s=lambda rate: f"{rate:,.0f}")),
    "the unit in the value": ("a.jsonl", jsonl(speed=lambda rate: f"{rate / 1000:.1f}k tok/s")),
    "nested": ("a.jsonl", jsonl(metrics=lambda rate: {"tok_s": rate})),
    "twice nested": ("a.jsonl", lambda i, t, r: json.dumps(
        {"data": {"step": i, "ts": t, "perf": {"tps": r}}}) + "\n"),
    "time is the step's": ("a.jsonl", lambda i, t, r: json.dumps(
        {"step": i, "time": 0.5, "timestamp": iso(t), "tok_s": r}) + "\n"),
    "date and time apart": ("a.jsonl", lambda i, t, r: json.dumps(
        {"step": i, "date": naive(t)[:10], "time": naive(t)[11:], "tok_s": r}) + "\n"),
    "timestamp_utc": ("a.jsonl", lambda i, t, r: json.dumps(
        {"step": i, "timestamp_utc": naive(t), "tok_s": r}) + "\n"),
    "renamed half-way": ("a.jsonl", lambda i, t, r: json.dumps(
        {"step": i, "time": iso(t), ("wps" if i < 200 else "tps"): r}) + "\n"),
    "step null in half": ("a.jsonl", lambda i, t, r: json.dumps(
        {"step": None if i % 2 else i, "global_step": i, "time": t, "tok_s": r}) + "\n"),
    "two ranks": ("a.jsonl", lambda i, t, r: "".join(json.dumps(
        {"rank": k, "step": i, "time": t, "tok_s": r * (1 + k)}) + "\n" for k in (0, 1))),
    "a step that restarts with the epoch": ("a.jsonl", lambda i, t, r: json.dumps(
        {"epoch": i // 100, "step": i % 100, "time": t, "tok_s": r}) + "\n"),
    "Lightning": ("lightning_logs/version_0/metrics.csv", lambda i, t, r: (
        "epoch,step,train_loss_step,tokens_per_sec,val_loss\n" if not i else "") + f"0,{i},2.0,{r},\n0,{i},,,2.2\n"),
    "torchtitan": ("train.log", lambda i, t, r: (
        f"[rank0]:\x1b[36m[titan] {naive(t)},123 - root - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss:  7.1234  "
        f"\x1b[38;2;1;2;3mgrad_norm:  1.2  memory: 12.30GiB(15.41%)  tps: {r:,.0f}  tflops: 123  mfu: 40%\x1b[0m\n")),
    "torchtune": ("logs/log_1.txt", lambda i, t, r: (
        f"Step {i} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:{r} peak_memory_active:12.3 \n")),
    "fairseq": ("train.log", lambda i, t, r: (
        f'{naive(t)} | INFO | train_inner | {{"epoch": 1, "loss": "2.1", "wps": "{r}", "num_updates": "{i}"}}\n')),
    "llm.c": ("main.log", lambda i, t, r: (
        f"step {i:4}/1000 | loss 4.2 (+0.1z)| norm 1.2 (+0.2z)| lr 3.00e-04 | 12.2 ms | 40% MFU | {r:.0f} tok/s\n")),
    "plain words": ("train.log", lambda i, t, r: f"{naive(t)} INFO step {i} loss 2.0 tok/s {r}\n"),
    "docker": ("x-json.log", lambda i, t, r: json.dumps(
        {"log": f"step {i} loss 2.0 tok/s {r}\n", "stream": "stdout", "time": iso(t)[:19] + ".123456789Z"}) + "\n"),
    "MLflow": ("", lambda i, t, r: ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_rate_in_any_form(tmp_path: Path, form: str) -> None:
    name, line = FORMS[form]
    if form == "MLflow":
        write(tmp_path, "mlruns/0/abc/meta.yaml", "run_id: abc\n")
        write(tmp_path, "mlruns/0/abc/metrics/tokens_per_second", "".join(f"{t}000 {r} {i}\n" for i, t, r in steps()))
        write(tmp_path, "mlruns/0/abc/metrics/train/loss", "".join(f"{t}000 2.0 {i}\n" for i, t, _ in steps()))
    else:
        write(tmp_path, name, "".join(line(*row) for row in steps()))
    read = read_folder(tmp_path)
    assert [re.sub(r" ?(K?)(tok|words)/s(/GPU)?", r"\1", title) for title in read.titles] == [
        f"throughput fell from 21.5K to 4.3K at step {0 if 'epoch' in form else 200}"
    ]
    assert read.undecided == []


OTHER_UNITS: dict[str, tuple[str, str, Line]] = {
    "Megatron": ("21,500 → 4,300 TFLOP/s/GPU", "slurm-1.out", lambda i, t, r: (
        f" [{naive(t)}] iteration {i:8}/  500000 | consumed samples: {i * 256:12} | elapsed time per iteration (ms): "
        f"{2.15e7 / r:.1f} | throughput per GPU (TFLOP/s/GPU): {r:.1f} | learning rate: 1.0E-04 | global batch size: "
        f"256 | lm loss: 1.2E+00 | loss scale: 1.0 | grad norm: 0.5 | number of nan iterations:   0 |\n")),
    "Megatron, time alone": ("1 → 0.2 steps/s", "slurm-1.out", lambda i, t, r: (
        f" iteration {i:8}/  500000 | elapsed time per iteration (ms): {2.15e7 / r:.1f} | lm loss: 1.2E+00 |\n")),
    "DeepSpeed": ("215 → 43 samples/s", "train.log", lambda i, t, r: (
        f"[{naive(t)},123] [INFO] [logging.py:96:log_dist] [Rank 0] steps: {i} loss: 2.1 iter time (s): 0.5 "
        f"samples/sec: {r / 100:.3f}\n")),
    "DeepSpeed's timer": ("215 → 43 samples/s", "train.log", lambda i, t, r: (
        f"[{naive(t)},123] [INFO] [timer.py:197:stop] epoch=0/micro_step={i * 8}/global_step={i}, "
        f"RunningAvgSamplesPerSec=20.1, CurrSamplesPerSec={r / 100:.3f}, MemAllocated=1.2GB\n")),
    "nanoGPT": ("10 → 2 steps/s", "train.log", lambda i, t, r: (
        f"iter {i}: loss 3.2345, time {2.15e6 / r:.2f}ms, mfu 40.00%\n")),
    "LitGPT": ("10 → 2 steps/s", "train.log", lambda i, t, r: (
        f"Epoch 1 | iter {i} step {i} | loss train: 2.1, val: n/a | iter time: {2.15e6 / r:.2f} ms (step)\n")),
    "MMEngine": ("10 → 2 steps/s", "work_dirs/x/20261130_1/1.log", lambda i, t, r: (
        f"{naive(t).replace('-', '/')} - mmengine - INFO - Epoch(train) [1][{i}/1000]  lr: 1.0e-03  eta: 0:10:00  "
        f"time: {2150 / r:.4f}  data_time: 0.01  memory: 1234  loss: 2.1\n")),
    "tqdm": ("2.15 → 0.43 steps/s", "train.log", lambda i, t, r: (
        f"\r {i / 10:.0f}%|█▏  | {i}/1000 [00:10<01:20, {r / 10000:.2f}it/s, loss=2.1]")),
    "tqdm, seconds a step": ("0.215 → 0.043 steps/s", "train.log", lambda i, t, r: (
        f"\rEpoch 0: {i / 10:.0f}%|█▏  | {i}/1000 [00:10<01:20, {1e5 / r:.2f}s/it, v_num=0, train_loss=2.1]")),
    "Trainer's bar and its dicts": ("2.15 → 0.43 steps/s", "train.log", lambda i, t, r: (
        f"\r {i // 10}%|█▏  | {i}/1000 [00:10<01:20, {r / 10000:.2f}it/s]"
        + (f"\n{{'loss': 2.1, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': {i / 1000}}}\n" * (i % 10 == 0)))),
    "no rate, and the steps come slower": ("0.1 → 0.02 steps/s", "a.jsonl", lambda i, t, r: json.dumps(
        {"step": i, "time": t if i < 200 else BASE + 2000 + 50 * (i - 200), "loss": 2.0}) + "\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", OTHER_UNITS)
def test_a_rate_in_another_unit(tmp_path: Path, form: str) -> None:
    wanted, name, line = OTHER_UNITS[form]
    write(tmp_path, name, "".join(line(*row) for row in steps()))
    read = read_folder(tmp_path)
    (change,) = read.changes
    old, new = (change.event.from_ or "").split(" "), (change.event.to or "").split(" ")
    assert f"{old[0]} → {' '.join(new)}" == wanted
    assert len(read.titles) == 1
    assert change.after.first >= 200
    assert read.undecided == []


def test_a_field_of_unknown_meaning_that_fell_is_named_and_counts_as_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "train_log.jsonl", "".join(named("zeta")(*row) for row in steps()))
    read = read_folder(tmp_path)
    assert read.titles == []
    assert read.undecided == ["of fields whose meaning is not known, zeta went from 21500 to 4300"]


ORDINARY: dict[str, tuple[str, str]] = {
    "a steady log": ("train_log.jsonl", "".join(named("tok_s")(i, t, 21500.0) for i, t, _ in steps())),
    "Trainer's state": ("outputs/checkpoint-60/trainer_state.json", json.dumps({"global_step": 300, "log_history": [
        {"step": i, "epoch": i / 300, "loss": 3 - i / 200, "grad_norm": 1.0, "learning_rate": 1e-5 * (1 - i / 300)}
        for i in range(300)]})),
    "metrics of an evaluation": ("eval_results.json", json.dumps({"eval_loss": 2.0, "eval_samples_per_second": 3.0})),
    "a learning curve": ("lightning_logs/version_0/metrics.csv", "epoch,step,train_loss,train_acc,val_f1,lr-Adam\n"
                         + "".join(f"{i // 50},{i},{3 - i / 100},{i / 300},{i / 300},{1e-3 * (1 - i / 300)}\n"
                                   for i in range(300))),
    "a server of inference": ("vllm.log", "".join(
        f"INFO 11-30 10:00:{i % 60:02} metrics.py:455] Avg prompt throughput: {i * 7 % 400} tokens/s, Avg generation "
        f"throughput: {i * 13 % 300}.0 tokens/s, Running: 1 reqs\n" for i in range(200))),
    "bars of loading and of data": ("prepare.log", "".join(
        f"\rMap: {i}%|#  | {i}/100 [00:01<00:02, {9000 if i < 50 else 300}.1 examples/s]" for i in range(100))),
    "prompts": ("train.jsonl", "".join(json.dumps({"prompt": "step by step", "answer": str(i)}) + "\n"
                                       for i in range(300))),
    "requirements": ("requirements.txt", "torch==2.11.0\n"),
    "words": ("README.txt", "loss 2.0 at step 5\n" * 40),
    "a table of data": ("train.csv", "step,loss\n" + "1,nan\n" * 40),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDINARY)
def test_an_ordinary_file_is_neither_a_finding_nor_undecided(tmp_path: Path, case: str) -> None:
    write(tmp_path, *ORDINARY[case])
    read = read_folder(tmp_path)
    assert (read.titles, read.undecided, read.changes) == ([], [], [])


@pytest.mark.parametrize(
    ("text", "value"),
    [("21.5K", 21500.0), ("21,500", 21500.0), ("1.2e4", 12000.0), ("450 ms", 450.0), ("3M", 3e6), ("x", None),
     ("9" * 5000, None), ("nan", None), ("21,50", None), ("-3", -3.0)],
)  # fmt: skip
def test_numbers_as_text(text: str, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "name", ["eval_tokens_per_second", "tokens_seen", "total_tokens", "data_time", "loss", "learning_rate", "lr", "",
             "num_input_tokens_seen", "max_steps", "eta", "seconds_remaining", "forward_step_time", "batch_size"],
)  # fmt: skip
def test_what_is_no_rate_of_training(name: str) -> None:
    assert rate_of(name) is None


@pytest.mark.parametrize("second", ["Megatron", "tqdm", "MMEngine", "DeepSpeed"])
def test_a_fall_that_several_logs_of_a_run_tell_is_one_finding(tmp_path: Path, second: str) -> None:
    _, name, line = OTHER_UNITS[second]
    write(tmp_path, "train_log.jsonl", "".join(named("tok_s")(*row) for row in steps()))
    write(tmp_path, f"logs/{name}", "".join(line(*row) for row in steps()))
    read = read_folder(tmp_path)
    assert len(read.changes) == 2
    assert read.titles == ["throughput fell from 21.5 Ktok/s to 4.3 Ktok/s at step 200"]


def test_falls_of_two_runs_are_two_findings(tmp_path: Path) -> None:
    for run, later in (("a", 0), ("b", 86_400)):
        rows = "".join(named("tok_s")(i, t + later, r) for i, t, r in steps())
        write(tmp_path, f"{run}/train_log.jsonl", rows)
    assert len(read_folder(tmp_path).titles) == 2


@pytest.mark.parametrize("name", ["seq_len", "batch_size", "bsz", "context_len", "num_examples", "resolution"])
def test_a_curriculum_is_no_speed(tmp_path: Path, name: str) -> None:
    line = jsonl(**{name: lambda rate: 4096 if rate > 10_000 else 512})
    write(tmp_path, "train_log.jsonl", "".join(line(*row) for row in steps()))
    read = read_folder(tmp_path)
    assert (read.undecided, read.titles) == ([], [])
