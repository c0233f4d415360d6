"""Findings of a few lines each: processes that run what was replaced, the driver, edited files."""

from __future__ import annotations

from collections.abc import Sequence

from envguard.model.event import Event
from envguard.timeline.events.happening import end_of
from envguard.timeline.findings.draft import Draft, more


def stale_findings(events: tuple[Event, ...]) -> list[Draft]:
    """Processes that still run what was replaced: what they save next comes from the old build."""
    stale = [event for event in events if event.kind == "process.stale"]
    if not stale:
        return []
    one = len(stale) == 1
    title = f"{len(stale)} process{' still runs' if one else 'es still run'} what was replaced"
    says = "; ".join(event.summary for event in stale[:4]) + more(stale, 4)
    says += (
        ". What it saves comes from the old build; after a restart it runs the new one."
        if one
        else (". What they save comes from the old build; after a restart they run the new one.")
    )
    caveat = "known from the libraries that are loaded: a module that is imported only now comes from the new install"
    return [Draft((1, 0.0), title, says, tuple(stale), (caveat,))]


def driver_findings(mismatch: str | None, events: Sequence[Event]) -> list[Draft]:
    """Loaded kernel module and installed library differ: nothing CUDA starts until a reboot."""
    if mismatch is None:
        return []
    upgrades = [event for event in events if event.kind == "system.driver"]
    boots = [event for event in events if event.kind == "system.boot"]
    says = mismatch[0].upper() + mismatch[1:] + "."
    if upgrades:
        says += f" The driver's packages last changed with {upgrades[-1].summary}."
    caveat = "in a container the module is the host's and the library the image's: then it is the host that decides"
    return [Draft((0, -1.0), "the NVIDIA driver was changed under the running kernel", says,
                  (*upgrades[-1:], *boots[-1:]), (caveat,))]  # fmt: skip


def edit_findings(events: Sequence[Event], since: float | None) -> list[Draft]:
    """Installed files that were edited by hand: no version tells of them."""
    edits = [event for event in events if event.kind == "file.patched" and (since is None or end_of(event) >= since)]
    if not edits:
        return []
    title = f"{len(edits)} installed file{'' if len(edits) == 1 else 's'} edited after the install"
    says = "; ".join(event.summary for event in edits[:4]) + more(edits, 4) + "."
    caveat = "an edit that kept time and size of a file shared with a cache is not seen: `envguard verify --deep`"
    return [Draft((5, 0.0), title, says, tuple(edits[:12]), (caveat,))]
