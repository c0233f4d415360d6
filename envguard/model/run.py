"""The record of one run that `launch` started: `runs/<id>.json` in the state folder.

Written before the command starts, again whenever something changes under it, and when it has ended; a record whose
`ended` is null belongs to a run that lives, or whose supervisor was killed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.model.action import ChangeSeen, Check, LeftBehind, SignalSeen, Stopped, Waived
from envguard.model.drift import Drift
from envguard.model.evidence import Unknown


class ThroughputSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer's log said: rates in tokens/s, times in s; None where the log did not say."""

    log: str
    rows: int
    steps: int
    first_step_s: float | None
    """From the start of the command to the first logged step: a cold compile shows here."""
    baseline: float | None
    median: float | None
    last: float | None
    below_s: float = 0.0
    """How long the rate has been below the guard's fraction of the baseline, without a break, up to the last row."""
    cache_hits: int | None = None
    cache_misses: int | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was started, against what, by leave of whom, and what became of it."""

    schema: Literal["envguard.run"] = "envguard.run"
    version: Literal[1] = 1
    id: str
    host: str
    user: str
    supervisor: int
    """PID of the `envguard launch` that watches the run."""
    pid: int | None
    command: tuple[str, ...]
    """The command line, without secrets."""
    cwd: str
    prefix: str
    started: str | None
    ended: str | None
    code: int | None
    signal: str | None = None
    """The signal that ended the command, by name; None where it ended by itself."""
    signals: tuple[SignalSeen, ...] = ()
    stopped: Stopped | None = None
    """Set where `launch` itself asked the run to end."""
    left: tuple[LeftBehind, ...] = ()
    reference: str
    fingerprint: str
    fingerprint_file: str | None
    torch: str | None = None
    gpus: tuple[str, ...] = ()
    compile_cache: str | None = None
    compile_cache_verdict: str | None = None
    drifts: tuple[Drift, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    waived: tuple[Waived, ...] = ()
    preflight: tuple[Check, ...] = ()
    changed: tuple[ChangeSeen, ...] = ()
    throughput: ThroughputSummary | None = None
    peak_memory: dict[str, int] = {}
    """GPU index → the most memory (bytes) that the run was seen to take there."""
    note: str | None = None
