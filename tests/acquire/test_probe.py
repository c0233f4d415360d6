"""`--probe` runs the environment's own interpreter: sound, broken, hanging, crashing; and leaves no trace."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from envguard.acquire.machine.probe import Probe, run_probe
from envguard.acquire.machine.probe_program import MARKER
from envguard.acquire.seam.collector import programs
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Section
from tests.acquire.made_up import MadeUp

TORCH = """
class _Version:
    cuda = "12.8"
version = _Version()
__version__ = "2.11.0+cu128"
class cuda:
    @staticmethod
    def is_available(): return False
class backends:
    class cudnn:
        @staticmethod
        def version(): return 91900
class __config__:
    @staticmethod
    def show(): raise RuntimeError("no config in this build")
print("a library that talks on import")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `torch` on PYTHONPATH, which is part of an environment's path."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder


def probe() -> Section[Probe]:
    return run_probe(LiveHost(), sys.executable)


def test_a_sound_import_tells_what_it_can(package: Path) -> None:
    section = probe()
    runtime = section.value.runtime
    assert (runtime.torch, runtime.cuda, runtime.cuda_available) == ("2.11.0+cu128", "12.8", False)
    assert (runtime.cudnn, runtime.nccl, runtime.config, runtime.error) == ("91900", None, None, None)
    assert section.problems == ()
    assert section.unknown == ()


def test_nothing_is_written(package: Path) -> None:
    probe()
    assert [path.name for path in package.parent.rglob("*")] == ["torch", "__init__.py"]


def test_a_file_of_the_working_directory_is_not_imported(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "torch.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(folder)
    assert probe().value.runtime.torch == "2.11.0+cu128"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise RuntimeError('libcudart.so.13 is missing')", "RuntimeError: libcudart.so.13 is missing"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os; os._exit(3)", "it ended with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("import os; os.write(1, b'\\xff'); raise ImportError('\\udcff')", "ImportError"),
    ],
)
def test_a_broken_torch_is_a_finding(package: Path, code: str, says: str) -> None:
    (package / "__init__.py").write_text(code)
    section = probe()
    (problem,) = section.problems
    assert problem.kind == "torch-import"
    assert says in problem.says
    assert says in str(section.value.runtime.error)


def ends(pid: int) -> bool:
    """Whether a process has ended, or does so within seconds; one that nobody has asked for yet has ended, too."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_an_import_that_hangs_is_ended_with_its_children(package: Path, tmp_path: Path) -> None:
    number = tmp_path / "sleeper"
    (package / "__init__.py").write_text(
        "import pathlib, subprocess, time\n"
        "sleeper = subprocess.Popen(['sleep', '77.7'])\n"
        f"pathlib.Path({str(number)!r}).write_text(str(sleeper.pid))\n"
        "time.sleep(99)\n"
    )
    with pytest.raises(OSError, match="no answer within"):
        programs.probe(sys.executable, "import torch", 2.0)
    assert ends(int(number.read_text()))
    host = MadeUp(probe=OSError(110, "no answer within 180 s"))
    section = run_probe(host, sys.executable)
    assert section.unknown[0].what == "torch: run-time facts"
    assert section.value.runtime.error == "no answer within 180 s"


@pytest.mark.parametrize("waits", ["time.sleep(99)", ""], ids=["hangs", "ended"])
def test_what_leaves_the_session_and_holds_the_pipes_keeps_nobody_waiting(tmp_path: Path, waits: str) -> None:
    number = tmp_path / "sleeper"
    program = (
        "import pathlib, subprocess, time\n"
        "sleeper = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        f"pathlib.Path({str(number)!r}).write_text(str(sleeper.pid))\n{waits}"
    )
    open_before = psutil.Process().num_fds()
    began = time.monotonic()
    with pytest.raises(OSError, match="no answer within"):
        programs.probe(sys.executable, program, 2.0)
    took = time.monotonic() - began
    sleeper = psutil.Process(int(number.read_text()))
    assert sleeper.is_running(), "nothing held the pipes, so that nothing was tried"
    sleeper.kill()
    assert took < 2.0 + programs.GONE_S
    assert psutil.Process().num_fds() == open_before


def answered(said: object) -> Section[Probe]:
    return run_probe(MadeUp(probe={"code": 0, "out": f"\n{MARKER}{json.dumps(said)}\n", "err": ""}), "python")


def test_contexts_are_by_gpu_and_a_refusal_has_its_reason() -> None:
    said = {
        "torch": "2.11.0+cu130", "cuda": "13.0", "cuda_available": True, "import_s": 3.7, "nccl": "2.28.9",
        "devices": [
            {"name": "NVIDIA H200", "context": 548995072},
            {"name": "NVIDIA H200", "context_refused": "less than 2 GiB are free"},
            {"error": "RuntimeError: CUDA error: unspecified launch failure"},
        ],
    }  # fmt: skip
    found = answered(said).value
    assert found.contexts == {0: 548995072}
    assert found.refused == {
        1: "less than 2 GiB are free",
        2: "RuntimeError: CUDA error: unspecified launch failure",
    }
    assert found.runtime.devices[:2] == ("NVIDIA H200", "NVIDIA H200")


@pytest.mark.parametrize(
    "said", [[], "text", 7, {"devices": "none", "cuda_available": "yes"}, {"devices": [3, None]}]
)
def test_an_answer_of_another_form_crashes_nothing(said: object) -> None:
    assert answered(said).value.runtime.cuda_available is None
