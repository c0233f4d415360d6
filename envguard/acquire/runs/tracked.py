"""What trackers keep by step and name (TensorBoard, MLflow), as a training log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.roles import Path, Row
from envguard.acquire.runs.train_log import TrainLog, from_rows
from envguard.config import LogFields

MOST_ROWS = 1_000_000


class Steps:
    """Rows by step. What is past the bounds is counted in `left`: a log that was read in part is no clean one."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[Path, Any]] = {}
        self.left = 0

    def take(self, step: int, time: tuple[str, float], values: Mapping[str, Any]) -> None:
        """Adds the values of a step; `time` is the field and the value of the step's first time."""
        if step not in self.rows and len(self.rows) >= MOST_ROWS:
            self.left += 1
            return
        row = self.rows.setdefault(step, {("step",): step, (time[0],): time[1]})
        row.update({(name,): value for name, value in values.items()})

    def log(self, file: LogFile, configured: LogFields, zone: Zone) -> TrainLog | None:
        """None where no field is a rate or a loss, and none has a value that is no number."""
        rows: list[Row] = [self.rows[step] for step in sorted(self.rows)]
        found = from_rows(file, list(enumerate(rows, 1)), configured, zone, "step")
        if found is None or not ({"tok_s", "loss"} & found.fields.keys() or found.not_finite):
            return None
        if self.left:
            found.doubts.append(f"{self.left:,} of its values were not read, {len(rows):,} steps were")
        return found
