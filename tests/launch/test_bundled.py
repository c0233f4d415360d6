"""Without a COMMAND: the trainer of this checkout, at the reference checkpoint, with its settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from envguard.acquire.runs.checkpoints import Checkpoint, read_checkpoint
from envguard.acquire.seam.host import LiveHost
from envguard.errors import InputError, UsageError
from envguard.launch.bundled import are_options, bundled_command, split_options, without_nulls, write_config

HOST = LiveHost()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text("")
    return tmp_path


def saved(root: Path, state: object) -> Checkpoint:
    folder = root / "runs" / "step_40"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps(state))
    found = read_checkpoint(HOST, str(folder))
    assert found is not None
    return found


def test_it_resumes_the_checkpoint_with_its_settings(checkout: Path) -> None:
    config = {"model": {"block_size": 8}, "data": {"paths": ["a"], "limit": None}, "topology": {"targets": 1}}
    checkpoint = saved(checkout, {"step": 40, "config": config})
    made = bundled_command(
        HOST, checkout, checkout / ".envguard", "/venv/bin/python", checkpoint, ["--drafters", "3"]
    )
    assert made.folder == checkout
    assert made.command == (
        "/venv/bin/python", "-m", "trainer", "train", str(made.config_file), "--checkpoint", checkpoint.path,
        "--drafters", "3",
    )  # fmt: skip
    write_config(made)
    assert tomllib.loads(made.config_file.read_text()) == without_nulls(config)


@pytest.mark.parametrize(
    ("words", "options"),
    [((), True), (("--drafters", "3"), True), (("train.max_steps=8",), True), (("python", "a.b=c"), False),
     (("./train.x=1",), False), (("a=b",), False), (("train.py",), False)],
)  # fmt: skip
def test_which_words_are_options_of_the_trainer_and_name_no_command(words: tuple[str, ...], options: bool) -> None:
    assert are_options(words) is options


def test_torchruns_options_go_to_torchrun(checkout: Path) -> None:
    checkpoint = saved(checkout, {"config": {}})
    words = ["--nnodes", "2", "--rdzv-endpoint=gpu1:29400", "--dry-run", "--max_restarts", "3", "--standalone", "x=1"]
    assert split_options(words) == (
        ["--nnodes", "2", "--rdzv-endpoint=gpu1:29400", "--max_restarts", "3", "--standalone"], ["--dry-run", "x=1"],
    )  # fmt: skip
    made = bundled_command(HOST, checkout, checkout, None, checkpoint, words)
    assert made.command[:5] == ("python3", "-m", "torch.distributed.run", "--nnodes", "2")
    assert made.command[-2:] == ("--dry-run", "x=1")


def test_what_it_cannot_start(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkout"):
        bundled_command(HOST, tmp_path / "elsewhere", tmp_path, None, None, ())
    with pytest.raises(UsageError, match="no checkout"):
        bundled_command(HOST, None, tmp_path, None, None, ())
    with pytest.raises(UsageError, match="no checkpoint whose settings"):
        bundled_command(HOST, checkout, tmp_path, None, None, ())
    with pytest.raises(InputError, match="holds no `config`"):
        bundled_command(HOST, checkout, tmp_path, None, saved(checkout, {"step": 1}), ())


def test_a_checkpoint_whose_state_cannot_be_read(checkout: Path, tmp_path: Path) -> None:
    checkpoint = saved(checkout, {})
    path = Path(checkpoint.path) / "trainer_state.json"
    path.write_text("{")
    with pytest.raises(InputError, match="no JSON"):
        bundled_command(HOST, checkout, tmp_path, None, checkpoint, ())
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        bundled_command(HOST, checkout, tmp_path, None, checkpoint, ())
