"""Texts that a run printed enter neither a bundle nor a report; numbers, times and telling lines do."""

from __future__ import annotations

import json
import os
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
    "words in a line of metrics": ("train.log", "".join(
        f"step {i} loss 2.0 tok/s {r} prompt: {SECRET}\n" for i, _, r in steps())),
    "a bar's words": ("train.log", "".join(
        f"\r{SECRET}: 5%|# | {i}/999 [00:01<00:09, {r / 10000:.2f}it/s, loss=2.0]" for i, _, r in steps())),
    "an exception": ("train.log", "".join(f"step {i} loss 2.0 tok/s {r}\n" for i, _, r in steps())
                     + f"[rank0]: ValueError: {SECRET}\n"),
    "a command": ("train.log", "".join(f"step {i} loss 2.0 tok/s {r}\n" for i, _, r in steps())
                  + f"bash: line 1: 12345 Killed                  python x.py '{SECRET}'\n"),
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
        ("text", b"2026-05-18 10:00:00\nValueError\nKilled\n"),
    ],
)  # fmt: skip
def test_what_is_needed_is_kept_as_it_stands(kind: str, data: bytes) -> None:
    assert without_texts(kind, b"", data, b"") is data


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("ValueError: my words", "ValueError"),
        ("my.pkg.OddError: my words", "my.pkg.OddError"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered",
         "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/my/words'",
         "FileNotFoundError: [Errno 2] No such file or directory"),
        ("OSError: [Errno 28] No space left on device: 'my words'", "No space left on device"),
        ("a.sh: line 9: 8156 Killed      python my.py --words", "a.sh: line 9: 8156 Killed"),
        ("a.sh: line 9: 8156 Segmentation fault      (core dumped) my words",
         "a.sh: line 9: 8156 Segmentation fault"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)  # fmt: skip
def test_of_an_end_only_the_systems_own_words_are_quoted(tmp_path: Path, line: str, quoted: str) -> None:
    write(tmp_path, "train.log", f"{line}\n")
    (text,) = read_folder(tmp_path).logs.texts
    assert [mark.text.rstrip() for mark in text.marks] == [quoted]
    assert b"words" not in without_texts("text", b"", line.encode(), b"") or "words" in quoted


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


UNREAD = {
    "mlflow.db": "MLflow's store in SQLite is not read",
    "wandb/run-20261130_100000-abc/run-abc.wandb": "W&B's binary log is not read",
    "logs/train.log.1.gz": "a compressed log is not read",
    "slurm-1.out.gz": "a compressed log is not read",
    "train_log.jsonl.zst": "a compressed log is not read",
    "metrics.csv.xz": "a compressed log is not read",
}


@pytest.mark.parametrize("beside", ["", "train_log.jsonl", "older/train_log.jsonl"])
@pytest.mark.parametrize("path", UNREAD)
def test_a_log_that_is_not_read_is_named(tmp_path: Path, path: str, beside: str) -> None:
    """It decides, unless an understood log goes on as long."""
    write(tmp_path, path, b"\0\1")
    if beside:
        log = write(tmp_path, beside, "".join(f'{{"step": {i}, "loss": 2.0}}\n' for i in range(3)))
        if "older" in beside:
            os.utime(log, (BASE, BASE))
    (item,) = read_folder(tmp_path).logs.unknown
    assert (item.why, item.decides) == (UNREAD[path], beside != "train_log.jsonl")


@pytest.mark.parametrize("path", ["c4.00001.jsonl.gz", "data.tar.gz", "wheels.zip", "requirements.txt.gz",
                                  "shard_1.jsonl.zst"])  # fmt: skip
def test_compressed_files_that_are_no_logs(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, b"\0\1")
    assert read_folder(tmp_path).logs.unknown == ()


NAMED = {
    "text of unknown words": ("notes.dat", "zug 5 wum 7\nzug 6 wum 3\n", True),
    "JSON lines": ("notes.jsonl", '{"zug": 5, "wum": 7}\n', True),
    "CSV": ("notes.csv", "zug,wum\n5,7\n", True),
    "nothing": ("notes.log", "", False),
    "a header alone": ("notes.csv", "zug,wum\n", False),
    "how it ended": ("notes.log", "zug 5\nKilled\n", False),
    "a loss": ("notes.dat", "step 5 loss 2.0\n", False),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_named_log_that_is_not_understood(tmp_path: Path, case: str) -> None:
    name, text, decides = NAMED[case]
    path = write(tmp_path / "odd", name, text)
    files, _ = find_logs(LiveHost(), [], [str(path)])
    read = read_logs(LiveHost(), files, LogFields(), ZONE)
    assert [item.decides for item in read.unknown] == [True] * decides


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
