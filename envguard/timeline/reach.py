"""How far back an environment can speak: of a moment before it came to be it says nothing, and that is no "nothing
changed"."""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.timeline.events.checkpoints import is_copy
from envguard.timeline.packages.records import Record


def out_of_reach(survey: Survey, own: Iterable[Record], checkpoint: Checkpoint) -> str | None:
    """Why the packages tell nothing of a checkpoint without a stamp: every one of them came after it was saved, and
    none of this environment's `own` records is as old. None where some of it is older, or where that cannot be
    told."""
    if not checkpoint.dated:
        return f"the files of {checkpoint.name} bear no time that tells when it was saved"
    installs = survey.installs
    came = [item.copied_ns or item.end_ns or 0 for item in installs]
    copies = [item.copied_ns for item in installs if item.copied_ns is not None]
    if not came or min(came) <= checkpoint.saved_ns:
        return None
    if copies and is_copy(checkpoint):
        return None  # both were brought here, perhaps together: their births say nothing of their order
    if any(record.time_ns <= checkpoint.saved_ns for record in own):
        return None
    first = clock.iso_ns(min(came))
    how = "put here by a copy that kept its times" if len(copies) == len(came) else "installed"
    return (
        f"every package of this environment was {how} after {checkpoint.name} was saved, the first at {first}: what "
        "was there before is known only where a witness names it"
    )
