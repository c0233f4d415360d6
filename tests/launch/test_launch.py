"""`envguard launch` as it is typed: a real uv, a real venv, real children, and the codes that come back."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.model.schema import schema
from tests.caches import tag_of, write_cache
from tests.fingerprint.made import reseal

# A machine with GPUs must give the answers of one without: what is on its GPUs is not these tests' business.
NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}


def make_room(root: Path, wheels: Path, *, swapped: bool) -> Stage:
    """A stage with a project and a recorded first start; `swapped` has another torch on disk since."""
    stage = Stage(root)
    for wheel in wheels.iterdir():
        (stage.wheels / wheel.name).symlink_to(wheel)
    stage.make_venv()
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    (stage.project / "envguard.toml").write_text("")
    done = launch(stage, "--baseline", "--", "true")
    assert done.returncode == 0, done.stderr
    if swapped:
        stage.install("torch==2.11.0+cu130")
    shutil.copytree(stage.project / ".envguard", root / "state")
    return stage


@pytest.fixture(scope="module")
def made_room(tmp_path_factory: pytest.TempPathFactory, story_wheels: Path) -> Stage:
    return make_room(tmp_path_factory.mktemp("room") / "stage", story_wheels, swapped=False)


@pytest.fixture(scope="module")
def made_swapped(tmp_path_factory: pytest.TempPathFactory, story_wheels: Path) -> Stage:
    return make_room(tmp_path_factory.mktemp("swapped") / "stage", story_wheels, swapped=True)


def as_made(stage: Stage) -> Stage:
    """Everything but the venv as it was after the first start: making a venv for each test would take a minute."""
    for path in (stage.project / ".envguard", stage.checkpoints, stage.home, stage.root / "started"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copytree(stage.root / "state", stage.project / ".envguard")
    (stage.project / "envguard.toml").write_text("")
    stage.home.mkdir()
    stage.checkpoints.mkdir()
    return stage


@pytest.fixture
def room(made_room: Stage) -> Stage:
    """The environment is as it was at the first start."""
    return as_made(made_room)


@pytest.fixture
def swapped(made_swapped: Stage) -> Stage:
    """torch 2.11.0+cu128 was there at the first start, +cu130 lies there now."""
    return as_made(made_swapped)


def launch(stage: Stage, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return stage.envguard("launch", *arguments, extra={**NO_GPUS, **extra})


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on stdout, which must fit its schema."""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    kind = found["schema"].removeprefix("envguard.")
    jsonschema.validate(found, schema(kind))
    return found


def records(stage: Stage) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((stage.project / ".envguard" / "runs").glob("*.json"))]


def test_the_first_start_records_what_later_ones_are_held_against(room: Stage) -> None:
    (record,) = records(room)
    assert (record["reference"], record["code"]) == ("the first start", 0)
    assert json.loads((room.project / ".envguard" / "baseline.json").read_text())["id"] == record["fingerprint"]
    assert launch(room, "--baseline", "--", "true").returncode == 0  # it matches


def test_another_first_start_is_refused_where_it_does_not_match(swapped: Stage) -> None:
    done = launch(swapped, "--baseline", "--", "true")
    assert done.returncode == 2
    assert "there is a reference already" in done.stderr
    hint = re.search(r"`envguard (diff [^`]+)`", done.stderr.replace("\n", " "))
    assert hint is not None
    found = swapped.envguard(*hint[1].split())  # what the hint says can be typed
    assert found.returncode == 1
    assert "torch" in found.stdout


def test_without_a_reference_nothing_starts(room: Stage) -> None:
    (room.project / ".envguard" / "baseline.json").unlink()
    marker = room.root / "started"
    done = launch(room, "--", "touch", str(marker))
    assert done.returncode == 2
    assert "--baseline" in done.stderr
    assert not marker.exists()


def test_a_match_gives_the_commands_own_code_and_streams(room: Stage) -> None:
    done = launch(room, "--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert records(room)[-1]["code"] == 7


def test_a_closed_stdout_costs_neither_the_run_nor_its_code(room: Stage) -> None:
    words = f"{shlex.quote(sys.executable)} -m envguard launch --json -- sh -c 'exit 5' >&-"
    done = subprocess.run(
        ["bash", "-c", words],
        cwd=room.project,
        env=room.environ() | NO_GPUS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert records(room)[-1]["code"] == 5


def test_drift_is_refused_with_what_helps(swapped: Stage) -> None:
    marker = swapped.root / "started"
    done = launch(swapped, "--", "touch", str(marker))
    assert done.returncode == 78
    assert "2.11.0+cu128 → 2.11.0+cu130" in done.stderr
    assert "envguard restore" in done.stderr
    assert "--waive torch" in done.stderr
    assert done.stdout == ""
    assert not marker.exists()
    assert len(records(swapped)) == 1


def test_a_waiver_is_advised_against_the_reference_that_was_named(swapped: Stage) -> None:
    assert (
        "envguard launch --against baseline --waive" in launch(swapped, "--against", "baseline", "--", "true").stderr
    )
    assert "envguard launch --waive" in launch(swapped, "--", "true").stderr


def test_what_the_refusal_advises_works(tmp_path: Path, story_wheels: Path) -> None:
    stage = make_room(tmp_path / "stage", story_wheels, swapped=True)
    line = next(line for line in launch(stage, "--", "true").stderr.splitlines() if "envguard restore" in line)
    reference = line.rpartition("envguard restore ")[2].strip()
    done = stage.envguard("restore", reference, "-y")
    assert done.returncode == 0, done.stderr
    assert launch(stage, "--", "true").returncode == 0


def test_the_advised_waivers_hold_those_that_were_given(swapped: Stage) -> None:
    done = launch(swapped, "--waive", "torch", "--waive", "data", "--because", "x", "--", "true")
    assert done.returncode == 78
    line = next(line for line in done.stderr.splitlines() if "answer for it" in line)
    words = shlex.split(line.partition("envguard launch ")[2].replace("…", "why"))
    assert words[:2] == ["--waive", "torch"]
    assert "data" not in words  # it was not needed
    assert launch(swapped, *words[: words.index("--")], "--", "true").returncode == 0


def test_a_waived_drift_starts_and_is_on_record(swapped: Stage) -> None:
    done = launch(swapped, "--waive", "torch", "--waive", "cuda", "--because", "measured: same losses", "--", "true")
    assert done.returncode == 0, done.stderr
    record = records(swapped)[-1]
    assert "is let pass against baseline, 2 waived" in done.stderr
    assert "matches" not in done.stderr
    assert {item["facet"] for item in record["waived"]} == {"torch", "cuda"}
    assert {item["because"] for item in record["waived"]} == {"measured: same losses"}
    assert any(drift["facet"] == "torch" for drift in record["drifts"])
    stored = json.loads((swapped.project / ".envguard" / "waivers.json").read_text())
    assert [item["run"] for item in stored] == [record["id"]] * 2
    # It served that launch alone.
    assert launch(swapped, "--", "true").returncode == 78


def test_a_waiver_with_an_end_serves_until_then(swapped: Stage) -> None:
    words = ("--waive", "torch", "--waive", "cuda", "--because", "x")
    assert launch(swapped, *words, "--until", "2999-01-01", "--", "true").returncode == 0
    again = launch(swapped, "--json", "--", "true")
    assert again.returncode == 0
    assert {item["until"][:4] for item in answer(again)["waived"]} == {"2999"}


def test_an_expired_waiver_counts_as_none_and_is_said(swapped: Stage) -> None:
    words = ("--waive", "torch", "--waive", "cuda", "--because", "x", "--until", "2020-01-01")
    done = launch(swapped, *words, "--", "true")
    assert done.returncode == 78
    assert "counts as none" in " ".join(done.stderr.split())


def test_an_unused_waiver_is_said(room: Stage) -> None:
    done = launch(room, "--json", "--waive", "gpu", "--because", "x", "--", "true")
    assert done.returncode == 0
    assert answer(done)["notes"] == ["waiver gpu was not needed"]


def test_refuse_block_lets_a_warning_through_and_no_block(swapped: Stage) -> None:
    (swapped.project / "envguard.toml").write_text('refuse = "block"\n')
    assert launch(swapped, "--", "true").returncode == 78
    policy = '[[policy]]\nfacet = "torch"\nseverity = "warn"\n[[policy]]\nfacet = "cuda"\nseverity = "warn"\n'
    (swapped.project / "envguard.toml").write_text('refuse = "block"\n' + policy)
    assert launch(swapped, "--", "true").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--waive", "nonsense", "--because", "x"),
        ("--waive", "torch"),
        ("--on-drift", "panic"),
        ("--against", "step_9"),
        ("--report", "no/such/folder/report.json"),
        ("--report", "/proc/report.json"),
        ("--report", ""),
    ],
)
def test_usage_errors_are_2_and_start_nothing(room: Stage, words: tuple[str, ...]) -> None:
    marker = room.root / "started"
    done = launch(room, *words, "--json", "--", "touch", str(marker))
    assert done.returncode == 2
    assert answer(done)["code"] == 2
    assert "error: " in done.stderr
    assert not marker.exists()


def test_no_command_needs_the_checkout(room: Stage) -> None:
    done = launch(room)
    assert done.returncode == 2
    assert "checkout" in done.stderr


def test_json_keeps_stdout_for_the_one_object(room: Stage) -> None:
    done = launch(room, "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert done.returncode == 3
    found = answer(done)
    assert (found["decision"], found["run"]["code"]) == ("go", 3)
    assert found["run"]["pid"]
    assert found["run"]["started"] <= found["run"]["ended"]
    assert "out\nerr\n" in done.stderr


def test_a_refusal_as_json(swapped: Stage) -> None:
    done = launch(swapped, "--json", "--", "true")
    assert done.returncode == 78
    found = answer(done)
    assert (found["decision"], found["run"]) == ("refuse", None)
    assert any(drift["facet"] == "torch" and drift["severity"] == "block" for drift in found["drifts"])
    assert {check["check"] for check in found["preflight"]} >= {"gpus", "disk", "open files", "shared memory"}


def test_a_report_file_holds_the_object_and_leaves_the_streams_alone(room: Stage) -> None:
    target = room.root / "report.json"
    done = launch(room, "--report", str(target), "--", "sh", "-c", "echo out")
    assert done.stdout == "out\n"
    found = json.loads(target.read_text())
    jsonschema.validate(found, schema("launch"))
    assert found["run"]["code"] == 0


def test_a_dry_run_decides_and_changes_nothing(room: Stage) -> None:
    before = contents(room.project)
    assert launch(room, "--dry-run", "--", "touch", "started").returncode == 0
    assert contents(room.project) == before


def test_a_dry_run_of_a_refusal_changes_nothing(swapped: Stage) -> None:
    before = contents(swapped.project)
    words = ("--waive", "gpu", "--because", "x", "--until", "2999-01-01")
    done = launch(swapped, "--dry-run", *words, "--", "true")
    assert done.returncode == 78
    assert "2.11.0+cu130" in done.stdout
    assert contents(swapped.project) == before


def contents(folder: Path) -> dict[str, tuple[int, float]]:
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def test_no_such_command_is_127_before_anything_is_compared(swapped: Stage) -> None:
    done = launch(swapped, "--json", "--", "no-such-command")
    assert done.returncode == 127
    assert answer(done)["run"]["code"] == 127
    assert "command not found" in done.stderr
    plain = swapped.root / "plain"
    plain.write_text("")
    assert launch(swapped, "--", str(plain)).returncode == 126


def test_a_command_killed_by_a_signal(room: Stage) -> None:
    assert launch(room, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert records(room)[-1]["signal"] == "SIGKILL"


def test_the_command_is_told_its_run_and_a_private_compile_cache(room: Stage) -> None:
    done = launch(room, "--", "env")
    given = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    record = records(room)[-1]
    assert given["ENVGUARD_RUN_ID"] == record["id"]
    assert json.loads(Path(given["ENVGUARD_LAUNCH"]).read_text())["id"] == record["fingerprint"]
    cache = Path(given["TORCHINDUCTOR_CACHE_DIR"])
    assert cache.stat().st_mode & 0o777 == 0o700
    assert cache.is_relative_to(room.home)
    assert "2.11.0+cu128" in cache.name
    own = launch(room, "--", "sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR", TORCHINDUCTOR_CACHE_DIR="/mine")
    assert own.stdout == "/mine\n"


def test_each_build_has_its_own_compile_cache(room: Stage, swapped: Stage) -> None:
    words = (
        "--waive",
        "torch",
        "--waive",
        "cuda",
        "--because",
        "x",
        "--",
        "sh",
        "-c",
        "echo $TORCHINDUCTOR_CACHE_DIR",
    )
    first, second = (Path(launch(stage, *words).stdout.strip()).name for stage in (room, swapped))
    assert first.startswith("torch-2.11.0+cu128-")
    assert second.startswith("torch-2.11.0+cu130-")


def test_the_checkpoint_that_the_command_resumes_is_the_reference(room: Stage) -> None:
    for step in (10, 20):
        checkpoint = room.checkpoints / f"step_{step}"
        checkpoint.mkdir()
        (checkpoint / "model.bin").write_bytes(b"x")
    assert room.envguard("snapshot", "--into", "checkpoints/step_10", extra=NO_GPUS).returncode == 0
    change_stamp(room.checkpoints / "step_10", "torch", "0.0.0")
    assert (
        room.envguard("snapshot", "--into", "checkpoints/step_20", "--retrospective", extra=NO_GPUS).returncode == 0
    )
    found = answer(launch(room, "--json", "--", "true", "--resume", "checkpoints/step_10"))
    assert found["reference"] == "checkpoints/step_10"
    assert found["decision"] == "refuse"


def test_a_number_in_the_command_names_no_checkpoint_and_an_unstamped_one_is_said(room: Stage) -> None:
    for step in (3, 6):
        checkpoint = room.checkpoints / f"step_{step}"
        checkpoint.mkdir()
        (checkpoint / "model.bin").write_bytes(b"x")
        assert room.envguard("snapshot", "--into", f"checkpoints/step_{step}", extra=NO_GPUS).returncode == 0
    words = ("--", "true", "checkpoint.every=3", "--checkpoint-every", "3")
    done = launch(room, *words)
    assert (done.returncode, "matches step_6" in done.stderr) == (0, True), done.stderr
    (room.checkpoints / "step_6" / "envguard.json").unlink()
    done = launch(room, *words)
    assert (done.returncode, "matches step_3" in done.stderr) == (0, True), done.stderr
    assert "step_3: taken because the later step_6 does not count" in done.stderr
    assert answer(launch(room, "--json", *words))["notes"] == [
        "step_3: taken because the later step_6 does not count: it has no stamp"
    ]


def test_a_checkpoint_to_resume_that_is_not_there_is_never_exchanged_for_another(room: Stage) -> None:
    for words in (("--resume", "step_77"), ("--resume=out/step_77",), ("--load", "out/run")):
        done = launch(room, "--json", "--", "true", *words)
        refused = answer(done)
        assert (done.returncode, refused["decision"], refused["drifts"]) == (3, "refuse", [])
        assert refused["reference"] == words[-1].rpartition("=")[2]
        assert "which checkpoint the command goes on from is not known" in refused["unknown"][0]["why"]
    assert launch(room, "--against", "baseline", "--", "true", "--resume", "step_77").returncode == 0
    (room.project / ".envguard" / "baseline.json").unlink()
    first = launch(room, "--baseline", "--", "true", "--resume", "step_77")
    assert (first.returncode, "step_77 is not here" in first.stderr) == (0, True), first.stderr


def test_a_checkpoint_outside_the_usual_places_is_what_is_resumed(room: Stage) -> None:
    elsewhere = room.root / "elsewhere" / "step_77"
    elsewhere.mkdir(parents=True, exist_ok=True)
    (elsewhere / "model.bin").write_bytes(b"x")
    words = ("--dry-run", "--json", "--", "true", f"--resume={elsewhere}")
    found = answer(launch(room, *words))
    assert (found["reference"], found["decision"]) == (str(elsewhere), "refuse"), "it has no stamp"


def change_stamp(checkpoint: Path, package: str, version: str) -> None:
    """Makes the stamp tell of another version, as if the environment had been changed since."""
    path = checkpoint / "envguard.json"
    stamp = json.loads(path.read_text())
    for item in stamp["packages"]:
        if item["name"] == package:
            item.update(version=version, build="0" * 64)
    stamp["torch"]["version"] = version
    path.write_text(json.dumps(stamp))
    reseal(path)


def test_a_state_folder_that_takes_no_writes_is_a_warning(room: Stage) -> None:
    shutil.copy(room.project / ".envguard" / "baseline.json", room.root / "reference.json")
    (room.project / "envguard.toml").write_text('state = "/proc/self/envguard"\n')  # refused to root, too
    done = launch(room, "--against", str(room.root / "reference.json"), "--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert "warning: the run cannot be recorded in /proc/self/envguard" in done.stderr


def test_a_full_state_disk_is_a_warning_and_the_run_goes_on(room: Stage) -> None:
    state = room.project / ".envguard"
    shutil.rmtree(state / "runs")
    (state / "runs").write_text("in the way")  # no run record can be written
    done = launch(room, "--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert "cannot be written" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_state_disk_that_fills_up_costs_the_record_and_not_the_run(room: Stage) -> None:
    state = room.root / "small"
    state.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this container may not mount")
    try:
        shutil.copy(room.project / ".envguard" / "baseline.json", room.root / "reference.json")
        (room.project / "envguard.toml").write_text(f'state = "{state}"\n')
        fill = f"cat /dev/zero > {state}/filler 2>/dev/null; exit 5"
        done = launch(room, "--against", str(room.root / "reference.json"), "--", "sh", "-c", fill)
        assert done.returncode == 5
        assert "No space left on device" in done.stderr
        (record,) = [json.loads(path.read_text()) for path in (state / "runs").glob("*.json")]
        assert record["ended"] is None  # the last record that could be written, whole
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_a_signal_during_the_run_is_passed_on_and_recorded(room: Stage) -> None:
    for process in started(room, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 9
    assert records(room)[-1]["code"] == 9


def test_a_killed_launch_takes_the_command_with_it_and_its_record_stays_open(room: Stage) -> None:
    marker = room.root / "told"
    for process in started(room, f"trap 'touch {marker}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"):
        process.kill()
        process.wait(timeout=20)
        deadline = time.monotonic() + 10
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert marker.exists()
    assert (records(room)[-1]["ended"], records(room)[-1]["code"]) == (None, None)
    done = launch(room, "--json", "--", "true")
    assert any("has no end" in note for note in answer(done)["notes"])
    closed = [record for record in records(room) if record["note"]]
    assert len(closed) == 1


def started(stage: Stage, script: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        stage.envguard_command("launch", "--python", str(stage.venv), "--", "sh", "-c", script),
        cwd=stage.project, env=stage.environ(NO_GPUS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


# --- beside the run ---

LOOP = """
import json, os, signal, sys, time
rates = json.loads(sys.argv[1])
signal.signal(signal.SIGTERM, lambda n, f: (print("saving", flush=True), os._exit(0)))
import torch
print("ready", flush=True)
step = 0
while True:
    with open("checkpoints/train_log.jsonl", "a") as log:
        log.write(json.dumps({"step": step, "time": time.time(), "tok_s": rates[min(step, len(rates) - 1)]}) + "\\n")
    step += 1
    time.sleep(0.05)
"""


def training(stage: Stage, *words: str, rates: list[float] | None = None) -> subprocess.Popen[str]:
    """A launch of a small trainer of the stage's own interpreter, up to its first step."""
    command = [str(stage.python), "-c", LOOP, json.dumps(rates or [1000.0])]
    process = subprocess.Popen(
        stage.envguard_command("launch", *words, "--", *command),
        cwd=stage.project, env=stage.environ(NO_GPUS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_an_install_under_a_run_stops_it_where_that_is_asked_for(tmp_path: Path, story_wheels: Path) -> None:
    stage = make_room(tmp_path / "stage", story_wheels, swapped=False)
    process = training(stage, "--on-drift", "stop", "--report", "report.json")
    time.sleep(2)
    stage.install("torch==2.11.0+cu130")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "saving\n")  # told to end, saved, ended by itself
    assert "torch installed into this environment at " in err
    assert "stopping the run (SIGTERM)" in err
    record = records(stage)[-1]
    (change,) = record["changed"]
    assert (change["facet"], change["grade"]) == ("torch", "block")
    assert "torch 2.11.0+cu128 → 2.11.0+cu130; the running process still has the old one" in change["says"]
    assert record["stopped"]["says"] == change["says"]
    assert json.loads((stage.project / "report.json").read_bytes())["run"]["stopped"] == record["stopped"]
    assert [drift["subject"] for drift in record["stopped"]["drifts"]][:1] == ["torch"]
    assert record["throughput"]["log"].endswith("train_log.jsonl")
    journal = next((stage.project / ".envguard").glob("journal-*.jsonl")).read_text()
    assert [json.loads(line)["kind"] for line in journal.splitlines()][-3:] == [
        "run.started", "run.changed", "run.ended",
    ]  # fmt: skip


def test_a_package_that_came_along_and_harms_nothing_does_not_stop_it(tmp_path: Path, story_wheels: Path) -> None:
    stage = make_room(tmp_path / "stage", story_wheels, swapped=False)
    build_wheel(stage.wheels, "harmless", "1.0", files={"harmless.py": b""})
    process = training(stage, "--on-drift", "stop")
    time.sleep(2)
    stage.install("harmless")
    time.sleep(5)
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert "harmless installed into this environment at " in err
    assert [change["grade"] for change in records(stage)[-1]["changed"]] == ["info"]


def test_a_fall_of_throughput_is_said_with_what_changed_and_stops_where_asked(room: Stage) -> None:
    (room.project / "envguard.toml").write_text("[throughput]\nseconds = 1\nwarmup_steps = 5\n")
    process = training(room, "--on-drift", "stop", rates=[1000.0] * 100 + [200.0])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "throughput is 200 tok/s, 20% of 1,000 (its own first steps)" in err
    assert "nothing is known to have changed" in err
    summary = records(room)[-1]["throughput"]
    assert summary["baseline"] == 1000.0
    assert summary["first_step_s"] < 20


def test_a_cache_that_the_run_s_trainer_set_for_itself_and_that_is_gone_keeps_it_from_starting(room: Stage) -> None:
    cache, checkpoint = room.project / ".cache" / "inductor", room.checkpoints / "step_10"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"x")
    write_cache(cache, tag_of(room))
    own = {**NO_GPUS, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    assert room.envguard("snapshot", "--into", "checkpoints/step_10", extra=own).returncode == 0
    assert launch(room, "--", "true").returncode == 0
    shutil.rmtree(cache)
    done = launch(room, "--json", "--", "true")
    assert done.returncode == 78
    found = answer(done)
    grave = [(row["facet"], row["subject"], row["severity"]) for row in found["drifts"] if row["severity"] != "info"]
    assert grave == [("compile_cache", "inductor", "warn")]
    checks = {check["check"]: check for check in found["preflight"] if check["facet"] == "compile_cache"}
    assert "a cold start" in checks[f"compile cache inductor {cache}"]["detail"]
    assert launch(room, "--waive", "compile_cache", "--because", "x", "--", "true").returncode == 0


def test_the_private_cache_begins_with_what_the_reference_names(room: Stage) -> None:
    cache, checkpoint = room.project / ".cache" / "inductor", room.checkpoints / "step_10"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"x")
    write_cache(cache, tag_of(room))
    write_cache(room.tmp / f"torchinductor_{getpass.getuser()}", tag_of(room), "of another model")
    own = {**NO_GPUS, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    assert room.envguard("snapshot", "--into", "checkpoints/step_10", extra=own).returncode == 0
    private = Path(launch(room, "--", "sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR").stdout.strip())
    entries, taken_along = ({path.name for path in root.glob("fxgraph/*/*/*")} for root in (cache, private))
    assert entries == taken_along
    shutil.rmtree(room.tmp / f"torchinductor_{getpass.getuser()}")
    # From then on it is a cache of this environment: whoever looks from a shell sees it, and misses it.
    taken = json.loads(room.envguard("snapshot", "--json", extra=NO_GPUS).stdout)["compile_cache"]
    assert {each["path"]: each["verdict"] for each in taken if each["verdict"] != "EMPTY"} == {
        str(private): "VALID",
        str(cache): "VALID",
    }
    shutil.rmtree(private)
    drifts = json.loads(room.envguard("diff", "@1", "--json", extra=NO_GPUS).stdout)["drifts"]
    assert [row["severity"] for row in drifts if f"{private} is gone" in row["why"]] == ["warn"]


@pytest.fixture
def lent(room: Stage) -> Iterator[Stage]:
    """A room whose commands can stamp, before its first start."""
    room.lend_envguard()
    (room.project / ".envguard" / "baseline.json").unlink()
    yield room
    (room.site / "envguard-lent.pth").unlink()


def test_what_the_command_sets_in_its_own_process_does_not_keep_the_next_one_from_starting(lent: Stage) -> None:
    """torch names triton's ptxas in its own environment when it first compiles; the stamp holds that."""
    room = lent
    script = room.project / "train.py"
    script.write_text(
        "import os, pathlib, envguard\n"
        'os.environ["TRITON_PTXAS_PATH"] = "/usr/lib/ptxas"\n'
        'os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")\n'
        'path = pathlib.Path("checkpoints/step_30")\n'
        "path.mkdir(exist_ok=True)\n"
        '(path / "model.bin").write_bytes(b"x")\n'
        "envguard.stamp(path)\n"
    )
    command = ("--", str(room.python), str(script))
    first = launch(room, "--baseline", *command)
    assert first.returncode == 0, first.stderr
    done = launch(room, "--against", "step_30", "--json", *command)
    assert done.returncode == 0, done.stderr
    told = {row["subject"]: (row["a"], row["b"], row["severity"]) for row in answer(done)["drifts"]}
    assert told["TRITON_PTXAS_PATH"] == ("/usr/lib/ptxas", None, "info")
    assert told["CUDA_MODULE_LOADING"] == ("LAZY", None, "info")
    refused = launch(room, "--against", "step_30", "--json", *command, TRITON_PTXAS_PATH="/opt/ptxas")
    assert refused.returncode == 78
    (row,) = (row for row in answer(refused)["drifts"] if row["severity"] != "info")
    assert (row["subject"], row["a"], row["b"]) == ("TRITON_PTXAS_PATH", None, "/opt/ptxas")
