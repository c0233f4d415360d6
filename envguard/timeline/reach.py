"""How far back an environment can speak: of a moment before it came to be it says nothing, and that is no "nothing
changed"."""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.fingerprint.units import some_of
from envguard.timeline.events.checkpoints import is_copy
from envguard.timeline.packages.records import Record, record_at


def out_of_reach(survey: Survey, own: Iterable[Record], checkpoint: Checkpoint) -> str | None:
    """Why the packages tell nothing of a checkpoint without a stamp: every one of them came after it was saved, and
    none of this environment's `own` records (in the order of their times) is as old. None where some of it is older,
    or where that cannot be told."""
    if not checkpoint.dated:
        return f"the files of {checkpoint.name} bear no time that tells when it was saved"
    installs = survey.installs
    # Where both were brought here, perhaps together, their births say nothing of their order.
    copied = is_copy(checkpoint)
    came = [item.end_ns if copied else item.copied_ns or item.end_ns for item in installs]
    dated = [moment for moment in came if moment is not None]
    copies = [item for item in installs if item.copied_ns is not None]
    last = record_at(tuple(own), checkpoint.saved_ns)
    if last is not None:
        undated = [item for item in installs if item.copied_ns is None and item.end_ns is None]
        put = [item for item in copies if (item.copied_ns or 0) > checkpoint.saved_ns]
        # One that the record has in another build is told as such.
        return _undated(item.name for item in undated if not last.has(item.name, item.build)) or _put(
            (item.name for item in put if item.name not in last.there), checkpoint
        )
    linked = [item.name for item in installs if item.installer == "conda"]
    if survey.env.kind == "conda" and linked and not survey.conda:
        later = [item.name for item in installs if item.name in linked and (item.end_ns or 0) > checkpoint.saved_ns]
        if later:
            what = f"{some_of(later)} installed after {checkpoint.name} was saved"
            return f"{what}: no conda-meta/history names what was there before"
    if len(dated) < len(came):
        return _undated(item.name for item, moment in zip(installs, came, strict=True) if moment is None)
    if copies and copied:
        return None
    if not dated or min(dated) <= checkpoint.saved_ns:
        return _put((item.name for item in copies if (item.copied_ns or 0) > checkpoint.saved_ns), checkpoint)
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


def _undated(names: Iterable[str]) -> str | None:
    """Why nothing dates these packages; None where there are none."""
    found = list(names)
    what = "when they were installed is not known, since an image clamped the times of its files"
    return f"{some_of(found)}: {what}" if found else None


def _put(names: Iterable[str], checkpoint: Checkpoint) -> str | None:
    """What is said of packages that a copy put here after a checkpoint was saved; None where there are none."""
    found = list(names)
    if not found:
        return None
    return (
        f"{some_of(found)}: put here after {checkpoint.name} was saved, by a copy that kept its times; what was "
        "there before is known only where a witness names it"
    )
