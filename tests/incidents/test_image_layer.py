"""An environment that came with a container's image: installed in a layer below, swapped in the one above."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envguard import clock
from envguard.demo import wheels
from envguard.demo.stage import Stage


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount {' '.join(arguments[:3])}: {done.stderr.strip()}")


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder, and what seals its present contents as a layer below: later writes go to a layer above."""
    if os.geteuid() != 0:
        pytest.skip("mounting an overlay needs root")
    lower, upper, work, point = (tmp_path / name for name in ("lower", "upper", "work", "point"))
    for folder in (lower, upper, work, point):
        folder.mkdir()
    _mount("--bind", str(lower), str(point))

    def seal() -> None:
        subprocess.run(["umount", str(point)], check=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", str(point))

    yield point, seal
    subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_swap_above_the_image_is_dated_and_undone(layers: tuple[Path, Callable[[], None]]) -> None:
    point, seal = layers
    stage = Stage(point / "stage")
    wheels.build_story_wheels(stage.wheels)
    stage.make_venv()
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    time.sleep(2.5)  # or both installs pass for one run of uv
    checkpoint = stage.checkpoints / "step_690"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"weights")
    assert stage.envguard("snapshot", "--into", "step_690", "-q").returncode == 0
    version = (stage.site / "torch/version.py").read_bytes()
    seal()
    assert stage.envguard("diff", "step_690").returncode == 0  # the same files, on another device
    before = time.time()
    stage.install("sglang")
    found = json.loads(stage.envguard("timeline", "--since-checkpoint", "step_690", "--json").stdout)
    (event,) = [item for item in found["events"] if item["subject"] == "torch" and item["kind"] == "package.replaced"]
    assert (event["from"], event["to"]) == ("2.11.0+cu128", "2.11.0+cu130")
    assert event["confidence"] == "certain"
    assert found["transactions"][-1]["roots"] == ["sglang"]
    assert before - 0.1 <= clock.seconds(event["end"]) <= time.time() + 0.1
    restored = stage.envguard("restore", "step_690", "--yes")
    assert restored.returncode == 0, restored.stderr
    assert (stage.site / "torch/version.py").read_bytes() == version
