"""envguard's own records: the journal of every host that shares the state folder, and the records of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envguard.acquire.runs.shared import SharedPackages
from envguard.acquire.runs.stamps import MAX_STAMP, Altered, NoFingerprint, parse_fingerprint
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import blocks
from envguard.acquire.section import witness
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.model.parsing import parse_json
from envguard.model.run import RunRecord
from envguard.state import journal

MOST_RUN = 16 << 20
"""Bytes of a run record: one of thousands of changes has some MB."""


@dataclass(frozen=True)
class Entry:
    """One line of a journal; `fields` without the fingerprint of a snapshot."""

    path: str
    line: int
    kind: str
    time: str
    fields: dict[str, Any]
    fingerprint: Fingerprint | None = None
    """Of a snapshot, where it could be read and is as it was written."""
    why_not: str | None = None
    """Why there is none, where there should be one."""


def read_journal(host: Host, state: str | None, unknown: list[Unknown]) -> tuple[Entry, ...] | None:
    """Every entry, oldest first; None where there is no state folder or no journal in it."""
    names = _names(host, state, unknown)
    found: list[Entry] = []
    shared = SharedPackages()
    for name in [name for name in names if _is_journal(name)]:
        path = f"{state}/{name}"
        torn = 0
        try:
            for first, block in blocks(host, path, longest=MAX_STAMP):
                for number, line in enumerate(block.split(b"\n"), first):
                    entry = _entry(path, number, line, shared, unknown) if line.strip() else None
                    torn += entry is None and bool(line.strip())
                    found += [entry] if entry is not None else []
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
        if torn:
            unknown.append(Unknown.refused(path, f"{torn} lines are torn or no entries"))
    return tuple(sorted(found, key=lambda entry: entry.time)) if names else None


def _entry(path: str, number: int, line: bytes, shared: SharedPackages, unknown: list[Unknown]) -> Entry | None:
    value = journal.entry(line)
    if value is None or not isinstance(value.get("time"), str) or not isinstance(value.get("kind"), str):
        return None
    kept = value.pop("fingerprint", None)
    taken = why_not = None
    if value["kind"] == "snapshot" and kept is not None:
        try:
            taken = shared.of(parse_fingerprint(kept))
        except Altered as error:
            # It says nothing: that there was one stays, what it says goes.
            why_not = f"the snapshot cannot be believed: {error}"
            unknown.append(Unknown.refused(f"{path}, line {number}", why_not))
            value.pop("id", None)
        except NoFingerprint as error:
            why_not = str(error)  # of a version that this one does not read
    return Entry(path, number, value["kind"], value["time"], value, taken, why_not)


def stamped_paths(host: Host, state: str | None, unknown: list[Unknown]) -> tuple[str, ...]:
    """Where every stamp was put, as the journal has it: in the default folders of frameworks, and anywhere else.

    Of a line only what stands before the fingerprint is parsed, which is nearly all of it.
    """
    found: dict[str, None] = {}
    for name in [name for name in _names(host, state, unknown) if _is_journal(name)]:
        try:
            for _, block in blocks(host, f"{state}/{name}", longest=MAX_STAMP):
                for line in block.split(b"\n"):
                    found.update(dict.fromkeys(_stamped_in(line)))
        except OSError as error:
            unknown.append(Unknown.refused(f"{state}/{name}", error))
    return tuple(found)


def _stamped_in(line: bytes) -> tuple[str, ...]:
    head, cut, _ = line.partition(b',"fingerprint":')
    if b'"kind":"stamp"' not in head and b'"into":"' not in head:
        return ()
    value = journal.entry(head + b"}" if cut else head) or {}
    path = value.get("path") if value.get("kind") == "stamp" else value.get("into")
    return (path,) if isinstance(path, str) and path.startswith("/") else ()


def read_run_records(host: Host, state: str | None, unknown: list[Unknown]) -> tuple[tuple[str, RunRecord], ...]:
    """(path, record) of every run that `launch` recorded, oldest first."""
    found = []
    for name in _names(host, f"{state}/runs" if state else None, unknown):
        path = f"{state}/runs/{name}"
        if not name.endswith(".json") or name.startswith("."):  # one that is being written
            continue
        with witness(unknown, path):
            found.append((path, parse_json(host.read(path, MOST_RUN), RunRecord)))
    return tuple(found)


def _is_journal(name: str) -> bool:
    return name.startswith("journal-") and name.endswith(".jsonl")


def _names(host: Host, folder: str | None, unknown: list[Unknown]) -> list[str]:
    """Whatever they are: a loop or a pipe in place of a record is met, and named, when it is read."""
    if folder is None:
        return []
    try:
        return [name for name, _ in host.listing(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unknown.append(Unknown.refused(folder, error))
        return []
