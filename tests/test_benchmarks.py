"""The benchmarks measure what they say: a made-up environment is a sound one, and costs come from the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import synthetic
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.measuring import run
from envguard.acquire.seam.host import LiveHost
from envguard.fingerprint.snapshot import Request, take
from envguard.state.digests import Digests


def test_a_made_up_environment_is_sound_and_of_the_size_asked_for(tmp_path: Path) -> None:
    venv = synthetic.make_venv(tmp_path, 2000)
    found = take(LiveHost(), Request(start=str(tmp_path), python=str(venv), deep=True), Digests())
    assert sum(package.files or 0 for package in found.packages) == 2000
    assert [package.departs for package in found.packages] == [(), ()]
    assert found.problems == ()


def test_a_cost_is_the_childs(tmp_path: Path) -> None:
    cost, output = run([sys.executable, "-c", "x = b'1' * 90_000_000; print(len(x)); sum(range(3_000_000))"])
    assert output == "90000000\n"
    assert cost.memory > 90
    assert 0.02 < cost.cpu < 10
    with pytest.raises(RuntimeError, match="ended with 3"):
        run([sys.executable, "-c", "raise SystemExit(3)"])


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such"]) == 2
    assert "record" in capsys.readouterr().err
    help_text = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(name in help_text for name in BENCHMARKS)
