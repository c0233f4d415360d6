"""Killed at any moment and resumed, a run is bit-identical to the unbroken one; a foreign checkpoint is refused."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import curve, log_of, small_config, start_process, train_here, write_text
from trainer.checkpoint import OPTIMIZER, STATE, list_checkpoints, load_state, load_tensors
from trainer.config import Config
from trainer.errors import CheckpointError, ResumeRefused

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("unbroken")
    config = small_config(folder, train={"epochs": 8})
    assert train_here(config) == 0
    steps = curve(config)
    assert list(steps) == list(range(1, len(steps) + 1))
    assert len(steps) > 50
    return folder, steps


def wait_for_lines(config: Config, count: int, process: Any) -> None:
    while len(log_of(config)) < count and process.is_alive():
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_at_random_moments_and_resume(unbroken: tuple[Path, dict[int, Any]], seed: int) -> None:
    folder, expected = unbroken
    config = small_config(folder, f"killed-{seed}", train={"epochs": 8}, checkpoint={"every": 3, "keep_last": 2})
    draw = random.Random(seed)
    kills = 0
    while True:
        process = start_process(config)
        wait_for_lines(config, len(log_of(config)) + draw.randint(1, 25), process)
        time.sleep(draw.random() * 0.1)  # in the midst of a step, of a save or of a deletion
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    assert curve(config) == expected
    assert len(log_of(config)) > len(expected)  # steps after a checkpoint were run again, with the same values
    names = sorted(path.name for path in Path(config.checkpoint.dir).iterdir() if "step_" in path.name)
    assert names == sorted(path.name for _, path in list_checkpoints(Path(config.checkpoint.dir)))


def test_sigterm_saves_after_the_step_in_progress_and_exits_cleanly(unbroken: tuple[Path, dict[int, Any]]) -> None:
    folder, expected = unbroken
    config = small_config(folder, "asked", train={"epochs": 8})
    process = start_process(config)
    wait_for_lines(config, 10, process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 0
    last = log_of(config)[-1]["step"]
    assert [step for step, _ in list_checkpoints(Path(config.checkpoint.dir))] == [last]
    assert last < len(expected)
    assert "asked to stop" in (Path(config.checkpoint.dir) / "run.log").read_text()
    assert train_here(config) == 0
    assert curve(config) == expected


def test_bf16_with_fp32_masters_resumes_exactly(tmp_path: Path) -> None:
    whole = small_config(tmp_path, "whole", train={"dtype": "bfloat16"})
    halves = small_config(tmp_path, "halves", train={"dtype": "bfloat16"}, checkpoint={"every": 4})
    train_here(whole)
    train_here(halves)
    steps = [step for step, _ in list_checkpoints(Path(halves.checkpoint.dir))]
    for step in steps[1:]:
        (Path(halves.checkpoint.dir) / f"step_{step}").rename(tmp_path / f"moved-{step}")
    train_here(halves)
    assert curve(halves) == curve(whole)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train_here(small_config(folder, train={"max_steps": 2}))
    return folder


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"target": {"mask_token_id": 252}}, "mask id was 255 and is 252"),
        ({"model": {"num_taps": 3}}, "taps"),
        ({"model": {"block_size": 5}}, "drafter block_size was 4 and is 5"),
        ({"target": {"seed": 1}}, "target "),
        ({"model": {"num_layers": 1, "layer_types": ["full_attention"]}}, "drafter num_layers"),
        ({"model": {"sliding_window": 20}}, "drafter sliding_window"),
        ({"data": {"max_batch_size": 4}}, r"the data differs \(data.max_batch_size: 8 -> 4\)"),
        ({"train": {"seed": 1}}, "seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_kind_of_run_is_refused(
    finished: Path, changed: dict[str, dict[str, Any]], named: str
) -> None:
    changed = {**changed, "train": {"max_steps": 2, **changed.get("train", {})}}
    with pytest.raises(ResumeRefused, match=named):
        train_here(small_config(finished, "run", **changed))


def test_changed_text_is_refused(tmp_path: Path) -> None:
    train_here(small_config(tmp_path, train={"max_steps": 2}))
    write_text(tmp_path / "text.jsonl", documents=50)
    with pytest.raises(ResumeRefused, match=r"what .*text\.jsonl holds has changed.*--new-data"):
        train_here(small_config(tmp_path, train={"max_steps": 2}))


def test_new_data_goes_on_with_the_optimizer_and_is_itself_resumed_exactly(tmp_path: Path) -> None:
    """The steps on it are as many as its rows make; a kill on the way leaves the curve of an unbroken run."""
    first = small_config(tmp_path, train={"epochs": 1}, checkpoint={"every": 2})
    train_here(first)
    before = load_state(list_checkpoints(tmp_path / "run")[-1][1])
    shutil.copytree(tmp_path / "run", tmp_path / "halves")
    other = {"paths": [str(write_text(tmp_path / "other.jsonl", documents=60, seed=1))]}
    whole = small_config(tmp_path, data=other, train={"epochs": 2}, checkpoint={"every": 3})
    train_here(whole, new_data=True)
    steps = curve(whole)
    assert list(steps) == list(range(1, len(steps) + 1))
    assert [steps[before.step + 1][key] for key in ("epoch", "batch")] == [0, 1]
    assert steps[len(steps)]["epoch"] == 2
    last = list_checkpoints(tmp_path / "run")[-1][1]
    after = load_state(last)
    assert [(one.digest, one.until_step) for one in after.earlier_data] == [(before.data_digest, before.step)]
    assert after.data_digest != before.data_digest
    updates = load_tensors(last, OPTIMIZER, torch.device("cpu"))["step.fc.weight"]
    assert int(updates) == after.step  # moments were kept: all updates are of one optimizer
    assert f"new data after step {before.step}: data.paths" in (tmp_path / "run" / "run.log").read_text()

    halves = small_config(tmp_path, "halves", data=other, train={"epochs": 2}, checkpoint={"every": 3})
    process = start_process(halves, new_data=True)
    wait_for_lines(halves, before.step + 5, process)
    process.terminate()
    process.join()
    assert len(log_of(halves)) < len(steps)
    train_here(halves)  # in the midst of the new data no flag is needed, and the same one changes nothing
    train_here(halves, new_data=True)
    assert curve(halves) == steps


def test_a_longer_schedule_goes_on_and_says_what_changed(tmp_path: Path) -> None:
    train_here(small_config(tmp_path, train={"max_steps": 2}))
    config = small_config(tmp_path, train={"max_steps": 4})
    train_here(config)
    assert list(curve(config)) == [1, 2, 3, 4]
    assert "train.max_steps: 2 -> 4" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_other_rows_a_step_train_on_the_rows_that_are_left(tmp_path: Path, before: int, after: int) -> None:
    """Steps and rows part: counted by steps alone, the run would end early, or wait for rows that are not there."""
    config = small_config(tmp_path, train={"rows_per_step": before, "max_steps": 4})
    train_here(config)
    left = len(train_all(tmp_path, rows_per_step=before, run="whole")) * before - 4 * before
    found = train_all(tmp_path, rows_per_step=after, run="run")
    assert found[-1]["step"] == 4 + left // after
    assert [line["step"] for line in found] == list(range(1, found[-1]["step"] + 1))
    assert found[-1]["epoch"] == 3


def train_all(folder: Path, rows_per_step: int, run: str) -> list[dict[str, Any]]:
    config = small_config(folder, run, train={"rows_per_step": rows_per_step})
    assert train_here(config) == 0
    return log_of(config)


def test_fresh_sets_the_earlier_run_aside(tmp_path: Path) -> None:
    config = small_config(tmp_path, train={"max_steps": 3}, checkpoint={"every": 2})
    train_here(config)
    first = curve(config)
    train_here(config, fresh=True)
    assert curve(config) == first
    aside = tmp_path / "run" / "previous-1"
    assert {path.name for path in aside.iterdir()} == {"step_2", "step_3", "train_log.jsonl"}


def test_a_resumed_earlier_checkpoint_sets_the_later_ones_aside(tmp_path: Path) -> None:
    """`envguard launch` starts at its reference. Were the later ones left, the new ones would be pruned."""
    config = small_config(tmp_path, train={"max_steps": 9}, checkpoint={"every": 3, "keep_last": 2})
    train_here(config)
    shorter = small_config(tmp_path, train={"max_steps": 7}, checkpoint={"every": 3, "keep_last": 2})
    train_here(shorter, checkpoint=tmp_path / "run" / "step_6")
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [6, 7]
    assert [path.name for path in (tmp_path / "run" / "previous-1").iterdir()] == ["step_9"]
    train_here(config)
    assert [line["step"] for line in log_of(config)] == [*range(1, 10), 7, 8, 9]
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [7, 9]


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    config = small_config(tmp_path, train={"max_steps": 2})
    train_here(config)
    assert "all 2 steps are done" not in (tmp_path / "run" / "run.log").read_text()
    train_here(config)
    assert "all 2 steps are done" in (tmp_path / "run" / "run.log").read_text()
    assert len(log_of(config)) == 2


def test_another_torch_is_pointed_out_with_the_command_that_compares(tmp_path: Path) -> None:
    config = small_config(tmp_path, train={"max_steps": 1})
    train_here(config)
    state = tmp_path / "run" / "step_1" / STATE
    state.write_text(state.read_text().replace(torch.__version__, "2.0.0+cu118"))
    train_here(config)
    said = f"saved by torch 2.0.0+cu118, now {torch.__version__}; `envguard diff {state.parent} live`"
    assert said in (tmp_path / "run" / "run.log").read_text()


def test_weights_only_begins_a_new_run_from_the_weights(tmp_path: Path) -> None:
    config = small_config(tmp_path, train={"max_steps": 6, "lr": 0.01})
    train_here(config)
    last = list_checkpoints(tmp_path / "run")[-1][1]
    new = small_config(tmp_path, "new", train={"max_steps": 1, "lr": 0.01})
    train_here(new, weights_only=last)
    first_loss = curve(config)[1]["loss_mean"]
    assert curve(new)[1]["loss_mean"] < first_loss
    assert load_state(list_checkpoints(tmp_path / "new")[-1][1]).step == 1


def test_a_second_trainer_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, train={"epochs": 8})
    process = start_process(config)
    wait_for_lines(config, 1, process)
    with pytest.raises(CheckpointError, match="another trainer"):
        train_here(config)
    process.terminate()
    process.join()
    assert process.exitcode == 0


def test_a_gradient_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import step
    from trainer.errors import TrainerError

    config = small_config(tmp_path, train={"max_steps": 4}, checkpoint={"every": 2})
    original = step.RowRunner.run
    calls = iter(range(100))

    def poisoned(self: Any, features: Any, row: Any) -> Any:
        if next(calls) == 3:
            features.taps.fill_(torch.nan)
        return original(self, features, row)

    monkeypatch.setattr(step.RowRunner, "run", poisoned)
    with pytest.raises(TrainerError, match="step 4 is not finite"):
        train_here(config)
    assert [number for number, _ in list_checkpoints(tmp_path / "run")] == [2]
    assert "not finite" in (tmp_path / "run" / "run.log").read_text()
