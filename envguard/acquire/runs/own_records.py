"""envguard's own records: the journal of every host that shares the state folder, and the records of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from envguard.acquire.seam.host import Host
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import why_altered
from envguard.model.run import RunRecord
from envguard.state.journal import entries

MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One line of a journal."""

    path: str
    line: int
    kind: str
    time: str
    fields: dict[str, Any]


def read_journal(host: Host, state: str | None, unknown: list[Unknown]) -> tuple[Entry, ...] | None:
    """Every entry, oldest first; None where there is no state folder or no journal in it."""
    names = _names(host, state, unknown)
    found: list[Entry] = []
    for name in [name for name in names if name.startswith("journal-") and name.endswith(".jsonl")]:
        path = f"{state}/{name}"
        try:
            data = host.read(path, MOST_BYTES)
        except OSError as error:
            unknown.append(Unknown(path, error.strerror or str(error)))
            continue
        torn = 0
        for number, value in enumerate(entries(data), 1):
            if value is None or not isinstance(value.get("time"), str) or not isinstance(value.get("kind"), str):
                torn += 1
            else:
                _take_what_is_altered(value, f"{path}, line {number}", unknown)
                found.append(Entry(path, number, value["kind"], value["time"], value))
        if torn:
            unknown.append(Unknown(path, f"{torn} lines are torn or no entries"))
    return tuple(sorted(found, key=lambda entry: entry.time)) if names else None


def _take_what_is_altered(entry: dict[str, Any], where: str, unknown: list[Unknown]) -> None:
    """A snapshot that is not as it was written says nothing: that there was one stays, what it says goes."""
    if entry["kind"] != "snapshot" or not isinstance(entry.get("fingerprint"), dict):
        return
    try:
        altered = why_altered(msgspec.convert(entry["fingerprint"], Fingerprint), entry["fingerprint"])
    except msgspec.ValidationError:
        return  # of a version that this one does not read
    if altered is not None:
        unknown.append(Unknown(where, f"the snapshot cannot be believed: {altered}"))
        del entry["fingerprint"]
        entry.pop("id", None)


def read_run_records(host: Host, state: str | None, unknown: list[Unknown]) -> tuple[tuple[str, RunRecord], ...]:
    """(path, record) of every run that `launch` recorded, oldest first."""
    found = []
    for name in _names(host, f"{state}/runs" if state else None, unknown):
        path = f"{state}/runs/{name}"
        if not name.endswith(".json"):
            continue
        try:
            found.append((path, msgspec.json.decode(host.read(path, 16 << 20), type=RunRecord)))
        except (OSError, msgspec.MsgspecError) as error:
            unknown.append(Unknown(path, getattr(error, "strerror", None) or str(error)))
    return tuple(found)


def _names(host: Host, folder: str | None, unknown: list[Unknown]) -> list[str]:
    if folder is None:
        return []
    try:
        return [name for name, kind in host.listing(folder) if kind == "file"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unknown.append(Unknown(folder, error.strerror or str(error)))
        return []
