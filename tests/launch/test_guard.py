"""The guard over tok/s, and the log that it follows: rotated, truncated, torn and silent."""

from __future__ import annotations

import json
import os
from pathlib import Path

from envguard.acquire.machine.zone import read_zone
from envguard.acquire.runs.log_tail import LogTail, Row, read_last_rows
from envguard.acquire.seam.host import LiveHost
from envguard.config import LogFields, Throughput
from envguard.launch.guard import Guard, Meter, baseline_of

HOST = LiveHost()
ZONE = read_zone(HOST, HOST.machine())
SETTINGS = Throughput(fraction=0.7, seconds=60, warmup_steps=5)
START = 1_780_000_000.0


def meter(baseline: float | None = 21_500.0) -> Meter:
    return Meter(SETTINGS, baseline, "step_690", START)


def feed(judge: Meter, rates: list[float], every: float = 10.0) -> list[str]:
    """Rows of these rates, `every` seconds apart, after what was fed before."""
    said = []
    for rate in rates:
        moment = START + every * (judge.rows + 1)
        says = judge.take([Row(judge.rows, moment, rate)], moment)
        if says is not None:
            said.append(says)
    return said


def test_a_fall_that_lasts_is_said_once_and_its_end_once() -> None:
    judge = meter()
    assert feed(judge, [21_000.0] * 20) == []
    (says,) = feed(judge, [4_300.0] * 30)
    assert says == "throughput is 4,300 tok/s, 20% of 21,500 (step_690), for 1 min 00 s"
    assert judge.below_s() > 60
    assert judge.is_down()
    assert feed(judge, [21_000.0] * 10) == ["throughput is back at 21,000 tok/s"]
    assert not judge.is_down()
    assert judge.below_s() == 0.0


def test_warm_up_does_not_count() -> None:
    assert feed(meter(), [100.0] * 5 + [21_000.0] * 40) == []


def test_single_slow_steps_do_not_count() -> None:
    # an evaluation or a checkpoint every tenth step
    assert feed(meter(), ([21_000.0] * 9 + [500.0]) * 20) == []


def test_just_above_the_fraction_is_fine_and_just_below_is_not() -> None:
    assert feed(meter(10_000.0), [7_000.0] * 60) == []
    assert len(feed(meter(10_000.0), [6_999.0] * 60)) == 1


def test_without_a_baseline_its_own_first_steps_are_it() -> None:
    judge = meter(baseline=None)
    assert feed(judge, [20_000.0] * 60) == []
    assert judge.baseline == 20_000.0
    (says,) = feed(judge, [9_700.0] * 30)
    assert "its own first steps" in says


def test_a_log_that_falls_silent_is_said_once() -> None:
    judge = meter()
    feed(judge, [21_000.0] * 20)
    end = START + 200
    assert judge.silence(end + 100) is None
    assert judge.silence(end + 300) == "no step has been logged for 5 min 00 s; a step took 10 s"
    assert judge.is_down()
    assert judge.silence(end + 400) is None


def rows(first: int, count: int, rate: float = 21_500.0) -> str:
    return "".join(
        json.dumps({"step": step, "time": START + step, "tok_s": rate, "loss": 2.0, "cache_hits": step}) + "\n"
        for step in range(first, first + count)
    )


def tail(path: Path) -> LogTail:
    return LogTail(HOST, str(path), LogFields(), ZONE)


def test_only_what_was_appended_is_read_and_a_torn_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "train_log.jsonl"
    follow = tail(log)
    assert follow.read() == []  # not there yet
    log.write_text(rows(0, 3))
    assert [row.step for row in follow.read()] == [0, 1, 2]
    assert follow.read() == []
    text = rows(3, 2)
    with log.open("a") as stream:
        stream.write(text[:-20])
    assert [row.step for row in follow.read()] == [3]
    with log.open("a") as stream:
        stream.write(text[-20:])
    assert [row.step for row in follow.read()] == [4]
    assert (follow.rows, follow.cache_hits, follow.cache_misses) == (5, 4, None)


def test_a_truncated_log_and_a_rotated_one_are_followed(tmp_path: Path) -> None:
    log = tmp_path / "train_log.jsonl"
    log.write_text(rows(0, 10))
    follow = tail(log)
    assert len(follow.read()) == 10
    log.write_text(rows(10, 2))  # truncated in place
    assert [row.step for row in follow.read()] == [10, 11]
    os.rename(log, tmp_path / "train_log.jsonl.1")
    assert follow.read() == []
    log.write_text(rows(12, 30))  # a new file, longer than the old one was
    assert [row.step for row in follow.read()] == list(range(12, 42))


def test_rows_without_a_rate_and_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "train_log.jsonl"
    log.write_text('{"step": 1, "loss": NaN}\nno json\n\n' + rows(2, 1))
    assert [row.step for row in tail(log).read()] == [2]


def test_only_the_end_of_a_long_log_is_read_for_a_baseline(tmp_path: Path) -> None:
    log = tmp_path / "train_log.jsonl"
    log.write_text(rows(0, 2000))
    last = read_last_rows(HOST, str(log), LogFields(), ZONE, most=10_000)
    assert last[-1].step == 1999
    assert 50 < len(last) < 200


def test_the_baseline_is_the_rate_up_to_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train_log.jsonl").write_text(rows(0, 691) + rows(691, 100, 4_300.0))
    assert baseline_of(HOST, [str(tmp_path)], [], LogFields(), ZONE, 690) == 21_500.0
    assert baseline_of(HOST, [str(tmp_path / "none")], [], LogFields(), ZONE, 690) is None


def guard(folder: Path, judge: Meter) -> Guard:
    return Guard(HOST, [str(folder)], [], LogFields(), ZONE, judge)


def test_the_runs_log_is_the_one_that_grows(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(rows(0, 50))
    ours = tmp_path / "train_log.jsonl"
    ours.write_text(rows(0, 50, 100.0))
    watch = guard(tmp_path, meter())
    assert watch.look(START) is None
    assert watch.summary() is None
    with ours.open("a") as stream:
        stream.write(rows(50, 40))
    assert watch.look(START + 10) is None
    summary = watch.summary()
    assert summary is not None
    assert (summary.log, summary.steps, summary.baseline) == (str(ours), 40, 21_500.0)
    assert summary.first_step_s == 50.0
    assert summary.median == 21_500.0


def test_a_log_of_other_rows_is_no_training_log(tmp_path: Path) -> None:
    watch = guard(tmp_path, meter())
    (tmp_path / "events.jsonl").write_text('{"event": "start"}\n')
    assert watch.look(START) is None
    assert watch.summary() is None


def test_a_log_that_becomes_unreadable_is_said_and_found_again(tmp_path: Path) -> None:
    watch = guard(tmp_path, meter())
    log = tmp_path / "train_log.jsonl"
    log.write_text(rows(0, 5))
    watch.look(START + 1)
    log.unlink()
    log.mkdir()
    assert watch.look(START + 10) is None
    assert "cannot be read" in watch.notes[0]
    log.rmdir()
    log.write_text(rows(5, 5))
    watch.look(START + 20)
    assert watch.summary() is not None
