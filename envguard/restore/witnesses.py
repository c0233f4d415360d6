"""A goal for an unstamped checkpoint: what the timeline's witnesses say was there before each later swap.

No stamp means no proof: what comes back is what the best witness names, and each package says which one that is and
how sure it makes. A package that nobody saw change since the checkpoint is left as it is.
"""

from __future__ import annotations

from envguard import clock
from envguard.acquire.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.restore.wanted import Target, Wanted
from envguard.timeline.build import packages_of
from envguard.timeline.packages import Packages, Swap


def from_survey(reference: str, checkpoint: Checkpoint, survey: Survey, why_no_stamp: str) -> Target:
    """The goal that the survey's witnesses name for the moment when `checkpoint` was saved."""
    return from_packages(reference, checkpoint, packages_of(survey), why_no_stamp)


def from_packages(reference: str, checkpoint: Checkpoint, packages: Packages, why_no_stamp: str) -> Target:
    """Undoes every swap that ended after the checkpoint was saved; the earliest of one package counts."""
    wanted: dict[str, Wanted] = {}
    newer: list[str] = []
    for swap in sorted(packages.swaps, key=lambda swap: swap.group.end_ns):
        name = swap.event.subject
        if swap.group.end_ns <= checkpoint.saved_ns or name in wanted or name in newer:
            continue
        if not swap.previous and swap.was_there is None:
            newer.append(name)
        else:
            wanted[name] = _wanted(swap, checkpoint)
    since = clock.iso_ns(checkpoint.saved_ns)
    notes = [
        f"{reference}: {why_no_stamp}; what it ran on is told by other witnesses, and only as far as they go",
        f"packages that no witness saw change since {since} are left as they are",
    ]
    return Target(
        reference=reference,
        kind="witnesses",
        packages=tuple(wanted.values()),
        complete=False,
        newer=tuple(sorted(newer)),
        notes=tuple(notes),
    )


def _wanted(swap: Swap, checkpoint: Checkpoint) -> Wanted:
    name = swap.event.subject
    if not swap.previous:
        return Wanted(name=name, version=None, witness="no witness", sure=f"{swap.was_there}; no witness knows which")
    best = swap.previous[0]
    proofs = "; ".join(f"{item.witness} {item.path} {item.field} = {item.value}" for item in best.evidence[:3])
    others = ", ".join(other.version.full for other in swap.previous[1:4])
    sure = f"{swap.event.confidence}: {proofs}" + (f" (also named: {others})" if others else "")
    return Wanted(
        name=name,
        # Without a build the archive is found by the version in its dist-info, which is the declared one.
        version=best.version.declared or best.version.full,
        full_version=best.version.full,
        build=best.first("build"),
        witness=best.sightings[0].source,
        sure=sure,
    )
