"""A machine that refuses: each witness that cannot be asked is named, and none costs the others their word."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.survey import Request, survey
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.timeline.build import Bounds, build_timeline


class Refusing(LiveHost):
    """Refuses one operation outside the venv and the interpreter below it."""

    def __init__(self, operation: str, allowed: tuple[str, ...], number: int = errno.EACCES) -> None:
        self.number = number
        self.operation = operation
        self.allowed = allowed
        self.refused = 0

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == self.operation:
            path = arguments[0] if arguments and isinstance(arguments[0], str) else "/"
            if not path.startswith(self.allowed):
                self.refused += 1
                raise OSError(self.number, os.strerror(self.number), path)
        return super().call(operation, *arguments)


def request(stage: Stage) -> Request:
    config = Config(shell_history=True, data=("data",), uv_caches=(str(stage.cache),), code=("src",))
    root = str(stage.project)
    return Request(
        start=root, python=str(stage.venv), root=root, state=f"{root}/.envguard",
        checkpoint_roots=(str(stage.checkpoints),), config=config,
    )  # fmt: skip


@pytest.mark.parametrize(
    "operation", ["read", "listing", "stat", "stat_target", "walk", "query", "processes", "scan"]
)
def test_one_refused_operation_ends_no_survey(torch_stage: Stage, operation: str) -> None:
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    (torch_stage.checkpoints / "train_log.jsonl").write_text('{"step": 1, "tok_s": 5.0}\n')
    (torch_stage.project / "data").mkdir()
    host = Refusing(operation, (str(torch_stage.venv), sys.base_prefix, "/proc", "/sys"))
    seen = survey(host, request(torch_stage))
    assert [install.name for install in seen.installs if install.end_ns is not None] != []
    report = build_timeline(seen, Bounds())
    assert any(event.subject == "torch" for event in report.events)
    if host.refused and operation not in ("stat_target", "scan"):
        assert any("ermission denied" in item.why for item in report.unknown), report.unknown
        assert report.exit_code() == (1 if report.findings else 3)


NOT_ABSENT = (errno.EACCES, errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EBUSY,
              errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOMEM, errno.ENODEV, errno.ENAMETOOLONG)  # fmt: skip


@pytest.mark.parametrize("number", NOT_ABSENT, ids=errno.errorcode.get)
def test_whatever_its_number_a_refusal_is_no_all_clear(torch_stage: Stage, number: int) -> None:
    host = Refusing("listing", (str(torch_stage.venv), sys.base_prefix, "/proc", "/sys"), number)
    (torch_stage.checkpoints / "step_690").mkdir()
    report = build_timeline(survey(host, request(torch_stage)), Bounds(kinds=frozenset({"cache.pruned"})))
    assert host.refused
    assert report.findings == ()
    refused = [item for item in report.unknown if item.reason == "refused"]
    assert any(os.strerror(number) in item.why for item in refused), report.unknown
    assert report.exit_code() == 3


def test_a_witness_that_is_not_there_is_a_fact(torch_stage: Stage) -> None:
    report = build_timeline(survey(LiveHost(), request(torch_stage)), Bounds(kinds=frozenset({"cache.pruned"})))
    assert any(item.reason == "absent" and item.code == "witness" for item in report.unknown)
    assert report.exit_code() == 0, report.undetermined()


def test_every_witness_that_is_missing_says_why(torch_stage: Stage) -> None:
    seen = survey(LiveHost(), request(torch_stage))
    missing = {item.witness: item.why for item in seen.unavailable}
    assert {"wandb", "git", "pip-log", "train-log", "lock-file", "journal"} <= missing.keys()
    assert all(missing.values())
    assert build_timeline(seen, Bounds()).exit_code() == 0  # what is not there is a fact, what is refused is not


def test_a_run_in_disorder_is_told_once_and_for_the_checkpoint_that_is_asked_about(torch_stage: Stage) -> None:
    for step in range(1, 7):
        path = torch_stage.checkpoints / f"step_{step}.pt"
        path.touch()
        os.utime(path, (2_000_000 - step * 10, 2_000_000 - step * 10))
    seen = survey(LiveHost(), request(torch_stage))
    told = [item.what for item in build_timeline(seen, Bounds()).unknown if "higher step" in item.why]
    assert told == ["time of step_2.pt"]
    asked = next(item for item in seen.checkpoints.found if item.name == "step_5.pt")
    report = build_timeline(seen, Bounds(checkpoint=asked))
    about = [item.why.partition(" has")[0] for item in report.unknown if item.what == "time of step_5.pt"]
    assert about == ["step_5.pt", "step_6.pt"], "its own pairs are no part of the count that is told of the run"
