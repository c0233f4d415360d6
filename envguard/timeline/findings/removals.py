"""Findings on packages that were taken out in no run that replaced others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import Event
from envguard.timeline.findings.draft import Draft, importance, more
from envguard.timeline.moments import SAME_MOMENT_NS
from envguard.timeline.packages.package_events import Packages
from envguard.timeline.packages.removals import Removal
from envguard.timeline.packages.transactions import PACE_NS

_SHARED = "another environment may share the cache, and have lost it instead"
_TOUCHED = "the moment is the cache's word: a chmod or chown inside it leaves the same trace"
_UNDATED = "no witness has the moment: pip keeps no trace of a removal, nor does uv where it copies or was cleaned"
_SHOWN = 8


def removal_findings(
    packages: Packages,
    checkpoint: Checkpoint | None,
    saved: Event | None,
    since: float | None,
    told: Collection[str],
) -> list[Draft]:
    """One for those that went between the same two moments, as `uv sync` or an uninstall of many leaves them; `told`
    are the runs that have a finding of their own, which names what they removed. What a restore of envguard's own
    took away belongs to it, and so does what was cut short."""
    gone: dict[tuple[int, int, str], list[Removal]] = {}
    last: dict[tuple[str | None, str], Removal] = {}
    firsts: dict[str, Removal] = {}
    for removal in sorted(packages.removals, key=lambda each: each.since_ns):
        event = removal.event
        if removal.own is not None or removal.cut is not None or event.transaction in told:
            continue
        if event.transaction is not None and event.confidence == "weak":
            continue  # that a run was at work just then ties it to this environment no more than to another
        # What the checkpoint's own stamp no longer has went before it, and ends at that very moment.
        if since is not None and removal.until_ns <= since * clock.NS + SAME_MOMENT_NS:
            continue
        first = removal
        if removal.dated:
            # One uninstall takes many out one after the other.
            run = (event.transaction, event.confidence)
            before = last.get(run)
            if before is not None and removal.since_ns - before.since_ns <= PACE_NS:
                first = firsts[before.event.id]
            last[run] = removal
            firsts[event.id] = first
        gone.setdefault((first.since_ns, first.until_ns, event.confidence), []).append(removal)
    return [_draft(sorted(those, key=_weight), checkpoint, saved) for those in gone.values()]


def _weight(removal: Removal) -> tuple[int, str]:
    return importance(removal.event.subject), removal.event.subject


def _draft(gone: Sequence[Removal], checkpoint: Checkpoint | None, saved: Event | None) -> Draft:
    lead = gone[0]
    weak = lead.event.confidence == "weak"
    caveat = _SHARED if weak else _TOUCHED if lead.dated else _UNDATED
    events = (*(() if saved is None else (saved,)), *(removal.event for removal in gone))
    weight = (0, importance(lead.event.subject) + (0.7 if weak else 0.5))
    return Draft(weight, _title(gone, checkpoint), _says(gone), events, (caveat,))


def _says(gone: Sequence[Removal]) -> str:
    lead = gone[0].event
    if len(gone) == 1:
        return f"{lead.summary}."
    if all(removal.dated for removal in gone):
        return " ".join(f"{removal.event.summary}." for removal in gone[:_SHOWN]) + more(gone, _SHOWN)
    names = ", ".join(f"{removal.event.subject} {removal.event.from_ or ''}".strip() for removal in gone[:_SHOWN])
    proof, seen, gone_by = lead.evidence[0].path, clock.local(lead.time or ""), clock.local(lead.end or "")
    return f"{names}{more(gone, _SHOWN)}: {proof} of {seen} still has them; gone by {gone_by}."


def _title(gone: Sequence[Removal], checkpoint: Checkpoint | None) -> str:
    lead = gone[0]
    title = f"{lead.event.subject}{more(gone, 1)} {'perhaps ' if lead.event.confidence == 'weak' else ''}removed"
    return in_relation(title, lead.since_ns, lead.dated, checkpoint)


def in_relation(title: str, since_ns: int, dated: bool, checkpoint: Checkpoint | None) -> str:
    """A title with its place before or after the checkpoint: at `since_ns`, or no earlier than that."""
    if checkpoint is None:
        return title
    if dated:
        return f"{title} {clock.span((since_ns - checkpoint.saved_ns) / clock.NS)} after {checkpoint.name}"
    if since_ns >= checkpoint.saved_ns - SAME_MOMENT_NS:
        return f"{title} after {checkpoint.name}"
    return f"{title}, before or after {checkpoint.name}"
