"""Findings on packages that were taken out in no run that replaced others."""

from __future__ import annotations

from collections.abc import Collection

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import Event
from envguard.timeline.findings import Draft, importance
from envguard.timeline.packages import Packages
from envguard.timeline.removals import Removal

_SHARED = "another environment may share the cache, and have lost it instead"
_TOUCHED = "the moment is the cache's word: a chmod or chown inside it leaves the same trace"
_UNDATED = "no witness has the moment: pip keeps no trace of a removal, nor does uv where it copies or was cleaned"


def removal_findings(
    packages: Packages,
    checkpoint: Checkpoint | None,
    saved: Event | None,
    since: float | None,
    told: Collection[str],
) -> list[Draft]:
    """One for each; `told` are the runs that have a finding of their own, which names what they removed. What a
    restore of envguard's own took away belongs to it."""
    drafts = []
    for removal in packages.removals:
        event = removal.event
        if removal.own is not None or event.transaction in told:
            continue
        if event.transaction is not None and event.confidence == "weak":
            continue  # that a run was at work just then ties it to this environment no more than to another
        if since is not None and removal.until_ns < since * clock.NS:
            continue
        weak = event.confidence == "weak"
        caveat = _SHARED if weak else _TOUCHED if removal.dated else _UNDATED
        events = (event,) if saved is None else (saved, event)
        weight = (0, importance(event.subject) + (0.7 if weak else 0.5))
        drafts.append(Draft(weight, _title(removal, checkpoint), f"{event.summary}.", events, (caveat,)))
    return drafts


def _title(removal: Removal, checkpoint: Checkpoint | None) -> str:
    event = removal.event
    title = f"{event.subject} {'perhaps ' if event.confidence == 'weak' else ''}removed"
    if checkpoint is None:
        return title
    if removal.dated:
        return f"{title} {clock.span((removal.since_ns - checkpoint.saved_ns) / clock.NS)} after {checkpoint.name}"
    if removal.since_ns >= checkpoint.saved_ns:
        return f"{title} after {checkpoint.name}"
    return f"{title}, before or after {checkpoint.name}"
