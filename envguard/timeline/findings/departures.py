"""Findings on packages that are others than the last record has, though no install is as new as that."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import Event
from envguard.timeline.findings.draft import Draft, importance, more
from envguard.timeline.findings.removals import in_relation
from envguard.timeline.packages.inferred import Departure

_SHOWN = 8


def departure_findings(
    departures: Iterable[Departure],
    checkpoint: Checkpoint | None,
    saved: Event | None,
    since: float | None,
    ref: str | None,
) -> list[Draft]:
    """One for those that departed from one record at one moment, as an unpacked backup leaves them."""
    together: dict[tuple[str, bool], list[Departure]] = {}
    for item in departures:
        if since is None or item.may_follow(int(since * clock.NS)):
            together.setdefault((item.record.path, item.dated), []).append(item)
    return [_draft(sorted(those, key=_weight), checkpoint, saved, ref) for those in together.values()]


def _weight(item: Departure) -> tuple[int, str]:
    return importance(item.install.name), item.install.name


def _draft(those: Sequence[Departure], checkpoint: Checkpoint | None, saved: Event | None, ref: str | None) -> Draft:
    lead = those[0]
    title = in_relation(f"{lead.install.name}{more(those, 1)} replaced", lead.since_ns, lead.dated, checkpoint)
    what = "; ".join(item.change for item in those[:_SHOWN]) + more(those, _SHOWN)
    says = [
        f"{what}.",
        f"{lead.record.path} has the first, and what lies there is the second, by its own date older.",
    ]
    if lead.dated:
        says.append(f"It was put here at {clock.iso_ns(lead.since_ns)} by a copy that kept its times, as unpacking "
                    "a backup does.")  # fmt: skip
        caveat = "the copy bears its own past: what was installed here in between is not told by it"
    else:
        caveat = "no witness has the moment: the files bear the times of an older install"
    own = checkpoint is not None and checkpoint.stamp_path == lead.record.path
    back = ref if own and ref is not None else lead.record.value or ""  # a fingerprint is named by its id
    says.append(f"`envguard restore {shlex.quote(back)} --dry-run` tells what of it can be brought back.")
    events = (*(() if saved is None else (saved,)), *(item.event for item in those))
    return Draft((0, importance(lead.install.name), -float(lead.since_ns)), title, " ".join(says), events, (caveat,))
