"""Logs as frameworks write them, read and understood as `timeline` does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import find_logs
from envguard.acquire.runs.run_logs import RunLogs, read_logs
from envguard.acquire.seam.host import LiveHost
from envguard.config import LogFields
from envguard.timeline.events.logs import NoNumber, RateChange, RunEnd, no_numbers, run_ends, throughput_events
from envguard.timeline.findings.runs import crash_findings, fall_findings, loss_findings
from envguard.timeline.rates.throughput import read_throughput

ZONE = Zone(UTC, "test")
BASE = 1_779_100_000


@dataclass(frozen=True)
class Read:
    """What a folder of logs comes to."""

    logs: RunLogs
    changes: list[RateChange]
    failed: list[NoNumber]
    ends: list[RunEnd]
    titles: list[str]
    undecided: list[str]


def read_folder(folder: Path) -> Read:
    """Every log below a folder, with the titles of its findings and what was not understood."""
    files, unknown = find_logs(LiveHost(), [str(folder)], [])
    logs = read_logs(LiveHost(), files, LogFields(), ZONE)
    changes = [change for log in logs.trained for change in throughput_events(read_throughput(log))[1]]
    failed = [item for log in logs.trained for item in no_numbers(log)]
    ends = [end for text in logs.texts for end in run_ends(text)]
    drafts = [*fall_findings(changes, []), *crash_findings(ends, [], None), *loss_findings(failed, [], None)]
    return Read(logs, changes, failed, ends, [draft.title for draft in drafts],
                [item.why for item in (*unknown, *logs.unknown) if item.decides])  # fmt: skip


def write(folder: Path, name: str, text: str | bytes) -> Path:
    """A log in a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def iso(seconds: float) -> str:
    """With the offset of UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def naive(seconds: float) -> str:
    """Without an offset."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def steps(count: int = 300, slow_from: int = 200) -> Iterable[tuple[int, int, float]]:
    """(step, time, tok/s) of a run whose rate falls from 21,500 to 4,300."""
    for step in range(count):
        yield step, BASE + 10 * step, 21500.0 if step < slow_from else 4300.0
