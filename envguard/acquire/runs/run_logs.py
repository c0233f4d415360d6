"""All logs that were found, each read by the reader of its kind; one that cannot be read costs only itself."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.machine.zone import Zone
from envguard.acquire.runs.log_files import LogFile, why_unread
from envguard.acquire.runs.mlflow_log import read_mlflow
from envguard.acquire.runs.tensorboard_log import read_event_file
from envguard.acquire.runs.text_log import TextLog, read_text_log
from envguard.acquire.runs.train_log import TrainLog, read_train_log
from envguard.acquire.seam.host import Host
from envguard.clock import NS
from envguard.config import LogFields
from envguard.model.evidence import Reason, Unknown

_ALIKE_NS = 3600 * NS


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
    unread: list[LogFile] = []
    for file in files:
        if file.kind == "unread":
            unread.append(file)
            continue
        what = f"log {file.path}"
        host.note_log(file.path, file.kind)
        try:
            rows = _rows(host, file, fields, zone, texts, unknown)
            silent = file.named and not rows and not _is_understood(file, texts) and _holds_rows(host, file)
        except OSError as error:
            unknown.append(Unknown.refused(what, error))
            continue
        if rows is not None and len(rows):
            trained.append(rows)
            unknown += [Unknown(what, doubt) for doubt in rows.doubts]
        elif silent:
            unknown.append(Unknown(what, "none of its fields is understood, and the configuration names it"))
    unknown += _unread(unread, trained)
    return RunLogs(tuple(trained), tuple(texts), tuple(unknown))


def _is_understood(file: LogFile, texts: list[TextLog]) -> bool:
    """Whether a text log told at least how a run ended."""
    return file.kind == "text" and any(text.path == file.path and text.marks for text in texts)


def _holds_rows(host: Host, file: LogFile) -> bool:
    """Whether a log has anything to be understood: more than nothing, or than the header of a CSV file."""
    if file.kind not in ("jsonl", "csv", "text"):
        return False
    lines = [line for line in host.read(file.path, 1 << 16).splitlines() if line.strip()]
    return len(lines) > (file.kind == "csv")


def _unread(files: list[LogFile], trained: list[TrainLog]) -> list[Unknown]:
    """Logs that are there and are not read, the newest of each kind and reason with the number of its like.

    A run that writes there writes beside it as well, in most cases: an understood log that goes on as long tells the
    same. Without one, nothing was looked at.
    """
    latest = max((log.mtime_ns for log in trained if len(log) > 1), default=None)
    groups: dict[tuple[str, Reason], list[LogFile]] = {}
    for file in sorted(files, key=lambda file: -file.stat.mtime_ns):
        beside = latest is not None and latest + _ALIKE_NS >= file.stat.mtime_ns
        why = why_unread(posixpath.basename(file.path)) or "it is not read"
        groups.setdefault((why, "aside" if beside else "undecided"), []).append(file)
    return [
        Unknown(f"log {like[0].path}", why + (f" ({len(like) - 1} more such logs)" if len(like) > 1 else ""), reason)
        for (why, reason), like in groups.items()
    ]


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
