"""Drift: one difference between two fingerprints, graded; and the answers of `diff` and `verify`."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from envguard.model.evidence import Unknown

Facet = Literal[
    "python", "packages", "torch", "cuda", "gpu", "driver", "compile_cache", "code", "config", "data", "env",
    "system", "memory", "unknown",
]  # fmt: skip
FACETS: tuple[str, ...] = get_args(Facet)

Severity = Literal["block", "warn", "info"]
Effect = Literal["breaks", "numerics", "performance", "none"]

UNMET = ("unmet", "unmet-stack", "newcomer-unmet")
"""Changes that are a requirement which no longer holds."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One difference from A to B, with what it does to a run and why a person should believe so."""

    facet: Facet
    subject: str
    a: str | None
    b: str | None
    severity: Severity
    effect: Effect
    why: str
    kind: str = ""
    """What kind of change it is, as the rules name it (`replaced`, `unmet`, `problem:patched`, …)."""

    @property
    def is_requirement(self) -> bool:
        """Whether it is a requirement that no longer holds: `a` and `b` are then of the package that is required."""
        return self.kind in UNMET

    @property
    def required(self) -> str | None:
        """The package that is required, of a requirement that no longer holds."""
        return (self.a or self.b or "").partition(" ")[0] or None if self.is_requirement else None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: the fingerprint's id (None for what was never fingerprinted) and a label."""

    id: str | None
    label: str
    prefix: str | None = None
    """The environment that it is of, where that is known."""


class Minority(msgspec.Struct, frozen=True, kw_only=True):
    """Among many: the one that differs from most, and in what."""

    ref: str
    facet: str
    subject: str
    value: str | None


class DiffReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `diff`."""

    schema: Literal["envguard.diff"] = "envguard.diff"
    version: Literal[1] = 1
    a: Side
    b: Side
    match: bool
    drifts: tuple[Drift, ...]
    unknown: tuple[Unknown, ...]
    minority: tuple[Minority, ...] | None = None

    def exit_code(self) -> int:
        """1 for anything above info, else 3 for what is undetermined, else 0."""
        if any(drift.severity != "info" for drift in self.drifts) or self.minority:
            return 1
        return 3 if self.unknown else 0


DamageKind = Literal[
    "modified", "missing", "extra", "record-changed", "record-missing", "shared-file", "stale-metadata",
    "cache-poisoned",
]  # fmt: skip


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """An installed file that is not what its RECORD, or a second witness, says."""

    package: str
    path: str
    kind: DamageKind
    witness: str
    expected: str | None
    got: str | None
    detail: str | None = None
    diff: str | None = None
    """A unified diff from the original, where that still lies in a cache and both are text."""


class Unverifiable(msgspec.Struct, frozen=True, kw_only=True):
    """A package about which nothing can be said, and why."""

    package: str
    why: str


class Litter(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a package's folder that no RECORD lists and nothing imports: an editor's, a core dump, `.nfs…`."""

    package: str
    path: str
    bytes: int


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `verify`."""

    schema: Literal["envguard.verify"] = "envguard.verify"
    version: Literal[1] = 1
    problems: tuple[Damage, ...]
    unverifiable: tuple[Unverifiable, ...]
    checked: int
    files: int
    hashed: int
    litter: tuple[Litter, ...] = ()
    prefix: str | None = None
    """The environment that was looked at."""
    kind: Literal["venv", "conda", "system"] | None = None

    def exit_code(self) -> int:
        """1 for damage, else 3 for what cannot be verified, else 0."""
        if self.problems:
            return 1
        return 3 if self.unverifiable else 0
