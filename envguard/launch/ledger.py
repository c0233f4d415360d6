"""The record of a run, kept current on disk; a state folder that takes no writes is a warning and never the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from envguard.model.action import ChangeSeen, Run
from envguard.model.run import RunRecord
from envguard.state import journal
from envguard.state.runs import write_run


class Ledger:
    """Holds the record of one run and writes it whenever it changes; several threads may change it."""

    def __init__(self, state: Path, record: RunRecord, warn: Callable[[str], None]) -> None:
        self.state = state
        self._record = record
        self._warn = warn
        self._lock = threading.Lock()
        self._failed: set[str] = set()

    @property
    def record(self) -> RunRecord:
        return self._record

    def change(self, **fields: Any) -> None:
        """Replaces fields of the record and writes it."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, **fields)
            self._attempt("the run record", lambda: write_run(self.state, self._record))

    def saw(self, *changes: ChangeSeen) -> None:
        """Adds what was seen to change under the run."""
        if changes:
            with self._lock:
                seen = (*self._record.changed, *changes)
                self._record = msgspec.structs.replace(self._record, changed=seen)
                self._attempt("the run record", lambda: write_run(self.state, self._record))

    def note(self, kind: str, **entry: Any) -> None:
        """One line in the journal."""
        self._attempt("the journal", lambda: journal.append(self.state, kind, entry))

    def _attempt(self, what: str, write: Callable[[], None]) -> None:
        # Said once for each thing: a full disk would otherwise be repeated at every change for days. It is tried
        # again each time, so that a disk which was emptied gets the whole record.
        try:
            write()
        except OSError as error:
            if what not in self._failed:
                self._failed.add(what)
                self._warn(f"{what} cannot be written in {self.state}: {error.strerror or error}")

    def run(self) -> Run:
        """The run as the answer of `launch` shows it."""
        record = self._record
        return Run(
            id=record.id,
            pid=record.pid,
            started=record.started,
            ended=record.ended,
            code=record.code,
            changed=record.changed,
            signals=record.signals,
            stopped=record.stopped,
            left=record.left,
        )
