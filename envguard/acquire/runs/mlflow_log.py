"""MLflow's file store: `mlruns/<experiment>/<run>/metrics/<name>`, lines of `time in ms, value, step`.

Each file is one metric, and a name with a slash is a folder. A store in SQLite is not read, which is reported.
"""

from __future__ import annotations

import posixpath
from typing import Any

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.roles import NAMES, Path, Row, is_gradient, is_loss, rate_of, words_of
from envguard.acquire.runs.train_log import TrainLog, from_rows
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import lines
from envguard.config import LogFields

MOST_FILES = 200
MOST_ROWS = 500_000


def read_mlflow(host: Host, log: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
    """The metrics of one run by step; None where none of them is a rate or a loss. Raises OSError."""
    rows: dict[int, dict[Path, Any]] = {}
    for name, path in _metrics(host, log.path):
        for _, line in lines(host, path):
            parts = line.split()
            if len(parts) < 2 or len(rows) > MOST_ROWS:
                continue
            try:
                time, value, step = int(parts[0]), float(parts[1]), int(parts[2]) if len(parts) > 2 else 0
            except ValueError:
                continue
            row = rows.setdefault(step, {("step",): step, ("timestamp",): time})
            row[(name,)] = value
    ordered: list[tuple[int, Row]] = [(number, rows[step]) for number, step in enumerate(sorted(rows), 1)]
    found = from_rows(log, ordered, configured, zone, "step")
    return found if found is not None and ({"tok_s", "loss"} & found.fields.keys() or found.not_finite) else None


def _metrics(host: Host, folder: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    stack = [folder]
    while stack:
        here = stack.pop()
        for name, kind in host.listing(here):
            path = posixpath.join(here, name)
            if kind == "directory":
                stack.append(path)
            elif kind == "file" and len(found) < MOST_FILES and _tells(posixpath.relpath(path, folder)):
                found.append((posixpath.relpath(path, folder), path))
    return found


def _tells(name: str) -> bool:
    words = words_of(name)
    usual = any(name in NAMES[role] for role in ("tok_s", "loss", "samples", "epoch"))
    return usual or is_loss(words) or is_gradient(words) or rate_of(posixpath.basename(name)) is not None
