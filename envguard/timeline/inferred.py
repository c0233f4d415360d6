"""Replacements that left no dist-info behind, because a later one followed: told by two sightings that disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from envguard import clock
from envguard.model.event import Event
from envguard.timeline.happening import make_event
from envguard.timeline.packages import Packages
from envguard.timeline.previous import Sighting
from envguard.timeline.transactions import Group

DATED = ("stamp", "journal", "wandb", "train-log", "pip-log")
"""Sources whose time says when the version was there."""


def inferred_swaps(sightings: Mapping[str, Sequence[Sighting]], packages: Packages) -> list[Event]:
    """Between two dated sightings of different versions lies a swap, unless the install on disk is that swap."""
    runs: dict[str, list[Group]] = {}
    for swap in packages.swaps:
        runs.setdefault(swap.change.name, []).append(swap.group)
    events = []
    for name in sorted(sightings):
        # Two environments of one project differ, and nothing was replaced.
        dated = (item for item in sightings[name] if item.source in DATED and item.prefix is None)
        found = [item for item in dated if item.time_ns is not None]
        found.sort(key=lambda item: item.time_ns or 0)
        for before, after in pairwise(found):
            assert before.time_ns is not None
            assert after.time_ns is not None
            if _same(before, after) or any(
                before.time_ns <= group.end_ns and group.start_ns <= after.time_ns for group in runs.get(name, ())
            ):
                continue
            events.append(_event(name, before, after))
    return events


def _same(first: Sighting, second: Sighting) -> bool:
    if first.build is not None and second.build is not None:
        return first.build == second.build
    if "+" in first.version.full and "+" in second.version.full:
        return first.version.full == second.version.full
    return first.version.public == second.version.public


def _event(name: str, before: Sighting, after: Sighting) -> Event:
    assert before.time_ns is not None
    assert after.time_ns is not None
    was, now = before.version.full, after.version.full
    if was == now and before.build is not None and after.build is not None:
        was, now = f"{was} (build {before.build[:12]})", f"{now} (build {after.build[:12]})"
    text = f"{name} {was} → {now}, some time between two records"
    return make_event(
        "package.replaced",
        name,
        before.time_ns,
        after.time_ns,
        text,
        (*before.evidence, *after.evidence),
        precision_s=max(1.0, (after.time_ns - before.time_ns) / clock.NS / 2),
        # Two records say that it happened; neither saw it happen.
        confidence="strong" if before.best == after.best == "strong" else "weak",
        from_=before.version.full,
        to=after.version.full,
    )
