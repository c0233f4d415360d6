"""Whether a fingerprint's id rests on what was seen, or on what could not be."""

from __future__ import annotations

from envguard.fingerprint.machine_changes import facet_of_unknown
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint

BESIDE = frozenset({"code", "config", "data", "env", "system", "processes", "compile_cache", "sources"})
"""First words of what has a digest of its own, or none: the id does not cover it."""


def undetermined(fingerprint: Fingerprint) -> tuple[Unknown, ...]:
    """What could not be read of that which the id covers: the id may then not be the environment's."""
    return tuple(item for item in fingerprint.unknown if facet_of_unknown(item.what) not in BESIDE)
