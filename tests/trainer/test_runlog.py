"""The log file: whole lines alone, and every field that readers rely on."""

from __future__ import annotations

import json
import resource
import sys
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import find_logs
from envguard.acquire.runs.train_log import read_train_log
from envguard.acquire.seam.host import LiveHost
from envguard.config import LogFields
from trainer.config import Config, build_config
from trainer.display import LiveDisplay, PlainDisplay, duration, open_display, rate, sparkline
from trainer.errors import ConfigError
from trainer.runlog import JsonLines, StepRecord, open_sinks

RECORD = StepRecord(
    step=3, time="2026-01-01T00:00:00.000+00:00", epoch=0, batch=9, documents=40, loss=[2.0, 4.0], loss_mean=3.0,
    accuracy=[0.5, None], acceptance_length=1.5, lr=1e-4, grad_norm=0.3, tok_s=21500.0, draft_pos_s=5e6, anchors=64,
    anchors_per_document=4.0, anchors_per_token=0.02, mfu=0.44, step_s=0.5, data_wait_s=0.01, target_s=0.2,
    q_pre=[50, 49], q_hs=[0, 1], attention="flex", recompiles=0, cache_hits=3, cache_misses=1, peak_memory=2**30,
    eta_s=90000.0, dropped_documents=2,
)  # fmt: skip


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_line_a_step_with_the_names_that_readers_know(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.write(RECORD)
    log.write(msgspec.structs.replace(RECORD, step=4))
    assert [line["step"] for line in lines(tmp_path / "log.jsonl")] == [3, 4]  # before it is closed
    log.close()
    first = lines(tmp_path / "log.jsonl")[0]
    assert first["loss"] == [2.0, 4.0]
    assert (first["q_pre"], first["q_hs"]) == ([50, 49], [0, 1])
    assert {"time", "tok_s", "documents", "mfu", "eta_s", "recompiles", "cache_hits", "cache_misses"} <= first.keys()


def test_the_timeline_of_envguard_reads_it(tmp_path: Path) -> None:
    """Speed, losses and queues are found; what only counts up is not taken for data that grew."""
    path = tmp_path / "train_log.jsonl"
    log = JsonLines(path)
    for step in range(1, 5):
        log.write(msgspec.structs.replace(RECORD, step=step, documents=10 * step, q_pre=[step, 49]))
    log.close()
    (found,), _ = find_logs(LiveHost(), (), (str(path),))
    read = read_train_log(LiveHost(), found, LogFields(), Zone(UTC, "test"))
    assert read is not None
    assert list(read.step) == [1, 2, 3, 4]
    assert list(read.rate) == [21500.0] * 4
    assert read.time_ns[0] == 1_767_225_600 * 10**9
    assert (read.without_loss, read.not_finite, read.unread) == (0, {}, 0)
    assert {held.field for held in read.held} == {"q_pre", "q_hs"}
    assert read.value("q_pre", 2) == "[3,49]"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_extra_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"log.{name} needs its package: pip install {name}"):
        open_sinks(build_config({"log": {name: True}}), tmp_path, step=0)


def test_a_resumed_run_goes_on_in_its_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B resumes the run that an id names; without one it begins another, whatever `resume` says."""
    asked: list[str | None] = []

    def init(**settings: Any) -> SimpleNamespace:
        asked.append(settings["id"])
        return SimpleNamespace(id=settings["id"] or f"run{len(asked)}", finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    config = build_config({"log": {"wandb": True}})
    for step in (0, 7, 9, 0, 3):
        for sink in open_sinks(config, tmp_path, step):
            sink.close()
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    open_sinks(config, tmp_path, 5)[0].close()
    assert asked == [None, "run1", "run1", None, "run4", None]


def test_a_torn_line_is_cut_off_and_whole_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2}\n{"step":3,"lo')
    log = JsonLines(path)
    log.write(RECORD)
    log.close()
    assert [line["step"] for line in lines(path)] == [1, 2, 3]
    assert len(lines(path)[2]) > 1


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r"File too large: '.*log\.jsonl'"):
                log.write(RECORD)
        with pytest.raises(OSError, match=r"File too large: '.*log\.jsonl'"):
            log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return build_config({"checkpoint": {"dir": str(tmp_path)}, "log": {"tensorboard": True}})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_takes_every_number(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks = open_sinks(config, tmp_path, step=2)
    for sink in sinks:
        sink.write(RECORD)
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"loss_mean", "loss/0", "loss/1", "q_hs/1", "accuracy/0"} <= set(events.Tags()["scalars"])
    assert events.Scalars("loss/1")[0].value == 4.0


def test_the_screen_shows_speed_losses_queues_and_mfu(config: Config) -> None:
    display = LiveDisplay(config, total_steps=10)
    try:
        display.write(RECORD)
        console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(display.render(RECORD))
        text = console.export_text()
        console.file.close()
    finally:
        display.close()
    for part in ("21.5 Ktok/s", "MFU 44.0%", "1d 01:00:00", "2.0000, 4.0000", "[50, 49]", "[0, 1]", "data wait 2.0%"):
        assert part in text


def test_off_a_terminal_a_plain_line_is_enough(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    display = open_display(config, total_steps=10)
    assert isinstance(display, PlainDisplay)
    with caplog.at_level("INFO", logger="trainer"):
        for step in range(1, 11):
            display.write(msgspec.structs.replace(RECORD, step=step))
    assert [message.split()[1] for message in caplog.messages] == ["1/10", "10/10"]
    assert "21.5 Ktok/s" in caplog.text


def test_figures() -> None:
    assert (duration(59), duration(3 * 86400 + 61)) == ("00:00:59", "3d 00:01:01")
    assert (rate(21500), rate(3.2e9), rate(12)) == ("21.5 K", "3.2 G", "12 ")
    assert sparkline([0, 1, 2]) == "▁▅█"
    assert sparkline([1.0]) == "▁"
