"""What happened: events, the transactions that they form, findings, and the answer of `timeline`."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import msgspec

from envguard.model.drift import Facet
from envguard.model.evidence import Confidence, Evidence, Unknown

EventKind = Literal[
    "package.installed", "package.replaced", "package.removed", "file.patched", "file.deleted",
    "compile_cache.created", "compile_cache.written", "compile_cache.cleared", "checkpoint.saved", "code.commit",
    "code.changed", "data.changed", "config.changed", "system.boot", "system.driver", "system.packages",
    "run.started", "run.ended", "run.throughput", "process.stale", "snapshot.taken", "cache.pruned",
]  # fmt: skip
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)


class Difference(msgspec.Struct, frozen=True, order=True):
    """One drift of `diff` between a checkpoint's stamp and now, by what names it there."""

    facet: Facet
    subject: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at a time or in an interval [time, end], ± `precision_s`.

    Times are ISO 8601 in UTC inside; the screen shows local time with its offset. `time` is None where only "before
    `end`" is known.
    """

    id: str
    time: str | None
    end: str | None
    precision_s: float
    kind: EventKind
    subject: str
    from_: str | None = msgspec.field(name="from", default=None)
    to: str | None = None
    summary: str
    confidence: Confidence
    transaction: str | None = None
    evidence: tuple[Evidence, ...]
    drifts: tuple[Difference, ...] = ()
    """What `diff` reports of it between the checkpoint's stamp and now."""


def event_id(kind: str, subject: str, time: str | None, end: str | None) -> str:
    """The same for the same event, live or from a bundle: a digest of kind, subject and times."""
    text = "\0".join([kind, subject, time or "", end or ""])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A Requires-Dist line as it stands, and whose it is."""

    package: str
    version: str
    requires: str


class PreviousBuild(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate for what was there before a swap; the first of a change's candidates is its `from`."""

    version: str
    build: str | None
    cuda: str | None
    git_version: str | None
    restorable: str | None
    """Path of an archive in the uv cache that holds this build; None where no witness has the build itself."""
    witnesses: tuple[str, ...]
    """Which witnesses name it, the one that proves most first."""
    evidence: tuple[Evidence, ...]


class PackageChange(msgspec.Struct, frozen=True, kw_only=True):
    """One package of a transaction, and what forced it or merely allowed it."""

    name: str
    from_: str | None = msgspec.field(name="from", default=None)
    to: str | None
    forced_by: tuple[Requirement, ...] = ()
    allowed_by: tuple[Requirement, ...] = ()
    previous: tuple[PreviousBuild, ...] = ()


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one install run."""

    id: str
    start: str
    end: str
    tool: str | None
    packages: tuple[PackageChange, ...]
    roots: tuple[str, ...]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a tired person needs to read, with the events it rests on and what speaks against it."""

    rank: int
    title: str
    says: str
    because: tuple[int, ...]
    caveats: tuple[str, ...]


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that the timeline is about."""

    name: str
    path: str
    step: int | None
    time: str | None
    stamped: bool


class TimelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `timeline`."""

    schema: Literal["envguard.timeline"] = "envguard.timeline"
    version: Literal[1] = 1
    checkpoint: CheckpointView | None
    events: tuple[Event, ...]
    transactions: tuple[Transaction, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]

    def undetermined(self) -> tuple[Unknown, ...]:
        """What an all-clear may not be given without: "no finding" is no clean answer then."""
        return tuple(item for item in self.unknown if item.decides)

    def stamp_unread(self) -> str | None:
        """Why the stamp of the checkpoint that was asked about cannot be used though it is there (`cannot be read:
        …`); None where it was read, or where there is none."""
        return next((item.why.removeprefix("its stamp ") for item in self.unknown if item.code == "stamp"), None)

    def exit_code(self) -> int:
        """1 where there are findings, else 3 where something could not be read."""
        return 1 if self.findings else 3 if self.undetermined() else 0
