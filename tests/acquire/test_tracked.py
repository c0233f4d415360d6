"""Trackers that keep values by step: what is past the bounds, or is no row, is named and not passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.acquire.runs import mlflow_log, tracked
from tests.acquire.logs import BASE, read_folder, write
from tests.acquire.test_tensorboard_log import record, simple

FOLDER = "mlruns/0/run/metrics"


@pytest.fixture(autouse=True)
def run_of_mlflow(tmp_path: Path) -> None:
    write(tmp_path, "mlruns/0/run/meta.yaml", "run_id: run\n")


def mlflow(values: list[str]) -> bytes:
    return "".join(f"{int(1000 * BASE) + 1000 * at} {value} {at}\n" for at, value in enumerate(values)).encode()


def tensorboard(values: list[str]) -> bytes:
    return b"".join(record(at, {"train/loss": simple(float(value))}) for at, value in enumerate(values))


@pytest.mark.parametrize(("name", "made"), [
    (f"{FOLDER}/loss", mlflow),
    ("runs/a/events.out.tfevents.1779.host.1.0", tensorboard),
])  # fmt: skip
def test_steps_past_the_bound_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, made: object
) -> None:
    assert callable(made)
    write(tmp_path, name, made(["2.0"] * 30 + ["nan"]))
    assert read_folder(tmp_path).undecided == []
    monkeypatch.setattr(tracked, "MOST_ROWS", 30)
    (why,) = read_folder(tmp_path).undecided
    assert "1 of its values were not read" in why


def test_lines_that_are_no_value_are_named(tmp_path: Path) -> None:
    write(tmp_path, f"{FOLDER}/loss", mlflow(["2.0"] * 30) + b"garbage\n1 x 3\n")
    (why,) = read_folder(tmp_path).undecided
    assert "2 of its values were not read" in why


def test_more_metrics_than_are_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_log, "MOST_FILES", 2)
    for name in ("loss", "val_loss", "grad_norm"):
        write(tmp_path, f"{FOLDER}/{name}", mlflow(["2.0"] * 30))
    (why,) = read_folder(tmp_path).undecided
    assert why == "1 of its 3 metrics were not read"
