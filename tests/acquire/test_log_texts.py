"""Texts that a run printed enter neither a bundle nor a report; numbers, times and telling lines do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envguard.acquire.runs.log_files import find_logs
from envguard.acquire.runs.log_texts import without_texts
from envguard.acquire.runs.run_logs import read_logs
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.config import LogFields
from tests.acquire.logs import BASE, ZONE, read_folder, steps, write

SECRET = "Patient no. 7 lives in Example Street"
LOGS = {
    "JSON lines": ("train_log.jsonl", "".join(json.dumps(
        {"step": i, "time": t, "tok_s": r, "loss": 2.0, "samples": SECRET, "texts": [SECRET, {"a": SECRET}]}) + "\n"
        for i, t, r in steps())),
    "escaped": ("train_log.jsonl", "".join(json.dumps(
        {"text": f'\\" {SECRET} "quoted" \n', "step": i, "time": t, "tok_s": r}) + "\n" for i, t, r in steps())),
    "a long row": ("train_log.jsonl", "".join(json.dumps(
        {"step": i, "time": t, "tok_s": r, "text": f"{SECRET} " * (5000 if i == 150 else 1)}) + "\n"
        for i, t, r in steps())),
    "a document": ("trainer_state.json", json.dumps({"best": SECRET, "log_history": [
        {"step": i, "time": t, "tok_s": r, "text": SECRET} for i, t, r in steps()]})),
    "CSV": ("metrics.csv", "step,time,tok_s,text\n" + "".join(f'{i},{t},{r},"{SECRET}, 5"\n' for i, t, r in steps())),
    "text": ("train.log", "".join(f"{SECRET}\nstep {i} loss 2.0 tok/s {r}\n\r{SECRET}\n" for i, _, r in steps())),
    "a dict in text": ("train.log", "".join(
        f"{ {'step': i, 'loss': 2.0, 'tok/s': r, 'completion': SECRET} }\n" for i, _, r in steps())),
}  # fmt: skip


@pytest.mark.parametrize("case", LOGS)
@pytest.mark.parametrize("chunk", [2 << 20, 5000])
def test_a_bundle_answers_as_the_machine_does_and_holds_no_text(
    tmp_path: Path, case: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envguard.acquire.seam.lines.CHUNK", chunk)
    write(tmp_path, *LOGS[case])
    host = RecordingHost(LiveHost())
    files, _ = find_logs(host, [str(tmp_path)], [])
    live = read_logs(host, files, LogFields(), ZONE)
    for name in {piece for node in host.record.nodes.values() for _, _, piece in node.pieces} | {
        node.content for node in host.record.nodes.values() if node.content is not None
    }:
        assert b"Example" not in host.record.contents[name]
        assert b"Patient" not in host.record.contents[name]
    again = BundleHost(host.record, "bundle")
    found, _ = find_logs(again, [str(tmp_path)], [])
    read = read_logs(again, found, LogFields(), ZONE)
    assert [(len(log), list(log.step), list(log.rate)[:150]) for log in read.trained] == [
        (len(log), list(log.step), list(log.rate)[:150]) for log in live.trained
    ] or case == "a long row"
    assert SECRET not in repr(live)
    assert len(read_folder(tmp_path).titles) == 1


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("jsonl", b'{"step": 1, "time": "2026-05-18T10:00:00", "loss": "NaN", "rate": "21.5K", "torch": "2.11"}\n'),
        ("csv", b"step,train loss,time\n1,nan,2026-05-18 10:00:00\n"),
        ("text", b"2026-05-18 10:00:00\nValueError: bad shape\nKilled\n"),
    ],
)  # fmt: skip
def test_what_is_needed_is_kept_as_it_stands(kind: str, data: bytes) -> None:
    assert without_texts(kind, b"", data, b"") is data


def test_samples_seen_so_far_are_no_change_of_the_data(tmp_path: Path) -> None:
    from envguard.timeline.events.logs import throughput_events
    from envguard.timeline.rates.throughput import read_throughput

    for name, value in (("seen", lambda i: 32_000 * i), ("grown", lambda i: 1000 if i < 40 else 2000)):
        rows = [{"step": 500 * i, "time": BASE + 60 * i, "loss": 2.0, "samples": value(i)} for i in range(1, 80)]
        every = rows[:10] if name == "seen" else rows
        write(tmp_path / name, "train_log.jsonl", "".join(json.dumps(row) + "\n" for row in every))
        (log,) = read_folder(tmp_path / name).logs.trained
        events, _ = throughput_events(read_throughput(log))
        assert [event.from_ for event in events if event.kind == "data.changed"] == (
            [] if name == "seen" else ["1,000"]
        )


@pytest.mark.parametrize(
    "place",
    [
        "train_log.jsonl", "outputs/exp1/logs/train_log.jsonl", "outputs/2026-11-30/10-00-00/train_log.jsonl",
        "outputs/exp1/runs/Nov30_10-00-00_host/train_log.jsonl", "multirun/2026-11-30/10-00-00/0/train.log.jsonl",
        "logs/train/runs/2026-11-30_10-00-00/csv/version_0/train_log.jsonl", "a/b/train_log.jsonl",
        "wandb/run-20261130_100000-abc/files/train_log.jsonl", "ray_results/e/t_00000/result.json",
        "nemo_experiments/x/2026-11-30/version_0/train_log.jsonl", "work_dirs/x/20261130_1/vis_data/scalars.json",
    ],
)  # fmt: skip
def test_where_frameworks_put_logs(tmp_path: Path, place: str) -> None:
    write(tmp_path, place, '{"step": 1}\n')
    assert [file.path for file in find_logs(LiveHost(), [str(tmp_path)], [])[0]] == [str(tmp_path / place)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_folder_is_searched_from_the_nearest_place(tmp_path: Path, order: int) -> None:
    write(tmp_path, "a/b/c/d/train_log.jsonl", '{"step": 1}\n')
    places = [str(tmp_path), str(tmp_path / "a" / "b")][::order]
    assert len(find_logs(LiveHost(), places, [])[0]) == 1


@pytest.mark.parametrize("place", ["wandb/run-20261130_100000-abc/logs/debug.log", "wandb/debug.log", ".venv/x.log",
                                   "data/deep/er/x.log", "node_modules/x.log"])  # fmt: skip
def test_what_is_no_log_of_a_run(tmp_path: Path, place: str) -> None:
    write(tmp_path, place, "Killed\n")
    assert find_logs(LiveHost(), [str(tmp_path)], [])[0] == ()


@pytest.mark.parametrize("beside", [False, True])
def test_a_store_that_is_not_read_is_named(tmp_path: Path, beside: bool) -> None:
    write(tmp_path, "mlflow.db", b"SQLite format 3\0")
    if beside:
        write(tmp_path, "train_log.jsonl", '{"step": 1, "loss": 2.0}\n')
    (item,) = read_folder(tmp_path).logs.unknown
    assert (item.why, item.decides) == ("MLflow's store in SQLite is not read", not beside)


def test_links_lead_to_logs(tmp_path: Path) -> None:
    away, project = tmp_path / "scratch", tmp_path / "project"
    one = write(away, "x/train.log", "Killed\n")
    two = write(away, "run5/metrics.csv", "step,loss\n1,nan\n")
    (project / "runs").mkdir(parents=True)
    (project / "train.log").symlink_to(one)
    (project / "again.log").symlink_to(one)
    (project / "runs" / "latest").symlink_to(two.parent)
    (project / "gone.log").symlink_to(away / "gone")
    (project / "zero.log").symlink_to("/dev/zero")
    (project / "data").symlink_to(away)
    found, unknown = find_logs(LiveHost(), [str(project)], [])
    assert [file.path for file in found] == [str(two), str(one)]
    assert unknown == ()
