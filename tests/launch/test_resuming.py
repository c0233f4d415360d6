"""The checkpoint that a command line goes on from: by every spelling, and never another one."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from envguard import clock
from envguard.acquire.runs.stamps import reference
from envguard.acquire.seam.host import LiveHost
from envguard.fingerprint.places import Places
from envguard.fingerprint.reference import no_live, resolve
from envguard.launch.resuming import Resumed, resumed
from envguard.model import plain
from envguard.model.identity import sealed
from tests.fingerprint.made import fingerprint, package

SAVED = int(clock.seconds("2026-05-18T18:41:00.000+00:00"))


def put(path: Path, stamped: str | None = None, data: bytes = b"weights", seconds: int = SAVED) -> Path:
    """A checkpoint: a file where its name has an extension, else a folder with a model; stamped with a package."""
    file = path if path.suffix else path / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data + str(path).encode())
    os.utime(file, (seconds, seconds))
    if stamped is not None:
        named = reference(LiveHost(), str(path))
        made = sealed(
            fingerprint(package(stamped), origin="loaded", checkpoint=named, taken_at=clock.iso(seconds + 5))
        )
        (path / "envguard.json" if path.is_dir() else Path(f"{path}.envguard.json")).write_bytes(plain.encode(made))
    return path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    put(tmp_path / "checkpoints/step_200")
    put(tmp_path / "checkpoints/step_400", "new", seconds=SAVED + 600)
    (tmp_path / "checkpoints/latest").symlink_to("step_200")
    put(tmp_path / "lightning/epoch=0-step=50.ckpt")
    (tmp_path / "lightning/last.ckpt").symlink_to("epoch=0-step=50.ckpt")
    put(tmp_path / "out/ckpt.pt", "gpt")
    put(tmp_path / "runs/exp/checkpoint-100", "a")
    put(tmp_path / "runs/exp/checkpoint-300")
    put(tmp_path / "runs/final")
    for step in (500, 600):
        put(tmp_path / f"megatron/iter_0000{step}/mp_rank_00/model.pt")
    (tmp_path / "megatron/latest_checkpointed_iteration.txt").write_text("500\n")
    put(tmp_path / "ds/global_step70/mp_rank_00_model_states.pt")
    (tmp_path / "ds/latest").write_text("global_step70")
    of_step = put(tmp_path / "copied/epoch=0-step=9.ckpt", "lightning")
    shutil.copy(of_step, tmp_path / "copied/last.ckpt")
    (tmp_path / "copied/hard.ckpt").hardlink_to(of_step)
    (tmp_path / "copied/other.ckpt").write_bytes(of_step.read_bytes()[:-1] + b"!")
    put(tmp_path / "release/release/mp_rank_00/model_optim_rng.pt")
    (tmp_path / "release/latest_checkpointed_iteration.txt").write_text("release\n")
    put(tmp_path / "named/best/mp_rank_00_model_states.pt")
    put(tmp_path / "named/global_step9/mp_rank_00_model_states.pt")
    (tmp_path / "named/latest").write_text("best")
    put(tmp_path / "gone/global_step40/mp_rank_00_model_states.pt")
    (tmp_path / "gone/latest").write_text("global_step60")
    put(tmp_path / "dangling/step_7")
    (tmp_path / "dangling/latest").symlink_to("step_8")
    put(tmp_path / "many/a/step_1")
    put(tmp_path / "many/b/step_2")
    (tmp_path / "empty").mkdir()
    roots = tuple(str(tmp_path / name) for name in ("checkpoints", "runs", "lightning"))
    return Places(LiveHost(), str(tmp_path), roots, str(tmp_path / ".envguard"), no_live)


def ask(places: Places, words: str) -> Resumed | None:
    return resumed(["python", "train.py", *words.split()], places)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--resume step_200", "checkpoints/step_200"),
        ("--resume checkpoints/step_200", "checkpoints/step_200"),
        ("--resume checkpoints/step_200/", "checkpoints/step_200"),
        ("--resume checkpoints/latest", "checkpoints/step_200"),
        ("--resume latest", "checkpoints/step_200"),
        ("--resume checkpoints/step_200/model.safetensors", "checkpoints/step_200"),
        ("--resume checkpoints/latest/model.safetensors", "checkpoints/step_200"),
        ("--resume checkpoints/step_400/envguard.json", "checkpoints/step_400"),
        ("--ckpt_path lightning/last.ckpt", "lightning/epoch=0-step=50.ckpt"),
        ("--ckpt_path last", "lightning/epoch=0-step=50.ckpt"),
        ("ckpt_path='lightning/epoch=0-step=50.ckpt'", "lightning/epoch=0-step=50.ckpt"),
        ("ckpt_path=lightning/epoch\\=0-step\\=50.ckpt", "lightning/epoch=0-step=50.ckpt"),
        ("--resume out/ckpt.pt", "out/ckpt.pt"),
        ("--resume out", "out/ckpt.pt"),
        ("--init_from=resume", "out/ckpt.pt"),
        ("--init_from=resume --out_dir=out", "out/ckpt.pt"),
        ("--load checkpoints/step_200", "checkpoints/step_200"),
        ("--restore-file checkpoints/step_200", "checkpoints/step_200"),
        ("--restore_file=checkpoints/step_200", "checkpoints/step_200"),
        ("--load-dir megatron", "megatron/iter_0000500"),
        ("--load megatron --save megatron2", "megatron/iter_0000500"),
        ("--load megatron --ckpt-step 600", "megatron/iter_0000600"),
        ("--load megatron/iter_0000600", "megatron/iter_0000600"),
        ("--load megatron/iter_0000600/mp_rank_00", "megatron/iter_0000600"),
        ("--load ds", "ds/global_step70"),
        ("--resume ds/latest", "ds/global_step70"),
        ("--checkpoint.load_step 200", "checkpoints/step_200"),
        ("--checkpoint.load_step=200", "checkpoints/step_200"),
        ("--resume-step 200", "checkpoints/step_200"),
        ("--resume 200", "checkpoints/step_200"),
        ("--checkpoint.initial_load_path checkpoints/step_200", "checkpoints/step_200"),
        ("trainer.resume_path=checkpoints/step_200", "checkpoints/step_200"),
        ("+trainer.resume_from_path=checkpoints/step_200", "checkpoints/step_200"),
        ("resume=checkpoints/step_200", "checkpoints/step_200"),
        ("--loadFrom checkpoints/step_200", "checkpoints/step_200"),
        ("--resumeFromCheckpoint checkpoints/step_200", "checkpoints/step_200"),
        ("--load_checkpoint_path runs/final", "runs/final"),
        ("--resume runs/exp", "runs/exp/checkpoint-300"),
        ("exp_manager.resume_if_exists=true exp_manager.exp_dir=runs/exp", "runs/exp/checkpoint-300"),
        ("--resume --attention_dropout 0.1", "checkpoints/step_400"),
        ("--resume_from_checkpoint=True --output_dir runs/exp", "runs/exp/checkpoint-300"),
        ("--resume_from_checkpoint True --output_dir=runs/exp", "runs/exp/checkpoint-300"),
        ("--output_dir runs/exp --resume_from_checkpoint runs/exp/checkpoint-100", "runs/exp/checkpoint-100"),
        ("--resume", "checkpoints/step_400"),
        ("--resume --lr 1", "checkpoints/step_400"),
        ("--resume auto", "checkpoints/step_400"),
        ("resume=1", "checkpoints/step_400"),
        ("trainer.resume_mode=resume_path trainer.resume_from_path=runs/final", "runs/final"),
        ("--checkpoint runs/final", "runs/final"),
        ("--ckpt=200 --resume step_400", "checkpoints/step_400"),
        ("--model_name_or_path runs/exp/checkpoint-100", "runs/exp/checkpoint-100"),
        ("runs/exp/checkpoint-100", "runs/exp/checkpoint-100"),
        ("--teacher_checkpoint checkpoints/step_400 --resume step_200", "checkpoints/step_200"),
        ("--ref-load checkpoints/step_400 --load checkpoints/step_200", "checkpoints/step_200"),
        ("--load_checkpoint checkpoints --step 200", "checkpoints/step_200"),
        ("--load megatron --iteration 600", "megatron/iter_0000600"),
        ("-r checkpoints/step_200", "checkpoints/step_200"),
        ("--warmstart=checkpoints/step_200", "checkpoints/step_200"),
        ("--config.resume.path=checkpoints/step_200", "checkpoints/step_200"),
        ("args.resume=checkpoints/step_200", "checkpoints/step_200"),
        ("--whatever runs/exp/checkpoint-100", "runs/exp/checkpoint-100"),
        ("--output_dir runs/exp --resume_from_checkpoint latest", "runs/exp/checkpoint-300"),
        ("--output_dir=runs/exp --resume=last", "runs/exp/checkpoint-300"),
        ("--resume copied/last.ckpt", "copied/epoch=0-step=9.ckpt"),
        ("--resume copied/hard.ckpt", "copied/epoch=0-step=9.ckpt"),
        ("--resume copied/other.ckpt", "copied/other.ckpt"),
        ("--load release", "release/release"),
        ("--load named", "named/best"),
    ],
)
def test_every_spelling_leads_to_that_checkpoint(places: Places, tmp_path: Path, words: str, path: str) -> None:
    found = ask(places, words)
    assert found is not None
    assert (found.why, found.checkpoint and found.checkpoint.path) == (None, str(tmp_path / path))


@pytest.mark.parametrize(
    "words", ["--resume", "--resume runs/exp", "--load ds", "--resume-step 200", "--resume auto"]
)
def test_the_label_is_a_reference_that_leads_to_the_same_checkpoint(places: Places, words: str) -> None:
    """Hints quote it: `envguard diff LABEL`."""
    found = ask(places, words)
    assert found is not None
    assert found.checkpoint is not None
    assert resolve(found.label, places).path == found.checkpoint.path


def test_words_of_a_script_after_sh_c_are_words_of_the_command(places: Places, tmp_path: Path) -> None:
    script = "cd . && python train.py --resume checkpoints/step_200"
    for command in (["bash", "-c", script], ["srun", "bash", "-lc", script], ["/bin/sh", "-c", script]):
        found = resumed(command, places)
        assert found is not None
        assert found.checkpoint is not None
        assert found.checkpoint.path == str(tmp_path / "checkpoints/step_200")
    assert resumed(["bash", "-c", "echo 'half"], places) is None
    (tmp_path / "train.sh").write_text(
        "#!/bin/bash\n# --resume step_400\ntorchrun train.py \\\n  --resume $FROM  # as ever\n"
    )
    for variables, why in (({"FROM": "step_200"}, None), ({}, "$FROM is not here: there is none")):
        found = resumed(["bash", "train.sh"], places, variables)
        assert found is not None
        assert found.why == why
        assert why or (found.checkpoint and found.checkpoint.name == "step_200")


@pytest.mark.parametrize(
    "words",
    [
        "--resume step_77",
        "--resume out/step_77",
        "--resume out/last",
        "--ckpt=out/checkpoint-77",
        "--ckpt step_77",
        "--resume-step 77",
        "--checkpoint.load_step 77",
        "--load s3://bucket/run/step_5",
        "--load hf-org/model",
        "--resume empty/x.pt",
        "--load many",
        "--load empty/",
        "--restore-file gone.pt",
    ],
)
def test_a_checkpoint_that_is_named_and_is_not_one_here_cannot_be_determined(places: Places, words: str) -> None:
    found = ask(places, words)
    assert found is not None
    assert found.checkpoint is None
    assert found.why


@pytest.mark.parametrize(
    "words",
    [
        "--checkpoint-every 200",
        "checkpoint.every=200",
        "--checkpoint.interval 200",
        "--save-checkpoint out/step_9",
        "--checkpoint-dir out/run",
        "--checkpoint_dir checkpoints",
        "--output_dir runs/exp",
        "--ckpt missing",
        "--load_in_8bit True",
        "--load_best_model_at_end True",
        "--load-format safetensors",
        "--gradient_checkpointing True",
        "--use_checkpoint true",
        "--resume_from_checkpoint=False",
        "--resume none",
        "resume=0",
        "--no-load-optim --no-load-rng",
        "--exit-on-missing-checkpoint",
        "--ckpt-format torch_dist",
        "--dataloader.num_workers 4",
        "--data_path checkpoints/step_400/model.safetensors",
        "--teacher_checkpoint checkpoints/step_400",
        "--resume auto --output_dir fresh",
        "--wandb.resume allow",
        "--lr 1e-4 config.yaml",
    ],
)
def test_words_that_name_no_checkpoint_to_go_on_from(places: Places, words: str) -> None:
    assert ask(places, words) is None


def test_several_of_one_environment_are_as_good_as_one(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/step_200", "same")
    put(tmp_path / "checkpoints/epoch=0-step=200.ckpt", "same")
    places = Places(LiveHost(), str(tmp_path), (str(tmp_path / "checkpoints"),), str(tmp_path / "s"), no_live)
    found = ask(places, "--checkpoint.load_step 200")
    assert found is not None
    assert found.checkpoint is not None
    assert found.checkpoint.step == 200
    put(tmp_path / "checkpoints/checkpoint-200", "other")
    found = ask(places, "--checkpoint.load_step 200")
    assert found is not None
    assert found.checkpoint is None
    assert "it may be any of" in (found.why or "")


def test_the_newest_of_nothing_is_a_fresh_start(tmp_path: Path) -> None:
    places = Places(LiveHost(), str(tmp_path), (str(tmp_path / "checkpoints"),), str(tmp_path / "s"), no_live)
    assert ask(places, "--resume auto") is None


@pytest.mark.parametrize(
    "words",
    [
        "--output_dir loop --resume",
        "--save-dir loop --resume=auto",
        "out_dir=loop resume=True",
        "--out_dir=loop --init_from=resume",
        "--output-dir loop --save-dir megatron --resume",
        "--checkpoint.folder loop --checkpoint.load_step 200",
    ],
)
def test_a_folder_to_go_on_from_that_cannot_be_read_is_no_fresh_start(
    places: Places, tmp_path: Path, words: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found = ask(places, words)
    assert found is not None
    assert found.checkpoint is None
    assert found.why is not None
    assert found.why.startswith("loop cannot be read")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--load gone", "latest names a checkpoint that is not here"),
        ("--resume dangling", "latest names a checkpoint that is not here"),
        ("--load_checkpoint checkpoints --step 300", "holds no checkpoint of step 300"),
        ("--load megatron --iter 1", "holds no checkpoint of step 1"),
    ],
)
def test_a_pointer_or_a_step_of_what_is_gone_is_no_leave_to_take_another(
    places: Places, words: str, why: str
) -> None:
    found = ask(places, words)
    assert found is not None
    assert found.checkpoint is None
    assert why in (found.why or "")


@pytest.mark.parametrize(
    "command",
    [
        "bash run.sh",
        "bash -e run.sh",
        "bash -x -u run.sh",
        "sh -ec 'python train.py --resume checkpoints/step_200'",
        "./run.sh",
        "./run",
        "srun -n 2 bash run.sh",
        "timeout 10 ./run.sh",
        "sbatch --wait job.slurm",
        "bash run.sh --lr 1",
    ],
)
def test_a_script_of_a_shell_is_read(places: Places, tmp_path: Path, command: str) -> None:
    for name in ("run.sh", "run", "job.slurm"):
        (tmp_path / name).write_text("#!/usr/bin/env bash\nset -e\npython train.py --resume checkpoints/step_200\n")
    found = resumed(shlex.split(command), places)
    assert found is not None
    assert found.checkpoint is not None
    assert found.checkpoint.path == str(tmp_path / "checkpoints/step_200")


def test_a_program_that_is_no_script_of_a_shell_is_not_read_as_one(places: Places, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/usr/bin/python3\npython train.py --resume checkpoints/step_200\n")
    assert resumed(["./run"], places) is None
