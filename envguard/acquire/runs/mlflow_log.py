"""MLflow's file store: `mlruns/<experiment>/<run>/metrics/<name>`, lines of `time in ms, value, step`.

Each file is one metric, and a name with a slash is a folder. A store in SQLite is not read, which is reported.
"""

from __future__ import annotations

import posixpath

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.roles import NAMES, is_gradient, is_loss, rate_of, words_of
from envguard.acquire.runs.tracked import Steps
from envguard.acquire.runs.train_log import TrainLog
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import lines
from envguard.config import LogFields

MOST_FILES = 200


def read_mlflow(host: Host, log: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
    """The metrics of one run by step; None where none of them is a rate or a loss. Raises OSError."""
    steps = Steps()
    metrics = _metrics(host, log.path)
    for name, path in metrics[:MOST_FILES]:
        for _, line in lines(host, path):
            parts = line.split()
            if not parts:
                continue
            try:
                time, value, step = int(parts[0]), float(parts[1]), int(parts[2]) if len(parts) > 2 else 0
            except (ValueError, IndexError):
                steps.left += 1
                continue
            steps.take(step, ("timestamp", time), {name: value})
    found = steps.log(log, configured, zone)
    if found is not None and len(metrics) > MOST_FILES:
        found.doubts.append(f"{len(metrics) - MOST_FILES:,} of its {len(metrics):,} metrics were not read")
    return found


def _metrics(host: Host, folder: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    stack = [folder]
    while stack:
        here = stack.pop()
        for name, kind in host.listing(here):
            path = posixpath.join(here, name)
            if kind == "directory":
                stack.append(path)
            elif kind == "file" and _tells(posixpath.relpath(path, folder)):
                found.append((posixpath.relpath(path, folder), path))
    return found


def _tells(name: str) -> bool:
    words = words_of(name)
    usual = any(name in NAMES[role] for role in ("tok_s", "loss", "samples", "epoch"))
    return usual or is_loss(words) or is_gradient(words) or rate_of(posixpath.basename(name)) is not None
