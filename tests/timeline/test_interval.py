"""A checkpoint is saved over an interval, or at a time that nobody knows; and a save may not have ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from envguard.demo.stage import Stage


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"w" * 100)


def test_of_a_swap_between_its_files_which_build_made_it_is_not_known(torch_stage: Stage) -> None:
    path = torch_stage.checkpoints / "step_5"
    write(path, "model.safetensors")
    time.sleep(0.6)
    torch_stage.install("torch==2.11.0+cu130")
    time.sleep(0.6)
    write(path, "optimizer.pt")
    done = torch_stage.envguard("timeline", "--since-checkpoint", "step_5", "--json")
    finding = json.loads(done.stdout)["findings"][0]
    assert done.returncode == 1
    assert finding["title"] == "torch replaced between the first and the last file of step_5"
    assert "clean" not in finding["says"]
    refused = torch_stage.envguard("snapshot", "--into", "step_5")
    assert (refused.returncode, "torch was installed" in refused.stderr) == (2, True)


def test_an_unfinished_save_and_an_unknown_time_give_no_all_clear(torch_stage: Stage) -> None:
    write(torch_stage.checkpoints / "step_6", "__0_0.distcp")
    write(torch_stage.checkpoints / "step_7", "model.safetensors")
    os.utime(torch_stage.checkpoints / "step_7" / "model.safetensors", (0, 0))
    for name, why in (("step_6", "it is not complete: .metadata is missing"), ("step_7", "bear no time that tells")):
        done = torch_stage.envguard("timeline", "--since-checkpoint", name, "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["findings"]) == (3, [])
        assert any(why in item["why"] for item in answer["unknown"])
        assert (answer["checkpoint"]["time"] is None) == (name == "step_7")
