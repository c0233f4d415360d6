"""Findings on what conda replaced or removed beside the distributions that lie there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from envguard.model.event import Event
from envguard.timeline.events.happening import start_of
from envguard.timeline.findings.draft import Draft, importance, more

_SHOWN = 4


def conda_findings(events: Sequence[Event], saved: Event | None, since: float | None) -> list[Draft]:
    """One for what conda replaced or removed in one revision. What merely came is an event and no finding, as a
    distribution that came later is."""
    changed = [event for event in events if event.kind != "package.installed"]
    drafts = []
    for time, group in groupby(changed, key=start_of):
        if since is not None and time <= since:
            continue
        those = sorted(group, key=lambda event: (importance(event.subject), event.subject))
        done = "removed" if those[0].kind == "package.removed" else "replaced"
        title = f"{those[0].subject}{more(those, 1)} {done} by conda"
        says = "; ".join(event.summary for event in those[:_SHOWN]) + more(those, _SHOWN) + "."
        events_of = (*(() if saved is None else (saved,)), *those[:12])
        caveat = "conda's history has the time to the second and in the zone of the machine that wrote it"
        drafts.append(Draft((0, importance(those[0].subject) + 0.6), title, says, events_of, (caveat,)))
    return drafts
