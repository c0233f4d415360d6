"""What conda's history states of packages that no install on disk shows: those that it removed, and those that are no
Python distribution (cudnn, nccl, mkl), which the environment loads all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from envguard import clock
from envguard.acquire.packages.conda import CondaStep
from envguard.acquire.packages.installs import Install
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import make_event
from envguard.timeline.packages.previous import Sighting
from envguard.timeline.packages.transactions import Version

LINKING_NS = 600 * clock.NS
"""How long after the last link conda may write its history."""


def conda_sightings(steps: Iterable[CondaStep], installs: Iterable[Install]) -> Iterator[Sighting]:
    """Of distributions that are there now: what a revision removed was there until its links were made, and what it
    installed was there from then on."""
    here = {install.name: install for install in installs}
    for step in steps:
        install = here.get(step.name)
        if install is None:
            continue
        time_ns = step.time_ns
        if install.start_ns is not None and install.end_ns is not None and _of_one_run(step, install):
            time_ns = install.start_ns if step.what == "removed" else install.end_ns
        yield Sighting(step.name, Version(step.version, step.version), time_ns, "conda", (_proof(step),))


def _of_one_run(step: CondaStep, install: Install) -> bool:
    """Whether a revision is the one that linked what is there; its time is a whole second."""
    start, end = install.start_ns or 0, install.end_ns or 0
    same = step.what == "removed" or step.version in (install.version, install.full_version)
    return same and start - clock.NS <= step.time_ns <= end + LINKING_NS


def conda_events(steps: Iterable[CondaStep], installs: Iterable[Install]) -> tuple[Event, ...]:
    """Replacements, removals and installs of packages that have no distribution now, one each a revision."""
    here = {install.name for install in installs}
    found: list[Event] = []
    others = [step for step in steps if step.name not in here]
    for _, revision in groupby(others, key=lambda step: (step.path, step.time_ns)):
        by_name: dict[str, dict[str, CondaStep]] = {}
        for step in revision:
            by_name.setdefault(step.name, {})[step.what] = step
        found += [_event(each.get("removed"), each.get("installed")) for each in by_name.values()]
    return tuple(found)


def _event(was: CondaStep | None, now: CondaStep | None) -> Event:
    lead = now or was
    assert lead is not None
    kind: EventKind = "package.replaced" if was and now else "package.removed" if was else "package.installed"
    old, new = (f"{step.version} {step.build}" if step is not None else None for step in (was, now))
    text = f"{lead.name} {old or 'new'} → {new or 'removed'} by conda"
    proofs = tuple(_proof(step) for step in (was, now) if step is not None)
    return make_event(kind, lead.name, lead.time_ns, None, text, proofs, precision_s=1.0, from_=old, to=new)


def _proof(step: CondaStep) -> Evidence:
    value = f"{step.what} {step.name} {step.version} {step.build}"
    return Evidence(witness="conda", path=step.path, field=f"line {step.line}", value=value)
