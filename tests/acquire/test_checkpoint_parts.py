"""What a checkpoint's files are, when they were saved, and whether the save ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from envguard import clock
from envguard.acquire.runs.checkpoint_parts import roles
from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.checkpoints import Checkpoint, read_checkpoint, step_of
from envguard.acquire.runs.stamps import Stamp, read_stamp, reference
from envguard.acquire.seam.host import LiveHost
from envguard.model import plain
from envguard.model.identity import sealed
from tests.fingerprint.made import fingerprint

SAVED = int(clock.seconds("2026-05-18T18:41:00.000+00:00"))
HF = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state_0.pth",
    "training_args.bin",
    "trainer_state.json",
)
LAYOUTS: dict[str, tuple[str, ...]] = {
    "checkpoint-500": HF,
    "step-500": (".metadata", "__0_0.distcp", "__1_0.distcp"),
    "iter_0000500": ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"),
    "global_step500": ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "model--epoch=0-step=500-last": (
        "weights/.metadata",
        "weights/__0_0.distcp",
        "weights/common.pt",
        "context/io.json",
    ),
    "500": ("default/_METADATA", "default/d/0a1b", "default/manifest.ocdbt", "_CHECKPOINT_METADATA"),
    "005000": ("pretrained_model/model.safetensors", "training_state/optimizer_state.safetensors"),
    "checkpoint_3": ("model.safetensors", "optimizer.bin", "random_states_0.pkl"),
    "checkpoint-600": ("pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "trainer_state.json"),
    "step_700": (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ),
}
LATER = (
    "README.md", "eval_results.json", "config.json", "tokenizer.json", "logs/x.log", "envguard.json",
    "zero_to_fp32.py", "events.out.tfevents.1", "model-q4.gguf",
)  # fmt: skip


def make(path: Path, names: tuple[str, ...], seconds: int = SAVED, data: bytes = b"w" * 5000) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
        os.utime(path / name, (seconds, seconds))
    return path


def read(path: Path) -> Checkpoint:
    found = read_checkpoint(LiveHost(), str(path))
    assert found is not None
    return found


def put_stamp(path: Path, taken: int = SAVED + 5, origin: str = "loaded") -> None:
    named = reference(LiveHost(), str(path))
    made = sealed(fingerprint(origin=origin, checkpoint=named, taken_at=clock.iso(taken)))
    target = path / "envguard.json" if path.is_dir() else path.with_name(f"{path.name}.envguard.json")
    target.write_bytes(plain.encode(made))


def stamp_of(path: Path) -> Stamp:
    found = read_stamp(LiveHost(), str(path))
    assert found is not None
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_found_complete_and_dated(tmp_path: Path, name: str) -> None:
    make(tmp_path / "checkpoints" / "run" / name, LAYOUTS[name])
    (found,) = find_checkpoints(LiveHost(), [str(tmp_path / "checkpoints")]).found
    assert (found.name, found.step) == (name, step_of(name))
    assert (found.incomplete, found.first_ns, found.saved_ns) == (None, SAVED * clock.NS, SAVED * clock.NS)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("later", LATER)
def test_what_is_written_beside_the_core_moves_no_time(tmp_path: Path, name: str, later: str) -> None:
    path = make(tmp_path / name, LAYOUTS[name])
    if (path / later).exists():
        return
    make(path, (later,), SAVED + 9000)
    assert (read(path).saved_ns, read(path).incomplete) == (SAVED * clock.NS, None)


@pytest.mark.parametrize(
    ("names", "later"),
    [
        (HF, "pytorch_model.bin"),
        (HF, "consolidated.safetensors"),
        (HF, "merged/model.safetensors"),
        (("global_step5/mp_rank_00_model_states.pt", "trainer_state.json"), "pytorch_model.bin"),
        (("global_step5/mp_rank_00_model_states.pt", "trainer_state.json"), "model.safetensors"),
        (("global_step5/mp_rank_00_model_states.pt",), "pytorch_model-00001-of-00002.bin"),
        ((".metadata", "__0_0.distcp"), "model.safetensors"),
        ((".metadata", "__0_0.distcp"), "hf/model.safetensors"),
    ],
)
def test_consolidated_weights_move_no_time(tmp_path: Path, names: tuple[str, ...], later: str) -> None:
    path = make(tmp_path / "step_5", names)
    make(path, (later,), SAVED + 9000)
    assert read(path).saved_ns == SAVED * clock.NS
    assert read(path).incomplete is None


def test_a_whole_model_alone_is_the_weights() -> None:
    assert roles(["pytorch_model.bin", "config.json"]) == {"pytorch_model.bin": "weights", "config.json": "side"}
    assert roles(["consolidated.00.pth", "params.json"])["consolidated.00.pth"] == "weights"


def test_a_save_is_an_interval(tmp_path: Path) -> None:
    path = make(tmp_path / "step_5", ("model.safetensors",))
    make(path, ("optimizer.pt",), SAVED + 40)
    assert (read(path).first_ns, read(path).saved_ns) == (SAVED * clock.NS, (SAVED + 40) * clock.NS)


@pytest.mark.parametrize("seconds", [0, 1, 315_532_800, 315_532_800 - 43_200, 315_532_800 + 50_400, 499_162_500])
@pytest.mark.parametrize("name", ["step_5", "step_5.pt"])
def test_times_that_no_save_has_are_unknown_and_a_stamp_knows_better(tmp_path: Path, name: str, seconds: int) -> None:
    path = make(tmp_path, (name,), seconds) / name if "." in name else make(tmp_path / name, HF, seconds)
    assert (read(path).dated, read(path).saved_ns) == (False, 0)
    put_stamp(path)
    stamp = stamp_of(path)
    assert (stamp.counts, stamp.checkpoint.dated, stamp.checkpoint.by_stamp) == (True, True, True)
    assert stamp.checkpoint.saved_ns == (SAVED + 5) * clock.NS


@pytest.mark.parametrize("name", ["step_5", "step_5.pt"])
def test_a_copy_without_times_keeps_the_time_of_its_stamp(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, (name,)) / name if "." in name else make(tmp_path / name, HF)
    put_stamp(path)
    assert stamp_of(path).checkpoint.saved_ns == SAVED * clock.NS, "its files tell it more exactly"
    there = tmp_path / "copied"
    there.mkdir()
    for each in (path, Path(f"{path}.envguard.json")):
        if each.is_dir():
            shutil.copytree(each, there / each.name, copy_function=shutil.copyfile)
        elif each.exists():
            shutil.copyfile(each, there / each.name)
    copied = stamp_of(there / name)
    assert copied.counts
    assert copied.checkpoint.saved_ns == (SAVED + 5) * clock.NS
    put_stamp(there / name, origin="retrospective")
    late = stamp_of(there / name)
    assert (late.counts, late.checkpoint.by_stamp) == (False, False), "what was stamped afterwards proves no time"


INCOMPLETE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "empty": ("checkpoint-5", (), "it is empty"),
    "only configuration": ("checkpoint-5", ("config.json",), "it holds no weights"),
    "no .metadata": ("step-5", ("__0_0.distcp",), ".metadata is missing, which is written last"),
    "no .metadata below": ("step=5", ("w/__0_0.distcp",), "w/.metadata is missing, which is written last"),
    "a shard": (
        "checkpoint-5",
        ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors", "model.safetensors.index.json"),
        "model-00002-of-00003.safetensors is missing",
    ),
    "the index": (
        "checkpoint-5",
        ("pytorch_model-00001-of-00001.bin",),
        "pytorch_model.bin.index.json is missing, which is written last",
    ),
    "the trainer's record": ("checkpoint-5", HF[:-1], "trainer_state.json is missing, which the Trainer writes last"),
    "a temporary file": ("step_5", ("model.safetensors", "optimizer.pt.tmp"), "optimizer.pt.tmp was never finished"),
    "rsync at work": ("step_5", ("a.pt", ".b.pt.Xa3k9Z"), ".b.pt.Xa3k9Z was never finished"),
    "rclone at work": ("step_5", ("a.pt", "b.pt.partial"), "b.pt.partial was never finished"),
    "orbax": ("5", ("d/1", "s.orbax-checkpoint-tmp-17/x"), "s.orbax-checkpoint-tmp-17/x was never finished"),
    "its own name": ("tmp-checkpoint-5", HF, "its name is that of an unfinished save"),
    "orbax's name": ("5.orbax-checkpoint-tmp-17", ("d/1",), "its name is that of an unfinished save"),
}  # fmt: skip


@pytest.mark.parametrize("case", INCOMPLETE)
def test_a_save_that_did_not_end_is_named(tmp_path: Path, case: str) -> None:
    name, names, why = INCOMPLETE[case]
    assert read(make(tmp_path / name, names)).incomplete == why


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "__0_0.distcp", "optimizer.pt", "w.ckpt"])
def test_a_file_of_no_bytes_is_no_save(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "step_5", (".metadata", "a.pt"))
    make(path, (name,), data=b"")
    assert read(path).incomplete == f"{name} has 0 bytes"
    assert read(make(tmp_path, ("step_6.ckpt",), data=b"") / "step_6.ckpt").incomplete == "it has 0 bytes"


def test_a_link_that_leads_nowhere_is_no_save(tmp_path: Path) -> None:
    path = make(tmp_path / "step_5", ("a.pt",))
    (path / "model.safetensors").symlink_to("../blobs/gone")
    assert read(path).incomplete == "model.safetensors is a link that leads nowhere"


@pytest.mark.parametrize(
    ("name", "beside", "text", "why"),
    [
        ("m--step=5-last", "m--step=5-last-unfinished", "", "m--step=5-last-unfinished marks it"),
        ("m--step=5-last.ckpt", "m--step=5-last-unfinished", "", "m--step=5-last-unfinished marks it"),
        ("iter_0000500", "latest_checkpointed_iteration.txt", "400\n", "still names 400"),
        ("iter_0000500", "latest_checkpointed_iteration.txt", "500", None),
        ("global_step500", "latest", "global_step400", "still names 400"),
        ("global_step500", "latest", "global_step500", None),
        ("step_500", "latest", "step_400", None),
    ],
)
def test_what_lies_beside_a_checkpoint_tells_of_its_save(
    tmp_path: Path, name: str, beside: str, text: str, why: str | None
) -> None:
    path = make(tmp_path, (name,)) / name if name.endswith(".ckpt") else make(tmp_path / name, ("a.pt",))
    (tmp_path / beside).write_text(text)
    assert (read(path).incomplete or "").endswith(why or "")
    (found,) = find_checkpoints(LiveHost(), [str(tmp_path)]).found
    assert found.incomplete == read(path).incomplete
    assert (found.incomplete is None) == (why is None)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("20260518", ("model.pt",)),
        ("1716051234", ("model.pt",)),
        ("7", ("notes.txt",)),
        ("0", ("checkpoints/epoch=0-step=40.ckpt",)),
        ("0", ("last.ckpt",)),
    ],
)
def test_a_number_alone_is_no_checkpoint_without_weights_of_its_own(
    tmp_path: Path, name: str, names: tuple[str, ...]
) -> None:
    make(tmp_path / name, names)
    found = find_checkpoints(LiveHost(), [str(tmp_path)]).found
    assert [item.name for item in found] == [Path(each).name for each in names if "step=" in each]


def test_a_file_named_by_its_step_alone(tmp_path: Path) -> None:
    make(tmp_path / "run" / "checkpoints", ("0050000.pt", "0100000.pt", "0050000.log"))
    assert [item.step for item in find_checkpoints(LiveHost(), [str(tmp_path)]).found] == [50_000, 100_000]


@pytest.mark.parametrize("name", [each for each, names in LAYOUTS.items() if any("/" in name for name in names)])
def test_a_stamp_moves_no_time_where_nothing_lies_at_the_top(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / name, LAYOUTS[name])
    before = read(path).saved_ns
    put_stamp(path)
    assert (read(path).saved_ns, stamp_of(path).checkpoint.saved_ns) == (before, before)


def test_an_edited_side_file_leaves_the_stamp_its_checkpoint_s(tmp_path: Path) -> None:
    path = make(tmp_path / "checkpoint-5", (*HF, "config.json", "tokenizer.json"))
    put_stamp(path)
    for name in ("config.json", "tokenizer.json", "trainer_state.json"):
        make(path, (name,), SAVED + 60, b"{}")
    stamp = stamp_of(path)
    assert stamp.counts
    assert sorted(stamp.notes) == [
        f"{name} was edited after it was stamped" for name in ("config.json", "tokenizer.json", "trainer_state.json")
    ]


@pytest.mark.parametrize("name", ["model.safetensors", "__0_0.distcp", "pytorch_model.bin", "mp_rank_00/model.pt"])
def test_other_weights_are_another_checkpoint(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "step_5", (name, ".metadata", "config.json"))
    put_stamp(path)
    make(path, (name,), data=b"v" * 5000)
    stamp = stamp_of(path)
    assert (stamp.counts, stamp.undecided) == (False, False)
    assert stamp.why_not == f"the stamp is of another step_5: {name} has its size and not its content"


@pytest.mark.parametrize("size", [1, 77, 4096, 5000, 100_000])
@pytest.mark.parametrize("name", ["__0_0.distcp", "model.pt", "inner/shard.bin"])
def test_a_save_that_went_on_after_the_stamp_is_the_same(tmp_path: Path, name: str, size: int) -> None:
    data = bytes(range(256)) * 4000
    path = make(tmp_path / "step_5", (name,), data=data[:size])
    put_stamp(path, SAVED)
    make(path, (name, ".metadata"), SAVED + 90, data)
    stamp = stamp_of(path)
    assert stamp.counts
    assert f"{name} was still being written when it was stamped" in stamp.notes
    assert stamp.checkpoint.saved_ns == SAVED * clock.NS


def test_a_stamp_of_a_half_written_file_that_was_not_written_in_order_is_undecided(tmp_path: Path) -> None:
    path = make(tmp_path / "step_5", ("__0_0.distcp",), data=b"\0" * 5000)
    put_stamp(path)
    make(path, ("__0_0.distcp", ".metadata"))
    stamp = stamp_of(path)
    assert (stamp.counts, stamp.undecided, stamp.unread) == (False, True, True)
    assert "while the checkpoint was being written" in (stamp.why_not or "")


def test_the_stamp_of_a_link_lies_beside_what_it_leads_to(tmp_path: Path) -> None:
    make(tmp_path, ("epoch=0-step=5.ckpt",))
    put_stamp(tmp_path / "epoch=0-step=5.ckpt")
    (tmp_path / "last.ckpt").symlink_to("epoch=0-step=5.ckpt")
    assert stamp_of(tmp_path / "last.ckpt").counts
