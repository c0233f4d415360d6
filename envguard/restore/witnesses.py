"""A goal for an unstamped checkpoint: what the timeline's witnesses say was there before each later swap.

No stamp means no proof: what comes back is what the best witness names, and each package says which one that is and
how sure it makes. A package that nobody saw change since the checkpoint is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.model.evidence import Confidence
from envguard.restore.wanted import Target, Wanted
from envguard.timeline.known import told_at
from envguard.timeline.moments import Before, Untouched
from envguard.timeline.packages.package_events import Swap
from envguard.timeline.packages.previous import Previous
from envguard.timeline.packages.restored import Restored


def from_survey(reference: str, checkpoint: Checkpoint, survey: Survey, why_no_stamp: str) -> Target:
    """The goal that the survey's witnesses name for the moment when `checkpoint` was saved."""
    told = told_at(survey, checkpoint)
    return from_packages(reference, checkpoint, told.packages, why_no_stamp, told.beyond)


def from_packages(
    reference: str, checkpoint: Checkpoint, before: Iterable[Before], why_no_stamp: str, beyond: str | None = None
) -> Target:
    """Undoes what changed after the checkpoint was saved; `beyond` says why witnesses do not reach as far."""
    wanted: list[Wanted] = []
    newer: list[str] = []
    left: list[str] = []
    for item in before:
        swap = item.swap
        if item.restored is not None and item.restored.full_version is None:
            newer.append(item.name)
        elif item.restored is not None:
            wanted.append(_restored(item.restored))
        elif item.mended is not None:
            wanted.append(_mended(item.mended))
        elif item.edited is not None:
            wanted.append(_untouched(item.name, item.edited))
        elif item.stays:
            left.append(f"{item.name}: {item.doubt}: it is left as it is")
        elif item.removal is not None and item.doubt is not None:
            left.append(f"{item.name}: {item.doubt}: it is left away")
        elif item.removal is not None and item.removal.previous is not None:
            wanted.append(_named(item.name, item.removal.previous, item.removal.event.confidence))
        elif swap is None:
            sure = f"{item.doubt}; no witness knows which"
            wanted.append(Wanted(name=item.name, version=None, witness="no witness", sure=sure))
        elif not swap.previous and swap.was_there is None:
            newer.append(item.name)
        else:
            wanted.append(_wanted(swap))
    since = clock.iso_ns(checkpoint.saved_ns)
    notes = [
        f"{reference}: {why_no_stamp}; what it ran on is told by other witnesses, and only as far as they go",
        f"packages that no witness saw change since {clock.local(since)} are left as they are"
        if beyond is None
        else f"packages that no witness names are left as they are: {clock.told(beyond, clock.local)}",
        *left,
    ]
    return Target(
        reference=reference,
        kind="witnesses",
        packages=tuple(wanted),
        moment=since,
        complete=False,
        newer=tuple(sorted(newer)),
        notes=tuple(notes),
    )


def _restored(item: Restored) -> Wanted:
    return _of_journal(item, "restored for this moment before", item.build)


def _untouched(name: str, edited: Untouched) -> Wanted:
    proofs = "; ".join(f"{item.witness} {item.path} {item.field} = {item.value}" for item in edited.proofs[:3])
    sure = f"its files were edited after the checkpoint was saved: {proofs}"
    return Wanted(name=name, version=edited.version, build=edited.build, witness="RECORD", sure=sure)


def _mended(item: Restored) -> Wanted:
    """The version alone: which of its builds lay there before the restore, nobody wrote down."""
    return _of_journal(item, "a restore replaced it by the same version", None)


def _of_journal(item: Restored, why: str, build: str | None) -> Wanted:
    proof = item.proof
    return Wanted(
        name=item.name,
        version=item.version,
        full_version=item.full_version,
        build=build,
        witness="journal",
        sure=f"{why}: {proof.witness} {proof.path} {proof.field}",
    )


def also_named(previous: tuple[Previous, ...]) -> list[str]:
    """What else witnesses name, each once: with its build where that alone tells it from the best one."""
    best = previous[0]
    named = []
    for other in previous[1:]:
        build = other.first("build")
        told = other.version.full
        if told == best.version.full and build is not None:
            told += f" as build {build[:12]}"
        named += [told] if told != best.version.full else []
    return list(dict.fromkeys(named))[:3]


def _wanted(swap: Swap) -> Wanted:
    name = swap.event.subject
    if not swap.previous:
        return Wanted(name=name, version=None, witness="no witness", sure=f"{swap.was_there}; no witness knows which")
    return _named(name, swap.previous[0], swap.event.confidence, also_named(swap.previous))


def _named(name: str, best: Previous, confidence: Confidence, others: Iterable[str] = ()) -> Wanted:
    proofs = "; ".join(f"{item.witness} {item.path} {item.field} = {item.value}" for item in best.evidence[:3])
    also = ", ".join(others)
    sure = f"{confidence}: {proofs}" + (f" (also named: {also})" if also else "")
    return Wanted(
        name=name,
        # Without a build the archive is found by the version in its dist-info, which is the declared one.
        version=best.version.declared or best.version.full,
        full_version=best.version.full,
        build=best.first("build"),
        witness=best.sightings[0].source,
        sure=sure,
    )
