"""What runs leave behind: JSON lines with the oddities of people's logs, text logs, W&B folders, TensorBoard."""

from __future__ import annotations

import json
import math
import os
import resource
from datetime import UTC
from pathlib import Path

import pytest

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import find_logs, kind_of
from envguard.acquire.runs.text_log import TextLog, read_text_log
from envguard.acquire.runs.train_log import TrainLog, read_train_log
from envguard.acquire.runs.wandb_runs import read_wandb_runs
from envguard.acquire.seam.host import LiveHost
from envguard.config import LogFields
from envguard.timeline.events.logs import no_numbers, run_ends, throughput_events
from envguard.timeline.findings.runs import loss_findings
from envguard.timeline.rates.throughput import read_throughput

ZONE = Zone(UTC, "test")
BASE = 1_779_100_000


def read(path: Path, configured: LogFields | None = None) -> TrainLog:
    (log,), unknown = find_logs(LiveHost(), (), (str(path),))
    assert unknown == ()
    found = read_train_log(LiveHost(), log, configured or LogFields(), ZONE)
    assert found is not None
    return found


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({"step": 5, "time": BASE, "tok_s": 21500}, 21500.0),
        ({"global_step": 5, "timestamp": BASE * 1000, "tokens_per_sec": 21500.5}, 21500.5),
        ({"iteration": 5, "_timestamp": BASE + 0.25, "tok/s": 640}, 640.0),
        ({"step": 5, "ts": "2026-05-18T10:26:40+00:00", "Ktok/s": 21.5}, 21500.0),
        ({"step": 5, "datetime": "2026-05-18 10:26:40", "throughput": 9700.0}, 9700.0),
    ],
)
def test_the_usual_names_of_fields(tmp_path: Path, fields: dict[str, object], rate: float) -> None:
    log = read(write(tmp_path / "log.jsonl", [fields]))
    assert (log.step[0], log.rate[0]) == (5, rate)
    assert log.time_ns[0] // 10**9 == BASE


def test_names_that_configuration_gives(tmp_path: Path) -> None:
    log = read(
        write(tmp_path / "log.jsonl", [{"n": 3, "speed": 100.0, "when": BASE}]),
        LogFields(step="n", tok_s="speed", time="when"),
    )
    assert (log.step[0], log.rate[0], log.time_ns[0]) == (3, 100.0, BASE * 10**9)


def test_bare_nan_rows_without_loss_and_torn_lines_are_counted_and_line_numbers_stay_true(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": 0.5, "tok_s": 10}\n\n{"step": 2, "tok_s": 10}\n{"step": 3, "loss": NaN, "tok_s": 10}\n'
        'not json\n[1]\n{"step": 4, "loss": 0.0, "tok_s": Infinity}\n{"step": 5, "loss": "nan", "tok_s'
    )
    log = read(path)
    assert list(log.line) == [1, 3, 4, 7]
    assert list(log.step) == [1, 2, 3, 4]
    failed = log.not_finite["loss"]
    assert (log.without_loss, failed.rows, log.unread) == (1, 1, 3)
    assert (log.line[failed.first], log.line[failed.again or 0]) == (4, 7)


def test_a_log_read_in_pieces_is_the_log_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": i, "time": BASE + i, "tok_s": 100.0 + i, "q_hs": [i // 40], "samples": 5} for i in range(500)]
    path = write(tmp_path / "log.jsonl", rows)
    whole = read(path)
    monkeypatch.setattr("envguard.acquire.seam.lines.CHUNK", 777)
    pieces = read(path)
    assert (pieces.line, pieces.step, pieces.rate, pieces.held) == (whole.line, whole.step, whole.rate, whole.held)
    assert whole.value("q_hs", 41) == "[1]"


def test_data_for_training_is_no_log() -> None:
    assert kind_of("train_data.jsonl") is None
    assert kind_of("requirements-dev.txt") is None
    assert kind_of("train_log.jsonl") == "jsonl"
    assert kind_of("events.out.tfevents.1779.host") == "tensorboard"


def test_restarts_warm_up_and_gaps_are_no_changes_of_throughput(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    time = BASE
    for run in range(3):
        for step in range(60):
            time += 10
            slow = 0.2 if step < 4 else 1.0
            rows.append({"step": run * 50 + step, "time": time, "tok_s": 20_000 * slow * (1 + 0.01 * math.sin(step))})
        time += 3 * 3600
    rates = read_throughput(read(write(tmp_path / "log.jsonl", rows)))
    assert [run.why for run in rates.runs] == [
        "the log begins", "the step went back from 59 to 50", "the step went back from 109 to 100"
    ]  # fmt: skip
    assert len(rates.segments) == 1
    _, changes = throughput_events(rates)
    assert changes == []


def test_a_log_without_times_yields_no_event(tmp_path: Path) -> None:
    rates = read_throughput(read(write(tmp_path / "log.jsonl", [{"step": i, "tok_s": 5.0} for i in range(30)])))
    assert throughput_events(rates) == ([], [])


def text_log(tmp_path: Path, text: str) -> TextLog:
    path = tmp_path / "train.log"
    path.write_text(text)
    (log,), _ = find_logs(LiveHost(), (), (str(path),))
    return read_text_log(LiveHost(), log, ZONE)


def test_a_traceback_is_one_event_dated_by_the_nearest_line_above(tmp_path: Path) -> None:
    log = text_log(
        tmp_path,
        "[2026-05-18 22:47:29] starting\n" + "noise\n" * 50 + "Traceback (most recent call last):\n  File x\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 6 has\nRuntimeError: worker died\n",
    )  # fmt: skip
    (end,) = run_ends(log)
    event = end.event
    assert event.time == "2026-05-18T22:47:29+00:00"
    assert "out of memory on GPU 6" in event.summary
    assert event.evidence[0].field == "line 54"


def test_a_crash_without_any_time_is_only_known_to_be_before_the_file_s_last_writing(tmp_path: Path) -> None:
    (end,) = run_ends(text_log(tmp_path, "ValueError: no\n"))
    event = end.event
    assert event.time is None
    assert event.end is not None
    assert event.confidence == "weak"


def test_words_like_error_in_ordinary_lines_are_no_crash(tmp_path: Path) -> None:
    log = text_log(
        tmp_path, "2026-05-18 22:47:29 reconstruction error: 0.1\nINFO error_rate=0.3\nsignal to noise 3\n"
    )
    assert list(run_ends(log)) == []


def test_wandb_requirements_with_a_bare_line_and_tags_as_they_stand(tmp_path: Path) -> None:
    for name in ("run-20260518_120210-abc123", "offline-run-20260518_130000-def456"):
        files = tmp_path / "wandb" / name / "files"
        files.mkdir(parents=True)
        (files / "requirements.txt").write_text(
            "torch==2.6.0+cu124\n==\ntorchaudio==2.6.0\npyodbc==4.0.0-unsupported\n"
        )
    metadata = tmp_path / "wandb" / "run-20260518_120210-abc123" / "files" / "wandb-metadata.json"
    metadata.write_text(
        json.dumps({"startedAt": "2026-05-18T10:02:10.5", "cudaVersion": "13.0", "git": {"commit": "abc"}})
    )
    runs, unknown = read_wandb_runs(LiveHost(), (str(tmp_path),), ZONE)
    assert unknown == []
    assert [(run.id, run.skipped, len(run.pins)) for run in runs] == [("abc123", 1, 3), ("def456", 1, 3)]
    assert {(pin.name, pin.version) for pin in runs[0].pins} == {
        ("torch", "2.6.0+cu124"), ("torchaudio", "2.6.0"), ("pyodbc", "4.0.0-unsupported")
    }  # fmt: skip
    assert [run.started_from for run in runs] == ["startedAt", "directory name"]
    assert runs[0].driver_cuda == "13.0"  # the driver's word, not torch's


HUGE = 10**400


def test_numbers_and_times_that_no_column_holds_are_none(tmp_path: Path) -> None:
    odd: list[object] = [HUGE, -HUGE, 1e300, True, None, [1], {"a": 1}, "x", "0001-01-01", "9999-12-31T23:59:59", -5]
    rows: list[dict[str, object]] = [{"step": 1, "time": BASE, "tok_s": 100.0, "loss": 1.0}]
    rows += [dict.fromkeys(("step", "time", "tok_s", "loss"), value) for value in odd]
    path = tmp_path / "log.jsonl"
    write(path, rows)
    fast, (log, *_) = read(path), find_logs(LiveHost(), (), (str(path),))[0]
    path.write_text(path.read_text() + "\n\n")  # a blank line: row by row now
    slow = read(path)
    assert log.kind == "jsonl"
    assert [list(fast.time_ns), list(fast.step)] == [list(slow.time_ns), list(slow.step)]
    assert list(fast.time_ns) == [BASE * 10**9] + [0] * len(odd)
    assert (fast.step[1], fast.step[3]) == (-1, -1)
    assert math.isnan(fast.rate[1])
    assert fast.not_finite == {}
    throughput_events(read_throughput(fast))


def test_a_loss_that_is_no_number_is_a_failure_that_rests_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(f'{{"step": {i}, "time": {BASE + i}, "loss": 0.5, "tok_s": 10}}\n' for i in range(5))
        + f'{{"step": 5, "time": {BASE + 5}, "loss": NaN, "tok_s": 10}}\n{{"step": 6, "tok_s": 10}}\n'
    )
    log = read(path)
    events, _ = throughput_events(read_throughput(log))
    failed = no_numbers(log)
    (draft,) = loss_findings(failed, [*events, failed[0].event], None)
    assert draft.title == "the loss is not a number from step 5 on (log.jsonl)"
    assert draft.says == f"Line 6 of {path} is the first of 1 such line. 1 more have no loss at all."
    assert [event.kind for event in draft.events] == ["run.ended", "run.started"]
    assert draft.caveats
    assert loss_findings(failed, [*events, failed[0].event], BASE + 60.0) == []


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe", b"Error "])
def test_a_line_without_end_costs_its_reading_and_no_memory(tmp_path: Path, content: bytes) -> None:
    """A hole of a gigabyte, as a crashed machine leaves one, and a binary file of a log's name."""
    path = tmp_path / "train.log"
    with path.open("wb") as stream:
        stream.write(b"2026-05-18 10:00:00 start\n" + content * 1000)
        stream.truncate(1 << 30)
        stream.seek(1 << 30)
        stream.write(b"\n2026-05-18 10:00:01 go\ntorch.OutOfMemoryError: CUDA out of memory. GPU 3\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (file,), _ = find_logs(LiveHost(), (), (str(path),))
    log = read_text_log(LiveHost(), file, ZONE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10
    assert [(mark.kind, mark.line, mark.gpu) for mark in log.marks if mark.kind == "oom"] == [("oom", 4, "3")]
    assert log.first is not None
    assert log.last is not None
    assert log.last.start_ns - log.first.start_ns == 10**9


def test_of_very_many_logs_those_written_last_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them were read was chance: whichever folder the search came to first."""
    monkeypatch.setattr("envguard.acquire.runs.log_files.MOST", 3)
    for number in range(6):
        (tmp_path / f"run{number}").mkdir()
        log = tmp_path / f"run{number}" / "train_log.jsonl"
        log.write_text("{}\n")
        os.utime(log, (1_000_000, 1_000_000 + number * (-1) ** number))
    found, unknown = find_logs(LiveHost(), [str(tmp_path)], [])
    assert [log.path for log in found] == [str(tmp_path / f"run{number}" / "train_log.jsonl") for number in (0, 2, 4)]
    assert [item.why[:55] for item in unknown] == ["6 log files, of which the 3 that were written last were"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train_log.jsonl", "jsonl"), ("log_history.json", "jsonl"), ("slurm-1.out", "text"), ("nohup.out", "text"),
        ("events.out.tfevents.17.host", "tensorboard"), ("tokenizer_log.json", None), ("my_data.jsonl", None),
        ("requirements-train.txt", None), ("__7_0.distcp", None), ("a.log\n", None), ("trainer_state.json", "jsonl"),
        ("metrics.csv", "csv"), ("train.csv", None), ("results.csv", "csv"), ("stderr.log", "text"),
        ("README.txt", None), ("eval_results.json", None), ("train.log.1", "text"), ("pip.log", None),
        ("job.o12345", "text"), ("wandb-summary.json", "jsonl"), ("mycode.out.py", None),
    ],
)  # fmt: skip
def test_what_a_name_says(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
