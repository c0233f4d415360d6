"""Signals of a run with ranks: handed to those that have a handler, and nobody is left behind unmentioned."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envguard.demo.stage import Stage
from envguard.launch import family
from tests.launch.test_launch import NO_GPUS, launch

RANK = """
import os, signal, sys, time
name = sys.argv[1]
def hear(number, frame):
    open(f"heard_{name}", "a").write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        sys.exit(0)
for number in sys.argv[2].split(","):
    if number.startswith("-"):
        signal.signal(getattr(signal, number[1:]), signal.SIG_IGN)
    elif number:
        signal.signal(getattr(signal, number), hear)
open(f"up_{name}.tmp", "w").write(str(os.getpid()))
os.rename(f"up_{name}.tmp", f"up_{name}")
time.sleep(float(sys.argv[3]))
"""
LAUNCHER = """
import os, subprocess, sys, time
environ = {name: value for name, value in os.environ.items() if name not in sys.argv[3].split(",")}
ranks = [
    subprocess.Popen(
        [sys.executable, "rank.py", str(i), sys.argv[1], sys.argv[4]], start_new_session=True, env=environ,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    for i in range(2)
]
while not all(os.path.exists(f"up_{i}") for i in range(2)):
    time.sleep(0.02)
if sys.argv[2] == "wait":
    [rank.wait() for rank in ranks]
else:
    os._exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("ranks") / "stage")
    stage.make_venv()
    (stage.project / "envguard.toml").write_text("")
    (stage.project / "rank.py").write_text(RANK)
    (stage.project / "launcher.py").write_text(LAUNCHER)
    assert launch(stage, "--baseline", "--", "true").returncode == 0
    return stage


@contextlib.contextmanager
def run(stage: Stage, handles: str, end: str = "wait", *, without: str = "", seconds: str = "60") -> Iterator[Any]:
    """A launcher of two ranks that handle those signals; the ranks are up."""
    for path in (*stage.project.glob("up_*"), *stage.project.glob("heard_*")):
        path.unlink()
    words = [str(stage.python), "launcher.py", handles, end, without, seconds]
    process = subprocess.Popen(
        stage.envguard_command("launch", "--report", "report.json", "--", *words),
        cwd=stage.project, env=stage.environ(NO_GPUS), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: all((stage.project / f"up_{i}").exists() for i in range(2)))
        yield process
    finally:
        process.kill()
        for pid in ranks(stage):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def until(holds: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ranks(stage: Stage) -> list[int]:
    return [int((stage.project / f"up_{i}").read_text()) for i in range(2) if (stage.project / f"up_{i}").exists()]


def alive(pids: list[int]) -> list[int]:
    """Those that run; one that has ended and that nobody waited for does not."""
    return [pid for pid in pids if family._lives(family.Member(pid, started_at(pid)))]


def started_at(pid: int) -> int:
    fields = family._stat(pid)
    return int(fields[family._START]) if fields is not None else 0


def heard(stage: Stage) -> list[list[str]]:
    files = [stage.project / f"heard_{i}" for i in range(2)]
    return [path.read_text().split() if path.exists() else [] for path in files]


def record(stage: Stage) -> dict[str, Any]:
    newest = max((stage.project / ".envguard/runs").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def answered(stage: Stage, field: str) -> Any:
    """Of the run, in the answer of `launch`."""
    return json.loads((stage.project / "report.json").read_bytes())["run"][field]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_no_process_handles_is_not_handed_on(stage: Stage, number: signal.Signals) -> None:
    with run(stage, "", seconds="3") as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
    assert f"{number.name} was not handed on" in err
    assert [(item["signal"], item["to"]) for item in record(stage)["signals"]] == [(number.name, [])]
    assert answered(stage, "signals") == record(stage)["signals"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_ranks_that_handle_a_signal_get_it_past_a_launcher_that_does_not(
    stage: Stage, number: signal.Signals
) -> None:
    with run(stage, f"{number.name},SIGTERM") as process:
        process.send_signal(number)
        until(lambda: heard(stage) == [[number.name], [number.name]])
        assert process.poll() is None
        until(lambda: bool(record(stage)["signals"]))  # written once the signal is handed on
        assert sorted(record(stage)["signals"][0]["to"]) == sorted(ranks(stage))


def test_a_signal_that_is_ignored_below_is_no_reason_to_end_anyone(stage: Stage) -> None:
    with run(stage, "-SIGUSR1", seconds="3") as process:
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=120)
        assert process.returncode == 0


@pytest.mark.parametrize("without", ["", "ENVGUARD_RUN_ID"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_ranks_that_a_launcher_leaves_are_ended_and_named(stage: Stage, number: signal.Signals, without: str) -> None:
    """Also those that have another parent by then and were started without the run's variable."""
    with run(stage, "SIGTERM", without=without) as process:
        pids = ranks(stage)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode in (128 + number, 1)  # Python turns SIGINT into an exception of its own
        assert alive(pids) == []
    assert heard(stage) == [["SIGTERM"], ["SIGTERM"]]
    left = record(stage)["left"]
    assert sorted((item["pid"], item["ended"]) for item in left) == sorted((pid, "SIGTERM") for pid in pids)
    assert all("rank.py" in item["command"] for item in left)
    assert all(str(pid) in err for pid in pids)
    assert answered(stage, "left") == left


def test_ranks_are_ended_where_the_launcher_was_killed_outright(stage: Stage) -> None:
    with run(stage, "SIGTERM") as process:
        pids = ranks(stage)
        os.kill(int(record(stage)["pid"]), signal.SIGKILL)
        process.communicate(timeout=120)
        assert (process.returncode, alive(pids)) == (137, [])
    assert {item["pid"] for item in record(stage)["left"]} == set(pids)


def test_what_runs_on_after_an_end_of_its_own_is_named_and_left_alone(stage: Stage) -> None:
    with run(stage, "", "3") as process:
        pids = ranks(stage)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, alive(pids)) == (3, pids)
        assert all(f"PID {pid}" in err for pid in pids)
    assert {(item["pid"], item["ended"]) for item in record(stage)["left"]} == {(pid, None) for pid in pids}
    assert answered(stage, "left") == record(stage)["left"]


def test_a_run_that_ends_whole_leaves_nobody(stage: Stage) -> None:
    with run(stage, "", seconds="0.5") as process:
        _, err = process.communicate(timeout=120)
    assert (process.returncode, record(stage)["left"], answered(stage, "left")) == (0, [], [])
    assert "outlive" not in err


@pytest.mark.parametrize(("text", "handles"), [
    ("signal.signal(signal.SIGUSR1, print)", True),
    ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", False),
    ("signal.signal(signal.SIGUSR2, print)", False),
    ("pass", False),
])  # fmt: skip
def test_which_process_has_a_handler(text: str, handles: bool) -> None:
    program = f"import signal, time\n{text}\nprint('up', flush=True)\ntime.sleep(30)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert family.has_handler(process.pid, signal.SIGUSR1) is handles
        assert family.bearers(process.pid, signal.SIGUSR1) == ((process.pid,) if handles else ())
    finally:
        process.kill()
        process.communicate()
