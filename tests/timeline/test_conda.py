"""conda environments: packages linked with the times of their build, dated by conda's own records and by births."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from envguard.acquire.machine.zone import Zone
from envguard.acquire.packages.conda import CondaRecord, parse_history
from envguard.acquire.seam.host import Stat
from envguard.clock import NS
from envguard.demo.stage import Stage

UTC_ZONE = Zone(UTC, "test")
BUILT = 1_730_000_000


class Conda:
    """A prefix as conda leaves it: hard links to its package cache, a JSON a package, a history."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.prefix = stage.root / "envs" / "train"
        self.site = self.prefix / f"lib/python3.{sys.version_info.minor}/site-packages"
        self.meta = self.prefix / "conda-meta"
        self.site.mkdir(parents=True)
        self.meta.mkdir()
        (self.prefix / "bin").mkdir()
        for name in ("python", f"python3.{sys.version_info.minor}"):
            (self.prefix / "bin" / name).symlink_to(os.path.realpath(sys.executable))

    def revision(self, *lines: str, offset_s: int = 0) -> None:
        at = datetime.fromtimestamp(time.time() + offset_s).strftime("%Y-%m-%d %H:%M:%S")
        with (self.meta / "history").open("a") as history:
            history.write("\n".join([f"==> {at} <==", "# cmd: conda install -y something", *lines, ""]))

    def link(self, name: str, version: str, build: str, conda_name: str = "", record: bool = True) -> str:
        """Links a package and writes its JSON; gives the line of the history."""
        info = f"{name}-{version}.dist-info"
        conda_name = conda_name or name
        files = {f"{name}/__init__.py": "", f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n",
                 f"{info}/INSTALLER": "conda\n", f"{info}/RECORD": f"{name}/__init__.py,,\n"}  # fmt: skip
        for path, text in files.items():
            kept = self.stage.root / "pkgs" / f"{conda_name}-{version}-{build}" / path
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text)
            os.utime(kept, (BUILT, BUILT))
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(kept, self.site / path)
        if record:
            named = {
                "name": conda_name,
                "files": [str((self.site / path).relative_to(self.prefix)) for path in files],
            }
            (self.meta / f"{conda_name}-{version}-{build}.json").write_text(json.dumps(named))
        return f"conda-forge/linux-64::{conda_name}-{version}-{build}"

    def unlink(self, name: str, version: str) -> None:
        shutil.rmtree(self.site / name)
        shutil.rmtree(self.site / f"{name}-{version}.dist-info")
        for path in self.meta.glob(f"*-{version}-*.json"):
            path.unlink()

    def timeline(self) -> tuple[int, dict[str, Any]]:
        done = self.stage.envguard(
            "timeline", "--since-checkpoint", "step_690", "--python", str(self.prefix), "--json"
        )
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def conda(stage: Stage) -> Conda:
    """numpy and torch 2.10.0; then a checkpoint without a stamp."""
    made = Conda(stage)
    made.revision(
        "+" + made.link("numpy", "2.1.0", "py311_0"), "+" + made.link("torch", "2.10.0", "cuda128_0", "pytorch")
    )
    # By which the version of the interpreter is known.
    (made.meta / f"python-{platform.python_version()}-h_0.json").write_text("{}")
    time.sleep(1.2)
    (stage.checkpoints / "step_690").mkdir(parents=True)
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(1.2)
    return made


def replaced(conda: Conda, record: bool = True) -> str:
    conda.unlink("torch", "2.10.0")
    return conda.link("torch", "2.11.0", "cuda130_0", "pytorch", record)


def conda_replaces(conda: Conda) -> None:
    conda.revision("-conda-forge/linux-64::pytorch-2.10.0-cuda128_0", "+" + replaced(conda))


def an_old_conda_replaces(conda: Conda) -> None:
    line = replaced(conda).partition("::")[2]
    conda.revision("-pytorch-2.10.0-cuda128_0", f"+{line}")


def mamba_replaces_from_a_private_channel(conda: Conda) -> None:
    line = replaced(conda).partition("::")[2]
    channel = "https://conda.anaconda.org/t/sk-0123456789abcdef0123456789/private/linux-64"
    conda.revision(f"-{channel}::pytorch-2.10.0-cuda128_0", f"+{channel}::{line}")


def an_image_in_another_zone_replaces(conda: Conda) -> None:
    conda.revision("-x/linux-64::pytorch-2.10.0-cuda128_0", "+" + replaced(conda), offset_s=-9 * 3600)


@pytest.mark.parametrize("change", [conda_replaces, an_old_conda_replaces, mamba_replaces_from_a_private_channel,
                                    an_image_in_another_zone_replaces])  # fmt: skip
def test_a_replacement_is_told_with_its_versions_and_by_what(conda: Conda, change: Callable[[Conda], None]) -> None:
    change(conda)
    code, answer = conda.timeline()
    assert code == 1
    (event,) = [item for item in answer["events"] if item["kind"] == "package.replaced"]
    assert (event["subject"], event["from"], event["to"]) == ("torch", "2.10.0", "2.11.0")
    assert event["time"] > answer["checkpoint"]["time"]
    assert "conda" in {item["witness"] for item in event["evidence"]}
    assert "sk-0123456789" not in json.dumps(answer)


def pixi_replaces(conda: Conda) -> None:
    (conda.meta / "history").unlink()
    (conda.meta / "pixi").write_text("{}")
    replaced(conda)


def conda_removes(conda: Conda) -> None:
    conda.unlink("torch", "2.10.0")
    conda.revision("-conda-forge/linux-64::pytorch-2.10.0-cuda128_0")


def a_copy_keeps_its_times(conda: Conda) -> None:
    replaced(conda, record=False)


def conda_replaces_what_is_no_distribution(conda: Conda) -> None:
    conda.revision("-conda-forge/linux-64::cudnn-9.1-h_0", "+conda-forge/linux-64::cudnn-9.5-h_0")


@pytest.mark.parametrize(
    "change", [pixi_replaces, conda_removes, a_copy_keeps_its_times, conda_replaces_what_is_no_distribution]
)
def test_a_change_of_another_kind_is_no_all_clear(conda: Conda, change: Callable[[Conda], None]) -> None:
    change(conda)
    code, answer = conda.timeline()
    assert code in (1, 3), answer["findings"]
    assert answer["findings"] or answer["unknown"]


def test_an_environment_that_nobody_changed_is_as_it_was(conda: Conda) -> None:
    code, answer = conda.timeline()
    assert (code, answer["findings"]) == (0, [])


@pytest.mark.parametrize("stamp", [0, 1, 315_532_800, 1_700_000_000])
def test_clamped_times_leave_the_births(stage: Stage, torch_stage: Stage, stamp: int) -> None:
    """An image gives all its files one time: after it was unpacked, births tell when it came."""
    (stage.checkpoints / "step_690").mkdir(parents=True, exist_ok=True)
    (stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(0.1)
    unpacked = stage.project / "unpacked"
    subprocess.run(["cp", "-a", str(torch_stage.venv), str(unpacked)], check=True)
    subprocess.run(["find", str(unpacked), "-exec", "touch", "-h", "-d", f"@{stamp}", "{}", "+"], check=True)
    done = stage.envguard("timeline", "--since-checkpoint", "step_690", "--python", str(unpacked), "--json")
    assert done.returncode == 3, done.stdout


def _record(at_ns: int) -> CondaRecord:
    stat = Stat("file", 0o644, 1, 1, 0, 0, 7, 1, at_ns, at_ns, at_ns)
    return CondaRecord("torch", "2.11.0", "cuda130_0", "/e/conda-meta/x.json", stat)


HISTORY = """==> 2026-05-18 20:52:11 <==
# cmd: /opt/conda/bin/conda create -n train pytorch
# conda version: 24.1.2
+conda-forge/noarch::tzdata-2026a-h0c530f3_0
+conda-forge/linux-64::pytorch-2.11.0-cuda130_0
-defaults::_libgcc_mutex-0.1-main
-numpy-2.1.0-py311_0
+https://conda.anaconda.org/t/SECRET/private/linux-64::my-pkg-1.0-0.tar.bz2
# update specs: ["pytorch"]
==> not a date <==
torn
==> 2026-05-19 08:00:00 <==
scipy-1.14.0-py311_0
"""


def test_the_lines_of_every_conda_are_read() -> None:
    steps = list(parse_history("h", HISTORY, UTC_ZONE))
    assert [(step.what, step.name, step.version, step.build) for step in steps] == [
        ("installed", "tzdata", "2026a", "h0c530f3_0"),
        ("installed", "torch", "2.11.0", "cuda130_0"),
        ("removed", "-libgcc-mutex", "0.1", "main"),
        ("removed", "numpy", "2.1.0", "py311_0"),
        ("installed", "my-pkg", "1.0", "0"),
        ("installed", "scipy", "1.14.0", "py311_0"),
    ]
    assert {step.line for step in steps} == {4, 5, 6, 7, 8, 13}


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("Europe/Berlin", -2), ("Asia/Kolkata", -5.5)])
def test_a_history_of_another_zone_is_dated_by_the_json(zone: str, hours: float) -> None:
    first = int(datetime.fromisoformat("2026-05-18T20:52:11+00:00").timestamp()) * NS
    local = list(parse_history("h", HISTORY, Zone(ZoneInfo(zone), "test")))
    assert local[0].time_ns == first + int(hours * 3600) * NS
    dated = list(parse_history("h", HISTORY, Zone(ZoneInfo(zone), "test"), [_record(first + 3 * NS)]))
    assert dated[0].time_ns == first
