"""An install beside an older one in another folder hides it, or is hidden: neither was replaced."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel


def installed_below(stage: Stage, folder: Path, version: str) -> None:
    where = ("--offline", "--no-index", "--find-links", str(stage.wheels), "--target", str(folder))
    stage.uv("pip", "install", *where, f"pine=={version}")


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("newcomer", ["before", "behind"])
def test_an_install_in_another_folder_replaces_nothing(torch_stage: Stage, newcomer: str, stamped: bool) -> None:
    stage, other = torch_stage, torch_stage.root / "other"
    for version in ("1.0", "2.0"):
        build_wheel(stage.wheels, "pine", version, {"pine/__init__.py": version.encode()})
    other.mkdir()
    (stage.site / "other.pth").write_text(f"{other}\n")
    if newcomer == "before":
        installed_below(stage, other, "1.0")
    else:
        stage.install("pine==1.0")
    time.sleep(2.2)
    (stage.checkpoints / "step_690").mkdir()
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    if stamped:
        stage.envguard("snapshot", "--into", str(stage.checkpoints / "step_690"))
    time.sleep(1.1)
    if newcomer == "before":
        stage.install("pine==2.0")
    else:
        installed_below(stage, other, "2.0")
    done = stage.envguard("timeline", "--since-checkpoint", "step_690", "--json")
    answer = json.loads(done.stdout)
    assert [event["kind"] for event in answer["events"] if event["subject"] == "pine"] == ["package.installed"]
    (finding,) = [item for item in answer["findings"] if "pine" in item["title"]]
    verb = "hides" if newcomer == "before" else "installed behind"
    assert (done.returncode, finding["title"]) == (1, f"pine 2.0 {verb} 1.0 after step_690")


@pytest.mark.parametrize("version", ["1.0", "3.0"])
@pytest.mark.parametrize("metadata", [True, False])
def test_a_stray_dist_info_replaces_nothing(torch_stage: Stage, version: str, metadata: bool) -> None:
    stage = torch_stage
    for known in ("1.0", "2.0"):
        build_wheel(stage.wheels, "pine", known, {"pine/__init__.py": known.encode()})
        stage.install(f"pine=={known}")
    (stage.checkpoints / "step_690").mkdir()
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    stage.envguard("snapshot", "--into", str(stage.checkpoints / "step_690"))
    time.sleep(2.2)
    stray = stage.site / f"pine-{version}.dist-info"
    stray.mkdir()
    if metadata:
        (stray / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pine\nVersion: {version}\n")
    done = stage.envguard("timeline", "--since-checkpoint", "step_690", "--json")
    answer = json.loads(done.stdout)
    late = [event for event in answer["events"] if event["subject"] == "pine" and event["transaction"] is not None]
    assert "package.replaced" not in {event["kind"] for event in late if event["time"] > answer["checkpoint"]["time"]}
    assert any("described twice" in item["says"] for item in answer["findings"])
    assert done.returncode == 1


@pytest.mark.parametrize("moment", [0, 1, 315532800])
def test_clamped_times_do_not_say_that_nothing_came_since(torch_stage: Stage, moment: int) -> None:
    for path in [torch_stage.site, *torch_stage.site.rglob("*")]:
        os.utime(path, (moment, moment))
    done = torch_stage.envguard("timeline", "--since", "1h", "--json")
    answer = json.loads(done.stdout)
    assert answer["findings"] == []
    assert done.returncode == 3
    assert "packages since then" in {item["what"] for item in answer["unknown"]}
