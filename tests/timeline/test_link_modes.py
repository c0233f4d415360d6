"""Real installs in every link mode, and by pip: what dates them, and what is still known of the build before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envguard import clock
from envguard.demo import wheels
from envguard.demo.stage import Stage


def install(stage: Stage, *requirements: str, mode: str) -> None:
    stage.install(*requirements, arguments=("--link-mode", mode))


def swap(stage: Stage, mode: str) -> tuple[float, float]:
    """torch +cu128 and transformers, a checkpoint, then sglang; returns the seconds around the swap."""
    wheels.build_story_wheels(stage.wheels)
    stage.make_venv()
    install(stage, "torch==2.11.0+cu128", "transformers==5.6.0", mode=mode)
    time.sleep(2.5)
    (stage.checkpoints / "step_690").mkdir()
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(0.6)
    before = time.time()
    install(stage, "sglang", mode=mode)
    return before, time.time()


def answer(stage: Stage, *arguments: str) -> dict[str, Any]:
    done = stage.envguard("timeline", "--json", *arguments)
    assert done.returncode in (0, 1), done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def torch_event(found: dict[str, Any]) -> dict[str, Any]:
    (event,) = [item for item in found["events"] if item["subject"] == "torch" and item["kind"].startswith("package")]
    return dict(event)


@pytest.mark.parametrize(("mode", "confidence"), [("hardlink", "certain"), ("copy", "weak"), ("symlink", "weak")])
def test_a_swap_in_each_link_mode(tmp_path: Path, mode: str, confidence: str) -> None:
    stage = Stage(tmp_path / "stage")
    before, after = swap(stage, mode)
    found = answer(stage, "--since-checkpoint", "step_690")
    event = torch_event(found)
    assert (event["kind"], event["from"], event["to"]) == ("package.replaced", "2.11.0+cu128", "2.11.0+cu130")
    assert event["confidence"] == confidence
    assert before - 0.1 <= clock.seconds(event["time"]) <= clock.seconds(event["end"]) <= after + 0.1
    assert found["findings"][0]["title"].endswith("after step_690")
    if confidence == "weak":
        assert "was unpacked just when" in found["findings"][0]["caveats"][0]
    (run,) = found["transactions"]
    assert run["roots"] == ["sglang"]


def test_a_reinstall_from_a_warm_cache_is_dated_by_the_installer_and_not_by_the_payload(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    wheels.build_story_wheels(stage.wheels)
    stage.make_venv()
    install(stage, "torch==2.11.0+cu128", mode="hardlink")
    time.sleep(2.5)
    reinstalled = time.time()
    stage.install("torch==2.11.0+cu128", arguments=("--link-mode", "hardlink", "--reinstall"))
    assert (stage.site / "torch/version.py").stat().st_mtime < reinstalled - 2
    event = torch_event(answer(stage))
    assert clock.seconds(event["time"]) >= reinstalled - 0.1
    (payload,) = [item for item in event["evidence"] if item["witness"] == "payload"]
    assert "not used as a date" in payload["value"]
    assert "hard links" in payload["value"]


def test_an_import_of_copied_files_confirms_the_time_by_another_writer(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    wheels.build_story_wheels(stage.wheels)
    stage.make_venv()
    install(stage, "transformers==5.6.0", mode="copy")
    assert torch_less(answer(stage))["confidence"] == "strong"
    subprocess.run([stage.python, "-c", "import transformers"], check=True, env=stage.environ())
    event = torch_less(answer(stage))
    assert event["confidence"] == "certain"
    assert {item["witness"] for item in event["evidence"]} >= {"dist-info", "pyc"}


def torch_less(found: dict[str, Any]) -> dict[str, Any]:
    (event,) = [item for item in found["events"] if item["subject"] == "transformers"]
    return dict(event)


def test_pip_with_its_log(tmp_path: Path) -> None:
    """Two real pip runs: one transaction each, the root by edges and REQUESTED, the build before by pip's own log."""
    stage = Stage(tmp_path / "stage")
    wheels.build_story_wheels(stage.wheels)
    subprocess.run([sys.executable, "-m", "venv", str(stage.venv)], check=True)
    log = str(stage.project / "pip.log")
    pip = [str(stage.python), "-m", "pip", "--isolated", "--disable-pip-version-check", "--log", log]
    where = ["--quiet", "--no-index", "--find-links", str(stage.wheels)]
    subprocess.run([*pip, "install", *where, "torch==2.11.0+cu128"], check=True, env=stage.environ())
    (stage.checkpoints / "step_690").mkdir()
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(2.5)
    subprocess.run([*pip, "install", *where, "sglang"], check=True, env=stage.environ())
    found = answer(stage, "--since-checkpoint", "step_690")
    event = torch_event(found)
    assert (event["kind"], event["from"], event["to"]) == ("package.replaced", "2.11.0+cu128", "2.11.0+cu130")
    assert event["confidence"] == "strong"  # pip's log and pip's dist-info have one writer
    (run,) = found["transactions"]
    assert (run["tool"], run["roots"]) == ("pip", ["sglang"])
    assert {package["name"] for package in run["packages"]} == {"torch", "sglang", "flashinfer-python"}


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """A loop-mounted XFS with reflinks; skipped where the machine does not let one be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("mounting a loop device needs root, and mkfs.xfs")
    image, point = tmp_path / "xfs.img", tmp_path / "xfs"
    point.mkdir()
    with image.open("wb") as stream:
        stream.truncate(400 << 20)
    made = subprocess.run(
        ["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"mkfs.xfs: {made.stderr.strip()}")
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(point)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount: {mounted.stderr.strip()}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_swap_by_clones(xfs: Path) -> None:
    stage = Stage(xfs / "stage")
    before, after = swap(stage, "clone")
    event = torch_event(answer(stage, "--since-checkpoint", "step_690"))
    assert (event["kind"], event["from"]) == ("package.replaced", "2.11.0+cu128")
    assert before - 0.1 <= clock.seconds(event["time"]) <= after + 0.1
