"""Whether a restore would help with what differs, for whoever is about to be told to run one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Literal

from envguard.errors import Error
from envguard.restore.service import Request, bring_caches_back, find_and_plan

Way = Literal["plain", "exact", "none"]
"""`restore REF`, `restore REF --exact`, or no restore at all."""


def way_back(request: Request, subjects: Collection[str]) -> Way:
    """Which restore changes something of what differs; `subjects` are the packages that do.

    One that is impossible counts: it says itself what is missing and how to get it. Nothing is changed, and no
    network is asked.
    """
    try:
        exact = find_and_plan(dataclasses.replace(request, exact=True))
        removed = {step.name for step in exact.steps if step.wanted is None}
        if removed & set(subjects):
            return "exact"
        if exact.missing or exact.unknown or any(step.wanted is not None for step in exact.steps):
            return "plain"
        filled = any(cache.source is not None for cache in bring_caches_back(request, dry_run=True))
    except (Error, OSError):
        return "plain"  # it says why
    return "plain" if filled else "none"
