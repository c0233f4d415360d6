"""What this machine's witnesses still know of the packages when a checkpoint without a stamp was saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envguard.acquire.project.watched_files import Edited
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.survey import Request, Survey, survey
from envguard.fingerprint.partial import Known, Recalled
from envguard.fingerprint.places import Reference
from envguard.fingerprint.rules import is_torch_stack
from envguard.timeline.build import departures_of, packages_of
from envguard.timeline.events.code import edit_proofs
from envguard.timeline.moments import Before, Untouched, changed_since
from envguard.timeline.packages.inferred import Departure
from envguard.timeline.packages.records import Record, own_records, read_records, record_at
from envguard.timeline.packages.restored import read_restored
from envguard.timeline.reach import out_of_reach


@dataclass(frozen=True)
class Told:
    """What is known of the packages at a moment; `beyond` says why the rest is not even known to be as it is now."""

    packages: tuple[Before, ...]
    beyond: str | None = None


def told_at(survey: Survey, checkpoint: Checkpoint) -> Told:
    """What is known of the packages when a checkpoint without a stamp was saved."""
    records = read_records(survey)
    own = own_records(records)
    packages, saved_ns = packages_of(survey, records), checkpoint.saved_ns
    found = changed_since(packages.swaps, saved_ns, read_restored(survey.journal), packages.removals)
    beyond = out_of_reach(survey, own, checkpoint)
    if beyond is not None:
        # Where everything is newer, that one package is says neither that it was there nor that it was not.
        found = tuple(item for item in found if item.swap is None or item.swap.previous)
    proved = (_unless_unproved(survey, own, item, saved_ns) for item in found)
    found = tuple(item for item in proved if item is not None)
    departed = tuple(_departed_since(departures_of(survey, own, packages), saved_ns))
    edited = _edited_since(survey, saved_ns, {item.name for item in (*found, *departed)})
    return Told((*found, *departed, *edited), beyond)


def _unless_unproved(survey: Survey, own: Sequence[Record], item: Before, saved_ns: int) -> Before | None:
    """An install of which no predecessor is known is no proof that there was none: it may be the same build again.
    Records without the package on both sides of the moment are one; a record before it alone is not. So is a uv cache
    that had not unpacked any build of it yet, but for torch and its like: of those it would be a grave thing to say,
    and caches get cleaned. None where records on both sides have the very build that is there now."""
    swap = item.swap
    if swap is None or swap.previous or swap.was_there is not None:
        return item
    last = record_at(own, saved_ns)
    later = next((record for record in own if saved_ns <= record.time_ns < swap.group.start_ns), None)
    if last is not None and later is not None:
        if item.name not in last.there and item.name not in later.there:
            return item
        if swap.again and all(record.has(item.name, swap.install.build) for record in (last, later)):
            return None
    unpacked = [use.unpacked_ns for use in survey.archive_uses if use.archive.name == item.name]
    if unpacked and not is_torch_stack(item.name) and all(at is not None and at > saved_ns for at in unpacked):
        return item
    doubt = "it was installed later, and no witness knows whether it was there before"
    return Before(item.name, doubt=doubt, stays=True)


def _departed_since(departures: Iterable[Departure], saved_ns: int) -> Iterable[Before]:
    for item in departures:
        if item.may_follow(saved_ns):
            why = f"{item.event.from_} is what {item.record.path} has, and an older install lies there now"
            yield Before(item.install.name, doubt=f"{why}: when that came is not known")


def _edited_since(survey: Survey, saved_ns: int, told: set[str]) -> Iterable[Before]:
    by_package: dict[str, list[Edited]] = {}
    for edit in survey.edits:
        by_package.setdefault(edit.package, []).append(edit)
    builds = {install.name: install for install in survey.installs}
    for name, edits in by_package.items():
        install = builds.get(name)
        if name in told or install is None or install.build is None or (install.end_ns or saved_ns) > saved_ns:
            continue
        if any(edit.beside is not None and edit.first_ns > saved_ns for edit in edits):
            yield Before(name, doubt="its RECORD was written anew since then, and what that listed is not known")
        elif all(edit.first_ns > saved_ns for edit in edits):
            proofs = tuple(item for edit in edits for item in edit_proofs(edit))
            yield Before(name, edited=Untouched(install.version, install.build, proofs))


def known_at(reference: Reference, request: Request) -> Recalled:
    """What this machine's witnesses still know of the packages when a checkpoint was saved."""
    if reference.checkpoint is None:
        return Recalled(())
    if not reference.checkpoint.dated:
        return Recalled((), f"the files of {reference.label} bear no time that tells when it was saved")
    seen = survey(LiveHost(), request)
    told = told_at(seen, reference.checkpoint)
    found = known_before(told.packages)
    for written in seen.written_by:
        if written.checkpoint == reference.checkpoint.path:
            # What a library wrote into the checkpoint is what was loaded; a swap's own witnesses know the build too.
            found.setdefault(written.package, Known(written.package, written.version))
    return Recalled(tuple(found.values()), told.beyond)


def known_before(before: Iterable[Before]) -> dict[str, Known]:
    """What is known of a checkpoint's time: what a restore brought back for it, else what the first swap replaced.

    An install of which no predecessor is known proves that there was none only as `_unless_unproved` says.
    """
    found: dict[str, Known] = {}
    for item in before:
        name, swap = item.name, item.swap
        if item.restored is not None:
            full = item.restored.full_version
            found[name] = Known(name, full, item.restored.build, absent=full is None)
            continue
        if item.mended is not None:
            found[name] = Known(name, item.mended.full_version)
            continue
        if item.edited is not None:
            found[name] = Known(name, item.edited.version, item.edited.build)
            continue
        if item.removal is not None and item.removal.previous is not None and item.doubt is None:
            gone = item.removal.previous
            found[name] = Known(name, gone.version.full, gone.first("build"))
            continue
        if swap is None:
            found[name] = Known(name, None, doubt=item.doubt or Known.doubt)
            continue
        best = swap.previous[0] if swap.previous else None
        if best is not None and best.best != "weak":
            found[name] = Known(name, best.version.full, best.first("build"))
        elif best is not None:
            doubt = f"it was installed later, and that {best.version.full} was there before is only likely"
            found[name] = Known(name, None, doubt=doubt)
        else:
            found[name] = Known(name, None, absent=swap.was_there is None)
    return found
