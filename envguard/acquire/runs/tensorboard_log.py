"""TensorBoard event files as training logs; needs the `report` extra for the format's own message types.

A file is a row of records: length (u64), its checksum, the message, its checksum. A torn last record, as a killed
writer leaves one, ends the reading.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.train_log import SYNONYMS, TrainLog
from envguard.acquire.seam.host import Host
from envguard.clock import NS
from envguard.config import LogFields

MOST_BYTES = 512 << 20


class TensorBoardMissing(Exception):
    """The extra that reads event files is not installed."""


def read_event_file(host: Host, log: LogFile, configured: LogFields) -> TrainLog | None:
    """The scalars of an event file by step; None where none of them is a rate or a loss.

    Raises `TensorBoardMissing` and OSError.
    """
    try:
        from tensorboard.compat.proto import event_pb2
    except ImportError as error:
        raise TensorBoardMissing("install envguard-forensics[report] to read TensorBoard files") from error
    rows: dict[int, dict[str, tuple[float, float]]] = {}
    names: dict[str, str] = {}
    for data in _records(host.read(log.path, MOST_BYTES)):
        event = event_pb2.Event.FromString(data)
        for value in event.summary.value:
            role = _role(value.tag, configured)
            number = _scalar(value)
            if role is not None and number is not None:
                names.setdefault(role, value.tag)
                rows.setdefault(event.step, {})[role] = (event.wall_time, number)
    if not {"tok_s", "loss"} & names.keys():
        return None
    return _columns(TrainLog(log.path, names, mtime_ns=log.stat.mtime_ns), rows)


def _records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length + 4
        if end > len(data):
            break
        found.append(data[at + 12 : at + 12 + length])
        at = end
    return found


def _role(tag: str, configured: LogFields) -> str | None:
    for role in ("tok_s", "loss", "samples"):
        if tag == getattr(configured, role) or tag in SYNONYMS[role]:
            return role
    return None


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and len(value.tensor.float_val) == 1:
        return float(value.tensor.float_val[0])
    if kind == "tensor" and len(value.tensor.tensor_content) == 4:
        return float(struct.unpack("<f", value.tensor.tensor_content)[0])
    return None


def _columns(log: TrainLog, rows: dict[int, dict[str, tuple[float, float]]]) -> TrainLog:
    for number, step in enumerate(sorted(rows), 1):
        values = rows[step]
        log.line.append(number)
        log.step.append(step)
        log.time_ns.append(int(min(time for time, _ in values.values()) * 1e6) * (NS // 10**6))
        log.rate.append(values["tok_s"][1] if "tok_s" in values else math.nan)
        loss = values.get("loss")
        if loss is None:
            log.without_loss += 1
        elif not math.isfinite(loss[1]):
            log.not_finite.append(number - 1)
            log.not_finite_rows += 1
    return log
