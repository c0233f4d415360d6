"""Installs beside an older install of the same package, in another folder of the path: one hides the other."""

from __future__ import annotations

from collections.abc import Iterator

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import Event
from envguard.timeline.findings.draft import Draft, diff_against, importance
from envguard.timeline.packages.package_events import Packages, Swap


def hiding_findings(
    packages: Packages, checkpoint: Checkpoint | None, saved: Event | None, since: float | None, ref: str | None
) -> Iterator[Draft]:
    """One a package; of runs after `since` (s), where it is given."""
    for swap in packages.swaps:
        if not swap.beside or swap.again or swap.own is not None or swap.event.kind != "package.installed":
            continue
        if since is None or swap.group.end_ns >= since * clock.NS:
            yield _finding(swap, checkpoint, saved, ref)


def _finding(swap: Swap, checkpoint: Checkpoint | None, saved: Event | None, ref: str | None) -> Draft:
    new, name = swap.install, swap.install.name
    old = swap.beside[0]
    came, was = (item.full_version or item.version or "a version unknown" for item in (new, old))
    after = f" after {checkpoint.name}" if checkpoint is not None else ""
    title = f"{name} {came} hides {was}{after}" if swap.first else f"{name} {came} installed behind {was}{after}"
    picked = "the first is imported" if swap.first else "the second is still imported"
    says = f"{name} {came} was installed in {new.location}, {was} stays installed in {old.location}: {picked}."
    if swap.first:
        says += " With the first taken out, the second is imported again."
    return Draft(
        (0, importance(name), -float(swap.group.start_ns)),
        title,
        says,
        (*((saved,) if saved is not None else ()), swap.event),
        (f"nothing was replaced: {diff_against(ref)} grades what hides what",),
    )
