"""Checkpoints on disk: whole or absent, told when damaged, pruned as configured, without any pickle."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import msgspec
import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import State
from trainer.errors import CheckpointError


def state(step: int) -> State:
    return State(
        step=step, seed=0, epoch=0, batch_index=0, row=0, samples=0, config={}, config_digest="", identity={},
        mask_token_id=0, taps=(1,), block_size=4, drafter={}, data_digest="", topology={}, torch_version="",
    )  # fmt: skip


def save(folder: Path, step: int) -> Path:
    return checkpoint.save(folder, state(step), {checkpoint.MODEL: {"a": torch.arange(step)}})


def test_round_trip(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    assert path == tmp_path / "step_7"
    loaded = checkpoint.load_state(path)
    assert msgspec.structs.replace(loaded, files={}) == state(7)
    tensors = checkpoint.load_tensors(path, checkpoint.MODEL, torch.device("cpu"))
    assert torch.equal(tensors["a"], torch.arange(7))


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    for file in save(tmp_path, 3).iterdir():
        assert file.suffix in (".json", ".safetensors")
        content = file.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))


def test_steps_are_ordered_by_number_and_unfinished_ones_do_not_count(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        save(tmp_path, step)
    (tmp_path / "step_200").mkdir()
    (tmp_path / "step_x").mkdir()
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [9, 10, 100]
    assert checkpoint.list_checkpoints(tmp_path / "none") == []


def test_a_truncated_file_is_told_by_its_size(tmp_path: Path) -> None:
    path = save(tmp_path, 100)
    model = path / checkpoint.MODEL
    model.write_bytes(model.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="was written with"):
        checkpoint.load_state(path)
    model.unlink()
    with pytest.raises(CheckpointError, match="None bytes"):
        checkpoint.load_state(path)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"null", b"\xff\xfe", b'{"format": 99}'])
def test_a_damaged_state_is_told(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path, 1)
    (path / checkpoint.STATE).write_bytes(content)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        checkpoint.load_state(path)


@pytest.mark.parametrize(("key", "value"), [("format", 99), ("row", -5), ("step", "3"), ("config", {"train": 3})])
def test_a_state_that_cannot_be_is_told(tmp_path: Path, key: str, value: object) -> None:
    path = save(tmp_path, 1)
    content = json.loads((path / checkpoint.STATE).read_bytes())
    (path / checkpoint.STATE).write_text(json.dumps({**content, key: value}))
    with pytest.raises(CheckpointError):
        checkpoint.load_state(path)


def test_a_damaged_tensor_file_is_told(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / checkpoint.MODEL).write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match="cannot read"):
        checkpoint.load_tensors(path, checkpoint.MODEL, torch.device("cpu"))


def test_the_same_step_again_replaces_the_older_branch(tmp_path: Path) -> None:
    save(tmp_path, 4)
    again = checkpoint.save(tmp_path, state(4), {checkpoint.MODEL: {"b": torch.ones(2)}})
    assert list(checkpoint.load_tensors(again, checkpoint.MODEL, torch.device("cpu"))) == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]


def test_a_disk_that_takes_no_more_leaves_the_earlier_checkpoints_alone(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: safetensors meets it in the same place."""
    save(tmp_path, 4)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*step_100000: .*File too large"):
            save(tmp_path, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(tmp_path / "file", 4)


def test_other_users_may_read_a_checkpoint_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save(tmp_path, 4)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o750
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o640}


def test_a_checkpoint_is_found_by_path_or_by_its_name_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    assert checkpoint.find(run) is None
    for step in (3, 10):
        save(run, step)
    save(other, 5)
    assert checkpoint.find(run) == run / "step_10"
    assert checkpoint.find(run, Path("step_3")) == run / "step_3"
    assert checkpoint.find(run, other / "step_5") == other / "step_5"
    with pytest.raises(CheckpointError, match=r"step_5 is no checkpoint.*run: step_3, step_10"):
        checkpoint.find(run, Path("step_5"))
    monkeypatch.chdir(other)
    assert checkpoint.find(run, Path("step_5")) == Path("step_5")


def test_pruning_keeps_the_last_and_the_milestones(tmp_path: Path) -> None:
    for step in range(10, 80, 10):
        save(tmp_path, step)
    deleted = checkpoint.prune(tmp_path, keep_last=2, keep_every=30)
    assert [path.name for path in deleted] == ["step_10", "step_20", "step_40", "step_50"]
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [30, 60, 70]


def test_the_lock_removes_what_a_killed_trainer_left(tmp_path: Path) -> None:
    for name in (".step_5.abc.tmp", ".step_4.deleting"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    save(tmp_path, 3)
    (tmp_path / ".other.tmp").mkdir()
    with checkpoint.run_lock(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {".lock", ".other.tmp", "step_3"}


def test_a_stamp_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import envguard

    def failing(_: object) -> None:
        raise RuntimeError("no witness")

    monkeypatch.setattr(envguard, "stamp", failing, raising=False)
    checkpoint.stamp(save(tmp_path, 3))
    assert "not stamped: RuntimeError: no witness" in caplog.text


def test_changed_settings_are_listed(tmp_path: Path) -> None:
    from trainer.config import build_config

    before, after = (
        msgspec.structs.replace(state(1), config=json.loads(msgspec.json.encode(build_config(table))))
        for table in ({}, {"train": {"lr": 1.0}})
    )
    assert checkpoint.changed_settings(before, before) == []
    assert checkpoint.changed_settings(before, after) == ["train.lr: 0.0006 -> 1.0"]


def test_generators_are_set_from_a_row_of_all_ranks_states() -> None:
    before = torch.get_rng_state()
    rows = torch.stack([before, before])
    drawn = torch.rand(3)
    checkpoint.set_rng_state({"cpu": rows[1]})
    assert torch.equal(torch.rand(3), drawn)
