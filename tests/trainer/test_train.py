"""Whole runs on CPU: the loss falls, what is learnt is real, and rows may be cut into steps in any way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import curve, log_of, small_config, train_here, uneven_rows, write_text
from trainer import checkpoint, cli, step
from trainer.checkpoint import list_checkpoints
from trainer.config import build_config
from trainer.distributed import connected
from trainer.dryrun import sizes_of
from trainer.loss import Totals, block_loss


def test_overfits_a_few_documents_and_drafts_more_than_one_token(tmp_path: Path) -> None:
    write_text(tmp_path / "text.jsonl", documents=6)
    config = small_config(
        tmp_path,
        model={"layer_types": ["full_attention", "full_attention"], "sliding_window": 64},
        train={"epochs": 200, "lr": 0.03},
        data={"length_buckets": [512]},
    )
    train_here(config)
    lines = log_of(config)
    last = lines[-20:]
    assert sum(line["loss_mean"] for line in last) / 20 < 0.7 * lines[0]["loss_mean"]
    assert lines[0]["acceptance_length"] < 1.2
    assert sum(line["acceptance_length"] for line in last) / 20 > 1.5
    assert all(line["attention"] == "sdpa" for line in lines)
    assert all(line["recompiles"] == 0 for line in lines)


def test_a_device_without_the_memory_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert (ended.value.code, said[0]) == (1, "error: CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert "data.token_budget" in said[1]
    with pytest.raises(torch.OutOfMemoryError), connected():  # no broken connection
        full()


def test_no_step_takes_the_time_of_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or speed would seem to fall after each checkpoint, and the drafter to be the slower side."""
    original = checkpoint.save

    def slow(*arguments: Any) -> Path:
        time.sleep(0.5)
        return original(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    config = small_config(tmp_path, train={"max_steps": 4}, checkpoint={"every": 1})
    train_here(config)
    assert min(line["step_s"] for line in log_of(config)[1:]) < 0.5


def test_rows_of_a_step_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step's loss over 4 rows is their weights' mean, not the mean of their means."""
    sums: list[tuple[float, float]] = []

    def noted(*arguments: Any, **options: Any) -> Totals:
        totals = block_loss(*arguments, **options)
        sums.append((totals.numerator.item(), totals.denominator.item()))
        return totals

    monkeypatch.setattr(step, "block_loss", noted)
    uneven = uneven_rows(tmp_path)
    singles = small_config(tmp_path, "singles", train={"lr": 1e-12, "max_steps": 4}, **uneven)
    together = small_config(tmp_path, "together", train={"lr": 1e-12, "max_steps": 1, "rows_per_step": 4}, **uneven)
    train_here(singles)
    train_here(together)
    first = curve(together)[1]
    numerators, denominators = zip(*sums[4:], strict=True)
    assert [weights for _, weights in sums[:4]] == list(denominators)
    assert first["loss_mean"] == pytest.approx(sum(numerators) / sum(denominators), rel=1e-6)
    means = [numerator / denominator for numerator, denominator in sums[4:]]
    assert first["loss_mean"] != pytest.approx(sum(means) / 4, rel=1e-5)
    assert first["documents"] == curve(singles)[4]["documents"]
    assert list_checkpoints(Path(together.checkpoint.dir))[-1][0] == 1


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=cwd, text=True, capture_output=True, env={"PYTHONPATH": root, "PATH": "", "COLUMNS": "120"}, check=False,
    )  # fmt: skip


def toml(path: Path, text: Path) -> Path:
    path.write_text(
        "[model]\nblock_size = 8\nnum_layers = 1\nnum_taps = 2\nanchors = 64\n"
        '[target]\nkind = "random"\nshape = "tiny"\n'
        f"[data]\npaths = [{json.dumps(str(text))}]\ntoken_budget = 512\n[train]\nmax_steps = 2\n"
    )
    return path


def test_the_command_line_trains_and_resumes(tmp_path: Path) -> None:
    config = toml(tmp_path / "a.toml", write_text(tmp_path / "text.jsonl"))
    done = command("train", str(config), "checkpoint.dir=out", "checkpoint.stamp=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SDPA with the dense mask" in done.stderr
    more = command("train", str(config), "checkpoint.dir=out", "train.max_steps=3", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert "resumed from out/step_2" in more.stderr
    assert [step for step, _ in list_checkpoints(tmp_path / "out")] == [2, 3]


def test_errors_are_one_line_with_their_exit_code(tmp_path: Path) -> None:
    config = toml(tmp_path / "a.toml", tmp_path / "text.jsonl")
    unknown = command("train", str(config), "train.epoch=3", cwd=tmp_path)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "did you mean 'epochs'" in unknown.stderr
    both = command("train", str(config), "--fresh", "--weights-only", "x", cwd=tmp_path)
    assert both.returncode == 2
    missing = command("train", str(config), "--weights-only", "none", cwd=tmp_path)
    assert missing.returncode == 2  # the text file is not there
    nowhere = command("train", str(config), f"checkpoint.dir={config}", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert "File exists" in nowhere.stderr


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_dry_runs_need_neither_target_nor_text(path: Path, tmp_path: Path) -> None:
    done = command("train", str(path), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not countable here" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("train", "width"),
    [({}, 2), ({"dtype": "float32"}, 4), ({"device": "cpu"}, 4), ({"device": "cpu", "dtype": "bfloat16"}, 2)],
)
def test_the_dry_run_plans_for_a_gpu_unless_told_otherwise(train: dict[str, str], width: int) -> None:
    assert sizes_of(build_config({"train": train})).width == width


def test_the_dry_run_of_the_story(tmp_path: Path) -> None:
    done = command("train", str(CONFIGS / "qwen3.6-27b-5+3.toml"), "--dry-run", cwd=tmp_path)
    for part in ("1, 16, 31, 46, 61", "[49152, 25600]", "[16384, 65536]", "1730.2 M", "5 targets, 3 drafters"):
        assert part in done.stdout
