"""`log`: checkpoints with their stamps, snapshots, runs and restores in one list, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from envguard import clock
from envguard.acquire.runs.checkpoint_names import short_names
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.own_records import Entry, read_journal, read_run_records
from envguard.acquire.runs.stamps import read_stamp
from envguard.fingerprint.places import Places
from envguard.model.action import LogEntry, LogReport
from envguard.model.evidence import Unknown
from envguard.state.journal import journal_file


def history(places: Places) -> tuple[LogReport, tuple[str, ...]]:
    """The list, and in words what of it could not be read or does not count."""
    notes: list[str] = []
    unknown: list[Unknown] = []
    entries = [
        *_checkpoints(places, notes, unknown),
        *_journal(places, notes, unknown),
        *_runs(places, unknown),
    ]
    entries.sort(key=lambda entry: (entry.time or "", entry.kind, entry.ref))
    notes += [f"{item.what}: {item.why}" for item in unknown]
    return LogReport(entries=tuple(entries)), tuple(notes)


def _checkpoints(places: Places, notes: list[str], unknown: list[Unknown]) -> Iterator[LogEntry]:
    """A stamp that does not count gives no id: it says nothing of the time of saving."""
    found = places.checkpoints()
    unknown += found.unknown
    notes += [says for _, says in found.disorder_told()]
    names = short_names(found.found)
    for checkpoint in found.found:
        identity = None
        try:
            stamp = read_stamp(places.host, checkpoint)
        except OSError as error:
            unknown.append(Unknown.refused(checkpoint.path, error))
            stamp = None
        if stamp is not None and stamp.why_not is not None:
            notes.append(f"{names[checkpoint.path]}: {stamp.why_not}")
        elif stamp is not None and stamp.fingerprint is not None:
            identity, checkpoint = stamp.fingerprint.id, stamp.checkpoint
        if checkpoint.incomplete is not None:
            notes.append(f"{names[checkpoint.path]} is not complete: {checkpoint.incomplete}")
        yield LogEntry(
            time=clock.iso_ns(made) if (made := _made_ns(checkpoint)) is not None else None,
            kind="checkpoint",
            ref=names[checkpoint.path],
            id=identity,
            path=checkpoint.path,
        )


def _made_ns(checkpoint: Checkpoint) -> int | None:
    """When it was saved; else when it was made, which orders the list and no stamp moves."""
    return checkpoint.saved_ns if checkpoint.dated else checkpoint.btime_ns


def _journal(places: Places, notes: list[str], unknown: list[Unknown]) -> list[LogEntry]:
    """Snapshots of this host by the `@N` that `diff` takes, of others by their host's journal; and
    restores, done and undone."""
    entries = read_journal(places.host, places.state, unknown) or ()
    own = str(journal_file(Path(places.state), places.host.machine().host))
    here = [entry for entry in entries if entry.kind == "snapshot" and entry.path == own]
    numbers = {id(entry): f"@{len(here) - index}" for index, entry in enumerate(here)}
    found = []
    for entry in entries:
        if entry.kind == "snapshot":
            found.append(_entry("snapshot", numbers.get(id(entry), Path(entry.path).stem), entry))
        elif entry.kind == "stamp.failed":
            when = clock.local(entry.time)
            notes.append(f"{_text(entry, 'path')} was not stamped at {when}: {_text(entry, 'why')}")
        elif entry.kind == "restore":
            found.append(_entry("restore", _text(entry, "reference") or "?", entry))
        elif entry.kind == "rollback":
            found.append(_entry("rollback", f"of {_text(entry, 'reference') or '?'}", entry))
    return found


def _entry(kind: Literal["snapshot", "restore", "rollback"], ref: str, entry: Entry) -> LogEntry:
    path = _text(entry, "into") or entry.path
    reference = _text(entry, "reference")
    return LogEntry(time=entry.time, kind=kind, ref=ref, id=_text(entry, "id"), path=path, reference=reference)


def _text(entry: Entry, field: str) -> str | None:
    value = entry.fields.get(field)
    return value if isinstance(value, str) else None


def _runs(places: Places, unknown: list[Unknown]) -> Iterator[LogEntry]:
    for path, run in read_run_records(places.host, places.state, unknown):
        yield LogEntry(
            time=run.started,
            kind="run",
            ref=run.id,
            id=run.fingerprint,
            path=path,
            command=run.command,
            code=run.code,
            duration_s=_duration(run.started, run.ended),
            reference=run.reference,
        )


def _duration(started: str | None, ended: str | None) -> float | None:
    if started is None or ended is None:
        return None
    try:
        return round(clock.seconds(ended) - clock.seconds(started), 3)
    except ValueError:  # no time that envguard writes: the record was edited
        return None
