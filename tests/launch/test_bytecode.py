"""Compiled files at the gate: what Python made itself starts, code of another source does not."""

from __future__ import annotations

import json
import marshal
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint.snapshot import Request, take
from envguard.model.fingerprint import Bytecode
from envguard.report.launch import not_compared
from envguard.state.digests import Digests
from tests.launch.test_launch import NO_GPUS, launch

FILES = {
    "torch/__init__.py": b"from torch import a\n",
    "torch/version.py": b"__version__ = '2.8.0'\n",
    "torch/a.py": b"X = 1\n",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("bytecode") / "stage")
    stage.make_venv()
    build_wheel(stage.wheels, "torch", "2.8.0", files=FILES)
    stage.install("torch")
    (stage.project / "envguard.toml").write_text("")
    assert launch(stage, "--baseline", "--", "true").returncode == 0
    return stage


def imported(stage: Stage, *options: str) -> Path:
    """The compiled file that an import of torch makes."""
    for old in stage.site.glob("torch/__pycache__/*"):
        old.unlink()
    environ = {**stage.environ(NO_GPUS), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([stage.python, *options, "-c", "import torch"], check=True, env=environ)
    (made,) = stage.site.glob("torch/__pycache__/a.*.pyc")
    return made


@pytest.mark.parametrize("deep", [(), ("--deep",)])
@pytest.mark.parametrize("options", [(), ("-O",)])
def test_a_compiled_file_counts_where_its_code_is_not_its_sources(
    stage: Stage, options: tuple[str, ...], deep: tuple[str, ...]
) -> None:
    path = imported(stage, *options)
    python = str(stage.python)
    assert launch(stage, *deep, "--", python, *options, "-c", "import torch").returncode == 0
    stat, header = path.stat(), path.read_bytes()[:16]
    path.write_bytes(header + marshal.dumps(compile("X = 2", "a.py", "exec")))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    refused = launch(stage, *deep, "--json", "--", python, *options, "-c", "import torch")
    assert refused.returncode == 78
    assert [drift["kind"] for drift in json.loads(refused.stdout)["drifts"]] == ["problem:foreign-bytecode"]
    path.unlink()
    assert launch(stage, *deep, "--", python, *options, "-c", "import torch").returncode == 0


@pytest.mark.parametrize(("deep", "left", "says"), [
    (True, 0, ""),
    (False, 0, " (unwatched packages by size and time)"),
    (False, 1200, " (unwatched packages by size and time; 1,200 compiled files of watched packages not compared with "
     "the source)"),
])  # fmt: skip
def test_what_a_match_does_not_rest_on_is_named(stage: Stage, deep: bool, left: int, says: str) -> None:
    taken = take(LiveHost(), Request(str(stage.project), str(stage.python)), Digests())
    assert not_compared(msgspec.structs.replace(taken, deep=deep, bytecode=Bytecode(compared=7, left=left))) == says
