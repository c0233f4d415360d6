"""What envguard did or would do: the answers of `restore`, `launch`, `log`, `vault`, `collect`, and errors."""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.model.drift import Drift, Facet, Severity
from envguard.model.evidence import Unknown

Source = Literal["pylock", "rebuilt-wheel", "vault", "find-links", "fetched"]


class PlanItem(msgspec.Struct, frozen=True, kw_only=True):
    """One package to bring back; `to` is None for one that `--exact` removes."""

    package: str
    from_: str | None = msgspec.field(name="from", default=None)
    to: str | None
    source: Source | None
    verified: bool
    bytes: int | None


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A package that cannot be brought back, or an archive that must not be used, and why."""

    package: str
    path: str | None
    why: str

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.package, self.path)))
        return f"{where}: {self.why}" if where else self.why


class CacheItem(msgspec.Struct, frozen=True, kw_only=True):
    """A compile cache that a restore fills; `files` and `bytes` are 0 before it is done."""

    path: str
    source: str
    files: int
    bytes: int


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `restore`."""

    schema: Literal["envguard.restore"] = "envguard.restore"
    version: Literal[1] = 1
    reference: str
    environment: str | None = None
    """The prefix that is, or would be, changed; None where it was not looked for."""
    plan: tuple[PlanItem, ...]
    missing: tuple[Obstacle, ...]
    poisoned: tuple[Obstacle, ...]
    refused: tuple[Obstacle, ...] = ()
    """Why the environment cannot be changed as planned, though every source is sound; `package` may be empty."""
    unknown: tuple[Unknown, ...] = ()
    """Why it cannot be told whether a package is as wanted; nothing is changed then."""
    notes: tuple[str, ...]
    caches: tuple[CacheItem, ...] = ()
    """The compile caches that are, or would be, filled from a copy."""
    applied: bool
    verified: bool
    rolled_back: bool
    differs: tuple[str, ...] = ()
    """Paths of the environment that changed while a restore ran, or since, and that it had no part in."""
    unmet: tuple[str, ...] = ()
    """Packages that stay other than the reference has them: editable installs, which no wheel brings back."""


class Waived(msgspec.Struct, frozen=True, kw_only=True):
    """A drift that somebody answered for; `covers` are the "facet:subject" that it let through."""

    facet: str
    subject: str | None
    because: str
    author: str
    until: str | None
    covers: tuple[str, ...] = ()


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One pre-flight check; `passing` marks a state that goes away by itself (a busy GPU), for code 75.

    `ok` is None where the check could not be made, which refuses as much as False does.
    """

    check: str
    ok: bool | None
    detail: str
    passing: bool = False
    facet: Facet = "system"


class ChangeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed under a run while it ran; `grade` is the worst that it did to the environment."""

    time: str
    facet: str
    subject: str
    says: str
    by: str | None
    grade: Severity | None = None


class SignalSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that `launch` got, and the processes that it was handed to; none where none could bear it."""

    time: str
    signal: str
    to: tuple[int, ...]


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the run that outlived the command; `ended` is the signal that ended it, None where it runs on."""

    pid: int
    command: str
    ended: str | None


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """Why `--on-drift stop` ended the run: what changed, and the differences above "info"."""

    time: str
    facet: str
    subject: str
    says: str
    drifts: tuple[Drift, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that `launch` started; `ended` and `code` are None while it lives."""

    id: str
    pid: int | None
    started: str | None
    ended: str | None
    code: int | None
    changed: tuple[ChangeSeen, ...]
    signals: tuple[SignalSeen, ...] = ()
    stopped: Stopped | None = None
    """Set where `launch` itself asked the run to end."""
    left: tuple[LeftBehind, ...] = ()


class LaunchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `launch`."""

    schema: Literal["envguard.launch"] = "envguard.launch"
    version: Literal[1] = 1
    reference: str
    fingerprint: str | None
    decision: Literal["go", "refuse", "retry"]
    drifts: tuple[Drift, ...]
    unknown: tuple[Unknown, ...]
    waived: tuple[Waived, ...]
    preflight: tuple[Check, ...]
    run: Run | None
    notes: tuple[str, ...] = ()


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `log`."""

    time: str | None
    kind: Literal["checkpoint", "snapshot", "run", "restore", "rollback"]
    ref: str
    id: str | None
    path: str | None
    command: tuple[str, ...] | None = None
    """Of a run: the command line, without secrets."""
    code: int | None = None
    """Of a run that has ended: its exit code."""
    duration_s: float | None = None
    """Of a run that has ended: seconds from its start to its end."""
    reference: str | None = None
    """What a run was held against, or a restore went back to."""


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `log`."""

    schema: Literal["envguard.log"] = "envguard.log"
    version: Literal[1] = 1
    entries: tuple[LogEntry, ...]


class VaultEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in the vault."""

    kind: Literal["wheel", "compile_cache"]
    name: str
    build: str
    bytes: int
    stored: str
    referenced_by: tuple[str, ...]


class VaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `vault list` and `vault gc`."""

    schema: Literal["envguard.vault"] = "envguard.vault"
    version: Literal[1] = 1
    entries: tuple[VaultEntry, ...]


class WaiverRow(msgspec.Struct, frozen=True, kw_only=True):
    """One waiver; `subject` is None for the whole facet, `until` None where it served one launch."""

    facet: str
    subject: str | None
    because: str
    author: str
    given: str
    until: str | None
    run: str | None
    in_force: bool


class WaiversReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `waivers list` and `waivers revoke`; `revoked` counts those that this call ended."""

    schema: Literal["envguard.waivers"] = "envguard.waivers"
    version: Literal[1] = 1
    waivers: tuple[WaiverRow, ...]
    revoked: int


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A witness that is not there, and why."""

    witness: str
    why: str


class CollectReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `collect`."""

    schema: Literal["envguard.collect"] = "envguard.collect"
    version: Literal[1] = 1
    bundle: str
    evidence: int
    unavailable: tuple[Unavailable, ...]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What exit code 2 prints under `--json`."""

    schema: Literal["envguard.error"] = "envguard.error"
    version: Literal[1] = 1
    code: int
    error: str
    hint: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One envguard command of the demo: what it returned, what it had to return, and what that proves."""

    command: str
    code: int
    expected: int
    proves: str
    seconds: float


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `demo`."""

    schema: Literal["envguard.demo"] = "envguard.demo"
    version: Literal[1] = 1
    root: str
    steps: tuple[Step, ...]
    cuda_before: str
    cuda_swapped: str
    cuda_restored: str
    ok: bool
    seconds: float
