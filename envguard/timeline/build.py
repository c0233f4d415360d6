"""From a survey to the answer of `timeline`: pure, the same live and from a bundle."""

from __future__ import annotations

from dataclasses import dataclass

from envguard import clock
from envguard.acquire.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.model.event import Event, TimelineReport
from envguard.model.evidence import Unknown
from envguard.timeline import findings as finding
from envguard.timeline.events import checkpoint_events, checkpoint_view, stale_events
from envguard.timeline.happening import end_of, in_order, start_of
from envguard.timeline.packages import read_packages
from envguard.timeline.requirements import build_graph, marker_variables


@dataclass(frozen=True)
class Bounds:
    """What the answer is about; times in seconds since the epoch, None where unbounded."""

    checkpoint: Checkpoint | None = None
    since: float | None = None
    until: float | None = None
    kinds: frozenset[str] = frozenset()


def build_timeline(survey: Survey, bounds: Bounds) -> TimelineReport:
    """Everything that the survey tells within the bounds, with findings over all of it."""
    graph = build_graph(survey.installs, marker_variables(survey.env, survey.machine))
    packages = read_packages(survey.installs, graph, survey.archive_uses, ())
    events: list[Event] = [*packages.events, *checkpoint_events(survey.checkpoints.found)]
    events += stale_events(survey.processes, packages.swaps, survey.env.site, survey.machine.now)
    ordered = in_order(events)
    checkpoint = bounds.checkpoint
    saved = _saved_event(ordered, checkpoint)
    drafts = finding.swap_findings(packages, checkpoint, saved)
    drafts += finding.stale_findings(ordered)
    shown = tuple(event for event in ordered if _within(event, bounds, saved))
    told = {event.transaction for event in shown}
    return TimelineReport(
        checkpoint=checkpoint_view(checkpoint, checkpoint.stamp_path is not None) if checkpoint else None,
        events=shown,
        transactions=tuple(run for run in packages.transactions if run.id in told),
        findings=finding.finish(drafts, shown),
        unknown=_unknown(survey, graph.unknown),
    )


def _saved_event(events: tuple[Event, ...], checkpoint: Checkpoint | None) -> Event | None:
    if checkpoint is None:
        return None
    found = [event for event in events if event.kind == "checkpoint.saved" and event.subject == checkpoint.name]
    return next((event for event in found if any(item.path == checkpoint.path for item in event.evidence)), None)


def _within(event: Event, bounds: Bounds, saved: Event | None) -> bool:
    since = bounds.since
    if bounds.checkpoint is not None:
        since = max(since or 0.0, bounds.checkpoint.saved_ns / clock.NS)
    if bounds.kinds and event.kind not in bounds.kinds:
        return False
    if saved is not None and event.id == saved.id:
        return True
    if since is not None and end_of(event) < since:
        return False
    return bounds.until is None or start_of(event) <= bounds.until


def _unknown(survey: Survey, more: list[Unknown]) -> tuple[Unknown, ...]:
    missing = [Unknown(f"witness {item.witness}", item.why) for item in survey.unavailable]
    return tuple(dict.fromkeys([*survey.unknown, *more, *missing]))
