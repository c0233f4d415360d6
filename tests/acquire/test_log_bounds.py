"""No line and no number of a log costs more than its reading: lines of a megabyte, nesting, 5,000 digits."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest

from envguard.acquire.runs.log_texts import without_texts
from tests.acquire.logs import read_folder, write

SIZE = 1 << 20
SECONDS = 10.0
"""Far above what these take (most a tenth of a second), far below what a quadratic pattern would."""


def of(text: str) -> str:
    return text * (SIZE // len(text))


LINES = {
    "bars": "".join(f"\r {i % 100}%|#  | {i}/20000 [00:01<01:00,  1.31it/s]" for i in range(20000)) + "Killed",
    "newlines": of("\n"), "carriage returns": of("\r"), "a-a-": of("a-"), "spaces": of(" ") + "Error",
    "Error.": of("Error."), "A.": of("A.") + "Error", "loss": of("loss "), "loss 1": of("loss 1 "),
    "commas": "loss " + of("1,"), "digits": "loss " + of("1"), "brackets": "loss " + of("["),
    "%|": "loss " + of("%|"),
    "quotes": "loss {" + of("'a': ") + "}", "JSON": of('loss {"a":'), "memory": of("out of memory "),
    "colours": of("\x1b[0;1;") + "loss", "script lines": of("line 1: ") + "Killed", "slurmstepd": of("slurmstepd"),
    "dates": of("2026-05-18 10:00:00 ") + "loss 1", "waiting": of("Timed out waiting "),
    "escapes": '{"a": "' + of('\\"'),
    "taking": of("taking the process down "), "random": random.Random(1).randbytes(SIZE).decode("latin-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["train.log", "train.jsonl", "metrics.csv", "trainer_state.json"])
@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_megabyte(tmp_path: Path, name: str, line: str) -> None:
    path = write(tmp_path, name, LINES[line])
    began = time.process_time()
    read_folder(tmp_path)
    assert time.process_time() - began < SECONDS
    data = path.read_bytes()
    for kind in ("text", "jsonl", "csv"):
        assert len(without_texts(kind, b"", data, b"")) == len(data)
    assert time.process_time() - began < 3 * SECONDS


def test_the_word_at_the_end_of_a_long_row_of_bars_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "train.log", f"start\n{LINES['bars']}\n")
    assert [(end.kind, end.event.evidence[0].field) for end in read_folder(tmp_path).ends] == [("killed", "line 2")]


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("a.jsonl", '{"step": ' + "1" * 5000 + ', "loss": 1}\n'),
        ("a.jsonl", '{"step": 1, "loss": ' + "[" * 100_000 + "]" * 100_000 + "}\n"),
        ("train.log", 'step 1 loss 2 {"loss": ' + "[" * 100_000 + "}\n"),
        ("metrics.csv", "step,loss,x\n1,2.0," + "a" * 200_000 + "\n"),
        ("metrics.csv", 'step,loss,x\n1,2.0,"' + "a" * 200_000 + "\n"),
    ],
)
def test_an_odd_row_costs_only_itself(tmp_path: Path, name: str, odd: str) -> None:
    last = {"a.jsonl": '{"step": 7, "loss": NaN}\n', "metrics.csv": "7,nan,\n", "train.log": "step 7 loss nan\n"}[
        name
    ]
    write(tmp_path, name, odd + last)
    assert [title.partition(" (")[0] for title in read_folder(tmp_path).titles] == [
        "the loss is not a number from step 7 on"
    ]


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 100_000, '{"log_history": [{"step": ' + "1" * 5000 + "}]}"])
def test_a_document_that_cannot_be_read_is_named_and_the_rest_is_answered(tmp_path: Path, text: str) -> None:
    write(tmp_path, "outputs/checkpoint-1/trainer_state.json", text)
    write(tmp_path, "train.log", "Killed\n")
    read = read_folder(tmp_path)
    assert [end.kind for end in read.ends] == ["killed"]
    assert [why.partition(" (")[0] for why in read.undecided] == ["is no JSON that can be read"]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 20) + b"\0" * 4 + b"\xff" * 20 + b"\0" * 4,
        struct.pack("<Q", 1 << 60) + b"\0" * 8,
        b"\0" * 4096,
        random.Random(2).randbytes(4096),
    ],
)
def test_a_damaged_event_file_is_named_and_the_rest_is_answered(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "runs/a/events.out.tfevents.1.host.1.0", data)
    write(tmp_path, "train.log", "Killed\n")
    read = read_folder(tmp_path)
    assert [end.kind for end in read.ends] == ["killed"]
    assert [why[:10] for why in read.undecided] == ["is damaged"]
