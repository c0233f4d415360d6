"""All logs that were found, each read by the reader of its kind; one that cannot be read costs only itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile
from envguard.acquire.runs.mlflow_log import read_mlflow
from envguard.acquire.runs.tensorboard_log import read_event_file
from envguard.acquire.runs.text_log import TextLog, read_text_log
from envguard.acquire.runs.train_log import TrainLog, read_train_log
from envguard.acquire.seam.host import Host
from envguard.config import LogFields
from envguard.model.evidence import Reason, Unknown


@dataclass(frozen=True)
class RunLogs:
    """Rows and telling lines of a machine's logs. What is there and was not understood is among `unknown`."""

    trained: tuple[TrainLog, ...]
    texts: tuple[TextLog, ...]
    unknown: tuple[Unknown, ...]


def read_logs(host: Host, files: Iterable[LogFile], fields: LogFields, zone: Zone) -> RunLogs:
    """Reads every log."""
    trained: list[TrainLog] = []
    texts: list[TextLog] = []
    unknown: list[Unknown] = []
    stores: list[str] = []
    for file in files:
        if file.kind == "mlflow-store":
            stores.append(file.path)
            continue
        what = f"log {file.path}"
        host.note_log(file.path, file.kind)
        try:
            rows = _rows(host, file, fields, zone, texts, unknown)
        except OSError as error:
            unknown.append(Unknown.refused(what, error))
            continue
        if rows is not None and len(rows):
            trained.append(rows)
            unknown += [Unknown(what, doubt) for doubt in rows.doubts]
    # A trainer that writes there writes beside it as well, in most cases: without that, nothing was looked at.
    reason: Reason = "aside" if trained else "undecided"
    unknown += [Unknown(f"log {path}", "MLflow's store in SQLite is not read", reason) for path in stores]
    return RunLogs(tuple(trained), tuple(texts), tuple(unknown))


def _rows(
    host: Host, file: LogFile, fields: LogFields, zone: Zone, texts: list[TextLog], unknown: list[Unknown]
) -> TrainLog | None:
    if file.kind == "tensorboard":
        return read_event_file(host, file, fields, zone)
    if file.kind == "mlflow":
        return read_mlflow(host, file, fields, zone)
    if file.kind != "text":
        return read_train_log(host, file, fields, zone)
    text = read_text_log(host, file, zone, fields)
    texts.append(text)
    if text.unread is not None:
        unknown.append(Unknown(f"log {file.path}", text.unread))
    return text.rows
