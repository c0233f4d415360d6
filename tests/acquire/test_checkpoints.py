"""Checkpoints found in the layouts people have, ordered by step, named as people name them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.runs.checkpoint_names import match_name, nearest_names, short_names
from envguard.acquire.runs.checkpoint_search import Checkpoints, find_checkpoints
from envguard.acquire.runs.checkpoints import read_checkpoint, step_of
from envguard.acquire.seam.bundle import load, save
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from tests.counting import CountingHost, function_calls

LAYOUTS = {
    "step_690": 690,
    "step-690": 690,
    "checkpoint-690": 690,
    "checkpoint_690": 690,
    "ckpt-690": 690,
    "global_step690": 690,
    "global_step_690": 690,
    "iter_0000690": 690,
    "iteration_690": 690,
    "epoch=3-step=690.ckpt": 690,
    "dflash-epoch=03-step=0690-val_loss=1.25.ckpt": 690,
    "epoch=3-step=690-v1.ckpt": 690,
    "step=690.ckpt": 690,
    "step_690.pt": 690,
    "step_690.safetensors": 690,
    "model_step_690.pth": 690,
    "model-step690.pt": 690,
}
OTHERS = (
    "last.ckpt",
    "steps",
    "latest",
    "step_690.tmp",
    "tmp-checkpoint-690",
    ".step_690",
    "step_690.pt.tmp",
    "step_690.incomplete",
    "footstep690x",
    "epoch=3.ckpt",
    "step_690.pt.envguard.json",
)


@pytest.mark.parametrize(("name", "step"), LAYOUTS.items())
def test_step_in_a_name(name: str, step: int) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize("name", OTHERS)
def test_no_step_in_a_name(name: str) -> None:
    assert step_of(name) is None


def find(*roots: Path) -> Checkpoints:
    return find_checkpoints(LiveHost(), [str(root) for root in roots])


START = 1_700_000_000


def make(path: Path, seconds: int = 0) -> Path:
    """A checkpoint whose one file was written `seconds` after START; a directory unless the name has an extension."""
    seconds += START
    if path.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"weights")
        os.utime(path, (seconds, seconds))
    else:
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"weights")
        os.utime(path / "model.safetensors", (seconds, seconds))
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_found(tmp_path: Path, name: str) -> None:
    make(tmp_path / "runs" / "a" / name)
    (found,) = find(tmp_path / "runs").found
    assert (found.name, found.step, found.run_directory) == (name, 690, str(tmp_path / "runs" / "a"))
    assert found.kind == ("file" if Path(name).suffix else "directory")


def test_sharded_lightning_checkpoint_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "epoch=3-step=690.ckpt").mkdir()
    (found,) = find(tmp_path).found
    assert found.kind == "directory"


def test_a_file_without_weights_in_its_name_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step_690").write_text("")
    (tmp_path / "step_690.json").write_text("")
    (tmp_path / "train-step-690.log").write_text("")
    assert find(tmp_path).found == ()


def test_run_directories_of_common_trainers(tmp_path: Path) -> None:
    places = {
        "lightning_logs/version_0/checkpoints/epoch=1-step=10.ckpt",
        "outputs/2026-05-18/20-41-07/checkpoints/step_10",
        "hf/checkpoint-10",
        "megatron/iter_0000010",
    }
    for place in places:
        make(tmp_path / place)
    found = find(tmp_path).found
    assert {str(Path(item.path).relative_to(tmp_path)) for item in found} == places
    assert {str(Path(item.run_directory).relative_to(tmp_path)) for item in found} == {
        str(Path(place).parent) for place in places
    }


def test_nothing_is_sought_inside_a_checkpoint_or_an_environment(tmp_path: Path) -> None:
    make(tmp_path / "run" / "step_10")
    make(tmp_path / "run" / "step_10" / "global_step10")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    make(tmp_path / "venv" / "lib" / "step_3")
    assert [item.name for item in find(tmp_path).found] == ["step_10"]


def test_one_place_configured_twice_and_a_link_to_it(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "step_10")
    (tmp_path / "again").symlink_to("runs")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path)
    found = find(tmp_path / "runs", tmp_path / "runs" / ".", tmp_path / "again", tmp_path / "missing")
    assert [item.path for item in found.found] == [str(tmp_path / "runs" / "step_10")]
    assert str(tmp_path / "missing") not in found.roots


def test_a_link_to_a_checkpoint_is_one_and_a_dangling_link_is_none(tmp_path: Path) -> None:
    make(tmp_path / "scratch" / "big")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "step_10").symlink_to(tmp_path / "scratch" / "big")
    (runs / "step_20").symlink_to(tmp_path / "gone")
    assert [(item.name, item.kind) for item in find(runs).found] == [("step_10", "directory")]


def test_order_is_the_step_and_a_copy_in_reverse_is_flagged(tmp_path: Path) -> None:
    for step, seconds in ((30, 100), (9, 200), (200, 50)):
        make(tmp_path / f"step_{step}", seconds)
    found = find(tmp_path)
    assert [item.step for item in found.found] == [9, 30, 200]
    assert [(item.lower.step, item.higher.step) for item in found.disorder] == [(9, 30), (30, 200)]
    assert "higher step and the older files" in found.disorder[0].says
    assert [item.step for item in found.newest_run()] == [9, 30, 200]


def test_order_of_saving_is_no_disorder(tmp_path: Path) -> None:
    for step in (9, 30, 200):
        make(tmp_path / f"step_{step}", step)
    assert find(tmp_path).disorder == ()


def test_a_stamp_put_in_later_does_not_move_the_time_of_saving(tmp_path: Path) -> None:
    path = make(tmp_path / "step_10", 1_000)
    (path / "envguard.json").write_text("{}")
    (path / ".envguard.json.x.tmp").write_text("{}")
    file = make(tmp_path / "step_20.pt", 2_000)
    Path(f"{file}.envguard.json").write_text("{}")
    first, second = find(tmp_path).found
    assert (first.saved_ns, first.stamp_path) == ((START + 1_000) * 10**9, f"{path}/envguard.json")
    assert (second.saved_ns, second.stamp_path) == ((START + 2_000) * 10**9, f"{file}.envguard.json")


def test_the_newest_run_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / "a" / "step_900", 100)
    make(tmp_path / "b" / "step_10", 200)
    assert [item.name for item in find(tmp_path).newest_run()] == ["step_10"]


class Refusing(LiveHost):
    """A machine that refuses to list one folder, as it does to anyone but its owner; root is never refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == "listing" and arguments[0] == self.folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.folder)
        return super().call(operation, *arguments)


def test_unreadable_folder_is_unknown_and_not_empty(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "private" / "step_690")
    found = find_checkpoints(Refusing(tmp_path / "runs" / "private"), [str(tmp_path / "runs")])
    assert found.found == ()
    assert [(item.what, item.why) for item in found.unknown] == [
        (f"checkpoints in {tmp_path}/runs/private", "Permission denied")
    ]


def test_names(tmp_path: Path) -> None:
    for name in ("a/step_690", "b/checkpoint-690", "b/step_700.pt", "c/epoch=1-step=710.ckpt"):
        make(tmp_path / name)
    found = find(tmp_path).found

    def paths(name: str) -> list[str]:
        return [str(Path(item.path).relative_to(tmp_path)) for item in match_name(found, name)]

    assert paths("step_690") == ["a/step_690"]
    assert paths("checkpoint-690") == ["b/checkpoint-690"]
    assert paths("690") == ["a/step_690", "b/checkpoint-690"]
    assert paths("global_step690") == ["a/step_690", "b/checkpoint-690"]
    assert paths("step_700") == paths("step_700.pt") == paths("700") == ["b/step_700.pt"]
    assert paths("step_710") == ["c/epoch=1-step=710.ckpt"]
    assert paths("b/checkpoint-690") == ["b/checkpoint-690"]
    assert paths("z/checkpoint-690") == []
    assert paths("step_691") == []
    assert nearest_names(found, "step_691")[:2] == ("checkpoint-690", "step_690")
    assert nearest_names(found, "chekpoint-69x")[0] == "checkpoint-690"


def test_a_bundle_answers_as_the_machine_did(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "a" / "step_690")
    make(tmp_path / "runs" / "b" / "step_700.pt")
    recording = RecordingHost(LiveHost())
    roots = [str(tmp_path / "runs"), str(tmp_path / "nowhere")]
    live = find_checkpoints(recording, roots)
    with (tmp_path / "bundle").open("wb") as stream:
        save(recording.record, {}, stream)
    with (tmp_path / "bundle").open("rb") as stream:
        record, _ = load("bundle", stream)
    assert find_checkpoints(BundleHost(record, "bundle"), roots) == live


def test_a_named_path_needs_no_step(tmp_path: Path) -> None:
    make(tmp_path / "final")
    checkpoint = read_checkpoint(LiveHost(), f"{tmp_path}/final/")
    assert checkpoint is not None
    assert (checkpoint.name, checkpoint.step, checkpoint.run_directory) == ("final", None, str(tmp_path))


def sharded(folder: Path, checkpoints: int, files: int) -> Path:
    for run in ("a", "b"):
        for step in range(checkpoints):
            (folder / run / f"step_{step}").mkdir(parents=True)
            for rank in range(files):
                (folder / run / f"step_{step}" / f"__{rank}_0.distcp").touch()
    return folder


def test_the_files_of_a_sharded_checkpoint_are_asked_for_at_once(tmp_path: Path) -> None:
    """A trip to a far machine for each of 200 files is no way to look at 3,000 checkpoints."""
    few, many = CountingHost(), CountingHost()
    assert len(find_checkpoints(few, [str(sharded(tmp_path / "few", 3, 2))]).found) == 6
    assert len(find_checkpoints(many, [str(sharded(tmp_path / "many", 3, 40))]).found) == 6
    assert many.asked == few.asked


def test_names_of_twice_the_checkpoints_cost_about_twice(tmp_path: Path) -> None:
    """Each was held against every other: 3,000 in 50 runs took a quarter of a minute."""
    found = find_checkpoints(LiveHost(), [str(sharded(tmp_path, 120, 1))]).found
    half = found[::4] + found[2::4]
    names = short_names(found)
    assert names[f"{tmp_path}/a/step_7"] == "a/step_7"
    assert all(match_name(found, names[item.path]) == (item,) for item in found)
    assert function_calls(lambda: short_names(found)) < 2.5 * function_calls(lambda: short_names(half))


def test_a_short_name_leads_to_one_checkpoint_alone(tmp_path: Path) -> None:
    for name in ("a/step_1", "b/step_1", "b/step_2", "b/step_2.pt", "b/step_3"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"") if path.suffix else path.mkdir()
    found = find_checkpoints(LiveHost(), [str(tmp_path)]).found
    names = short_names(found)
    short = [item for item in found if names[item.path] != item.path]
    assert all(match_name(found, names[item.path]) == (item,) for item in short)
    assert names[f"{tmp_path}/b/step_3"] == "step_3"


def stamp(path: Path, checkpoint: dict[str, object] | None) -> None:
    target = path / "envguard.json" if path.is_dir() else path.with_name(f"{path.name}.envguard.json")
    target.write_text(json.dumps({"schema": "envguard.fingerprint", "checkpoint": checkpoint}))


def test_what_bears_a_stamp_is_a_checkpoint_whatever_it_is_called(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    named: dict[str, object] = {"name": "x", "step": None, "files": {}, "samples": {}}
    stamp(make(run / "final model", 300), named)
    stamp(make(run / "best", 400), named)
    stamp(make(run / "last.ckpt", 200), named)
    make(run / "step_10")
    make(run / "latest")  # no stamp, no step: nothing says what it is
    stamp(run, None)  # a fingerprint of somebody's, put there under that name
    stamp(make(run / ".tmp-final"), named)
    (run / "newest").symlink_to("best")
    found = find(tmp_path / "runs")
    assert [item.name for item in found.found] == ["last.ckpt", "final model", "best", "step_10"]
    assert {item.run_directory for item in found.found} == {str(run)}
    assert found.disorder == ()
    assert [item.name for item in match_name(found.found, "last")] == ["last.ckpt"]


def test_a_stamp_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (make(tmp_path / "run" / "best") / "envguard.json").write_text("{")
    (found,) = find(tmp_path).found
    assert (found.name, found.stamp_path) == ("best", f"{found.path}/envguard.json")


def test_a_run_that_was_copied_without_its_times_is_told_once(tmp_path: Path) -> None:
    for run in ("a", "b"):
        for step in range(1, 7):
            path = tmp_path / run / f"step_{step}.pt"
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.utime(path, (START - step * 10, START - step * 10))
    found = find_checkpoints(LiveHost(), [str(tmp_path)])
    assert len(found.disorder) == 10
    told = found.disorder_told()
    assert [name for name, _ in told] == ["step_2.pt", "step_2.pt"]
    assert all(says.endswith("the order taken is the step's (and 4 more there)") for _, says in told)
