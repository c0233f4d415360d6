"""How far back an environment can speak: of a moment before it came to be it says nothing, and that is no "nothing
changed"."""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.fingerprint.units import some_of
from envguard.timeline.events.checkpoints import is_copy
from envguard.timeline.packages.records import Record


def out_of_reach(survey: Survey, own: Iterable[Record], checkpoint: Checkpoint) -> str | None:
    """Why the packages tell nothing of a checkpoint without a stamp: every one of them came after it was saved, and
    none of this environment's `own` records is as old. None where some of it is older, or where that cannot be
    told."""
    if not checkpoint.dated:
        return f"the files of {checkpoint.name} bear no time that tells when it was saved"
    installs = survey.installs
    came = [item.copied_ns or item.end_ns for item in installs]
    dated = [moment for moment in came if moment is not None]
    copies = [item for item in installs if item.copied_ns is not None]
    if any(record.time_ns <= checkpoint.saved_ns for record in own):
        return None
    linked = [item.name for item in installs if item.installer == "conda"]
    if survey.env.kind == "conda" and linked and not survey.conda:
        later = [item.name for item in installs if item.name in linked and (item.end_ns or 0) > checkpoint.saved_ns]
        if later:
            what = f"{some_of(later)} installed after {checkpoint.name} was saved"
            return f"{what}: no conda-meta/history names what was there before"
    if len(dated) < len(came):
        names = some_of([item.name for item, moment in zip(installs, came, strict=True) if moment is None])
        return f"{names}: when they were installed is not known, since an image clamped the times of its files"
    if copies and is_copy(checkpoint):
        return None  # both were brought here, perhaps together: their births say nothing of their order
    if not dated or min(dated) <= checkpoint.saved_ns:
        later = [item.name for item in copies if (item.copied_ns or 0) > checkpoint.saved_ns]
        if not later:
            return None
        return (
            f"{some_of(later)}: put here after {checkpoint.name} was saved, by a copy that kept its times; what was "
            "there before is known only where a witness names it"
        )
    first = clock.iso_ns(min(dated))
    how = "put here by a copy that kept its times" if len(copies) == len(came) else "installed"
    return (
        f"every package of this environment was {how} after {checkpoint.name} was saved, the first at {first}: what "
        "was there before is known only where a witness names it"
    )


def undated_since(survey: Survey, own: Iterable[Record], since: float) -> str | None:
    """Why the packages do not tell what happened since a moment (s): the times of some are those of an image, or were
    kept by a copy that was made after it. None where each bears a time of its own, or a record of this environment
    is as old as the moment: what departs from that has an event."""
    since_ns = int(since * clock.NS)
    if any(record.time_ns <= since_ns for record in own):
        return None
    undated = [item.name for item in survey.installs if item.copied_ns is None and item.end_ns is None]
    if undated:
        return f"{some_of(undated)}: when they were installed is not known: their files bear no time of their own"
    copied = [item.name for item in survey.installs if (item.copied_ns or 0) > since_ns]
    if copied:
        return f"{some_of(copied)}: put here since then, by a copy that kept its times; what was there is not known"
    return None
