"""Installed files that are gone or were emptied: a RECORD names them, and the folder that lost them says when.

The last change of that folder is the deletion or came after it, so its mtime bounds the deletion from above; where no
entry and no other event explains that time, it is the deletion's own. From below it is bounded by the install and by
the last look that found the package whole.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.contents import MISSING, Contents
from envguard.acquire.packages.cut_short import SAME_CHANGE_NS
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.lost_files import Folder, Lost
from envguard.acquire.runs.stamps import Stamp
from envguard.fingerprint.units import counted, some_of
from envguard.model.event import Event
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import end_of, make_event, start_of
from envguard.timeline.packages.previous import Sighting

INSTALL_SLACK_NS = 100_000_000
"""A folder that has not changed since the install ended lost nothing after it: such files never came."""
WROTE_SLACK_NS = 2_000_000_000
BEFORE_NS = 2_000_000


@dataclass(frozen=True)
class Loss:
    """One event and the package that it is about; `dated` where the folder's time is the deletion's."""

    event: Event
    lost: Lost
    install: Install
    dated: bool
    doubt: str | None
    """Why the time is only a bound."""


@dataclass(frozen=True)
class _Bounds:
    start: int
    end: int | None
    """None: nothing but now bounds it."""
    dated: bool
    doubt: str | None
    proofs: tuple[Evidence, ...]


@dataclass(frozen=True)
class _Look:
    """The build of a package by a fingerprint, with the files that were missing then. Only one that is `full` asked
    for each of its files anew: a process that stamps what it loaded takes those of other packages as it found them at
    first."""

    time_ns: int
    build: str
    proof: Evidence
    full: bool


def read_losses(
    lost: Iterable[Lost],
    installs: Iterable[Install],
    sightings: Mapping[str, Sequence[Sighting]],
    stamps: Iterable[Stamp],
    others: Sequence[Event],
    now: float,
) -> tuple[Loss, ...]:
    """A loss for each package with files gone, one with files emptied; `others` are the package events, which move
    the time of site-packages too."""
    by_directory = {install.directory: install for install in installs}
    loaded = {stamp.path for stamp in stamps if stamp.fingerprint and stamp.fingerprint.origin in (None, "loaded")}
    found = []
    for item in lost:
        install = by_directory.get(item.directory)
        if install is None or install.end_ns is None:
            continue  # that its time could not be read is among the unknown
        looks = _looks(sightings.get(item.package, ()), loaded)
        deleted = _deleted(item, install, looks, others, int(now * clock.NS))
        found += [deleted] if deleted is not None else []
        found += [_emptied(item, install, int(now * clock.NS))] if item.emptied else []
    return tuple(found)


def _looks(sightings: Iterable[Sighting], loaded: Set[str]) -> Sequence[_Look]:
    """What fingerprints say of one package, in order; `loaded` are the stamps by what a process had loaded."""
    found: list[_Look] = []
    for item in sightings:
        if item.source in ("stamp", "journal") and item.time_ns is not None and item.build is not None:
            proof = item.evidence[0]
            found.append(
                _Look(
                    item.time_ns,
                    item.contents or item.build,
                    proof,
                    item.source == "journal" or proof.path not in loaded,
                )
            )
    return sorted(found, key=lambda look: look.time_ns)


def _deleted(lost: Lost, install: Install, looks: Sequence[_Look], others: Sequence[Event], now: int) -> Loss | None:
    assert install.end_ns is not None
    folders = [folder for folder in lost.folders if not _never_came(folder, install)]
    parts = [_bounds(folder, lost, install, looks, others) for folder in folders]
    gone = sorted(path for folder in folders for path in folder.gone)
    if lost.dangling:
        start = _lower(install, looks, None)
        parts.append(_Bounds(start, None, False, "links tell nothing of when that to which they led went", ()))
    if not parts:
        return None
    dated = all(part.dated for part in parts)
    ends = [part.end for part in parts]
    open_end = None in ends
    end = now if open_end else max(end for end in ends if end is not None)
    start = min(part.start for part in parts)
    record = Evidence(
        witness="dist-info", path=f"{lost.directory}/RECORD", field="lists", value=some_of([*gone, *lost.dangling])
    )
    proofs = dict.fromkeys([record, *(proof for part in parts for proof in part.proofs)])
    event = make_event(
        "file.deleted",
        lost.package,
        start,
        end if end != start else None,
        _summary(lost, gone),
        proofs,
        # That they are gone is certain; when they went is the folder's word alone.
        confidence="strong" if dated and install.doubt is None else "weak",
        from_=install.full_version or install.version,
        open_end=open_end,
    )
    return Loss(event, lost, install, dated, next((part.doubt for part in parts if part.doubt is not None), None))


def _never_came(folder: Folder, install: Install) -> bool:
    assert install.end_ns is not None
    return folder.changed_ns is not None and folder.changed_ns <= install.end_ns + INSTALL_SLACK_NS


def _bounds(folder: Folder, lost: Lost, install: Install, looks: Sequence[_Look], others: Sequence[Event]) -> _Bounds:
    upper = folder.changed_ns
    start = _lower(install, looks, upper)
    if upper is None:
        return _Bounds(start, None, False, f"when {folder.path} last changed could not be seen", ())
    changed = Evidence(witness="file", path=folder.path, field="mtime", value=clock.iso_ns(upper))
    seen = next(
        (look for look in looks if start < look.time_ns < upper and look.build == _damaged(lost, install)), None
    )
    if seen is not None:
        # The stamp is of the checkpoint's own moment: what it found gone went before that, and not "since".
        return _Bounds(
            start, seen.time_ns - BEFORE_NS, False, f"{seen.proof.path} found them gone already", (seen.proof,)
        )
    cause = folder.explained or _event_then(folder, lost, upper, others)
    if cause is not None:
        return _Bounds(
            start, upper, False, f"{folder.path} last changed with {cause}: they went then or before", (changed,)
        )
    if folder.touched_ns is not None and folder.touched_ns > upper + WROTE_SLACK_NS and install.doubt is not None:
        return _Bounds(start, upper, False, f"{folder.path} is a copy and bears the original's time", (changed,))
    return _Bounds(upper, upper, True, None, (changed,))


def _lower(install: Install, looks: Sequence[_Look], upper: int | None) -> int:
    """When the files were last known to be there: at the end of the install, or at a later look that found them."""
    assert install.end_ns is not None
    whole = [look.time_ns for look in looks if look.full and look.build == install.build]
    return max([install.end_ns, *(time for time in whole if upper is None or time <= upper)])


def _damaged(lost: Lost, install: Install) -> str | None:
    """The build identity of the package with what is gone now: a look that bears it found the same."""
    departs = dict.fromkeys([*lost.gone, *lost.dangling], MISSING)
    return Contents(install.build, departs).build if install.build is not None else None


def _event_then(folder: Folder, lost: Lost, moment: int, others: Iterable[Event]) -> str | None:
    """Another install or removal while the folder of all packages last changed."""
    if folder.path != lost.location:
        return None
    low, high = (moment - SAME_CHANGE_NS) / clock.NS, (moment + SAME_CHANGE_NS) / clock.NS
    for event in others:
        if event.time is not None and start_of(event) <= high and end_of(event) >= low:
            return event.summary
    return None


def _emptied(lost: Lost, install: Install, now: int) -> Loss:
    """Files without a byte: emptied when they were last written, unless that was the install itself, after which a
    crash of the machine can leave files that never reached the disk."""
    assert install.end_ns is not None
    limit = install.end_ns + WROTE_SLACK_NS
    late = all(file.mtime_ns > limit or file.links > 1 for file in lost.emptied)
    times = [file.mtime_ns for file in lost.emptied]
    start, end = (min(times), max(times)) if late else (install.end_ns, now)
    record = Evidence(
        witness="dist-info",
        path=f"{lost.directory}/RECORD",
        field="lists",
        value=some_of([f"{file.path} with {file.size} bytes" for file in lost.emptied]),
    )
    proofs = [
        Evidence(
            witness="file",
            path=f"{lost.location}/{file.path}",
            field="mtime",
            value=f"{clock.iso_ns(file.mtime_ns)} (0 bytes)",
        )
        for file in lost.emptied[:8]
    ]
    paths = [file.path for file in lost.emptied]
    text = f"{of_all(paths, lost)} emptied: {some_of(paths)}"
    if any(file.links > 1 for file in lost.emptied):
        text += "; hard-linked, so that the uv cache and every environment that shares it lost the content too"
    event = make_event(
        "file.patched",
        lost.package,
        start,
        end if end != start else None,
        text,
        (record, *proofs),
        confidence="strong" if late and install.doubt is None else "weak",
        open_end=not late,
    )
    doubt = None if late else "the time of a file is its install's: when its content went is not known"
    return Loss(event, lost, install, late, doubt)


def _summary(lost: Lost, gone: Sequence[str]) -> str:
    if not gone:
        return f"{of_all(lost.dangling, lost)} {lead_nowhere(lost.dangling, lost)}: {some_of(lost.dangling)}"
    return f"{of_all([*gone, *lost.dangling], lost)} deleted: {some_of(first(lost, gone))}"


def of_all(paths: Collection[str], lost: Lost) -> str:
    """`2 of the 44 files of certifi`, `all 40 files of certifi` where nothing but its dist-info is left."""
    own = {path for path in lost.listed if not path.startswith(f"{posixpath.basename(lost.directory)}/")}
    if own and own <= set(paths):
        return f"all {counted(len(own), 'file')} of {lost.package}" if len(own) > 1 else f"the file of {lost.package}"
    return f"{len(paths)} of the {counted(len(lost.listed), 'file')} of {lost.package}"


def lead_nowhere(paths: Collection[str], lost: Lost) -> str:
    """`is a link to what is gone`, of one file or of several."""
    one = of_all(paths, lost).startswith(("1 ", "the "))
    return "is a link to what is gone" if one else "are links to what is gone"


def first(lost: Lost, gone: Sequence[str]) -> list[str]:
    """What is gone, a whole folder by its own name."""
    under = tuple(f"{folder}/" for folder in lost.gone_folders)
    single = [path for path in gone if not path.startswith(under)] if under else list(gone)
    return [*(f"{folder}/" for folder in lost.gone_folders), *single]
