"""What `diff` objects to since the checkpoint's stamp, and no other finding has: an event and a finding for each.

Whether an event tells of a drift is decided by its kind, its subject and its times, never by what it says.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.fingerprint.diff import differences
from envguard.fingerprint.package_changes import without_cuda_major
from envguard.fingerprint.rules import STARTUP_CODE, Change
from envguard.fingerprint.units import some_of
from envguard.model.drift import Drift
from envguard.model.event import Difference, Event, EventKind
from envguard.model.evidence import Evidence, Unknown
from envguard.timeline.compared import Compared
from envguard.timeline.events.happening import end_of, make_event
from envguard.timeline.findings.draft import Draft, diff_against, importance
from envguard.timeline.packages.records import Record

PACKAGE_FACETS = ("packages", "torch", "cuda")
OF_PACKAGES: tuple[EventKind, ...] = ("package.installed", "package.replaced", "package.removed")
OF_FILES: tuple[EventKind, ...] = ("file.patched", "file.deleted")
CAME: tuple[EventKind, ...] = ("package.installed", "package.replaced")
TELLS: dict[str, tuple[EventKind, ...]] = {
    "added": CAME,
    "overlay": CAME,
    "changed": CAME,
    "cpu": CAME,
    "gpu-build": CAME,
    "accelerator": CAME,
    "hooks": CAME,
    "hooked": CAME,
    "origin": CAME,
    "removed": ("package.removed",),
    "rebuilt": (*CAME, "file.patched"),
    "patched": ("file.patched",),
    "mended": (*CAME, "file.patched"),
    "overwritten": (*CAME, "file.patched"),
    "problem:files-missing": (*OF_PACKAGES, "file.deleted"),
}
"""Kind of change of a package → the kinds of event that tell of it; of every other kind all of them."""
MADE: dict[str, EventKind] = {
    "added": "package.installed",
    "hooks": "package.installed",
    "removed": "package.removed",
    "patched": "file.patched",
    "mended": "file.patched",
    "overwritten": "package.installed",
    "metadata-gone": "file.deleted",
    "hidden": "package.installed",
    "startup": "file.deleted",
    "problem:files-missing": "file.deleted",
    **{f"problem:{kind}": "file.patched" for kind in (*STARTUP_CODE, "files-modified")},
}
OF_FACET: dict[str, tuple[EventKind, ...]] = {
    "python": ("package.replaced",),
    "driver": ("system.driver",),
    "gpu": ("system.driver",),
    "compile_cache": ("compile_cache.cleared", "compile_cache.written", "compile_cache.created"),
    "code": ("code.changed", "code.commit", "file.deleted"),
    "config": ("config.changed",),
    "data": ("data.changed",),
}
"""Facet → the kinds of event that may tell of a drift in it, the one that is made for it first."""
WITNESS = {
    "python": "venv", "driver": "driver", "gpu": "driver", "memory": "driver", "system": "boot", "env": "process",
    "compile_cache": "compile-cache", "code": "git", "config": "file", "data": "data",
}  # fmt: skip
LABEL = {
    "env": "the environment variable ", "compile_cache": "the compile cache ", "code": "the code ",
    "python": "Python's ", "gpu": "the GPU's ", "system": "the machine's ", "driver": "the driver's ",
}  # fmt: skip
VERSIONED = ("changed", "added", "hooks")
"""Changes of a package whose `b` is the version that is there now."""
SLACK_S = 0.001


@dataclass
class Told:
    """Events with the drifts that they tell of, and the findings; what is new is among both."""

    events: list[Event]
    drafts: list[Draft]
    made: list[Event] = field(default_factory=list)
    undetermined: list[Unknown] = field(default_factory=list)
    """Objections to packages while somebody is at work on the environment: what is not there may be about to come."""


@dataclass(frozen=True)
class _Ground:
    """What it takes to see whether an event is about a drift."""

    compared: Compared
    owners: Mapping[str, str]
    """Path of an edited file → its package; of start-up code → what `diff` calls it."""

    def tells(self, event: Event, drift: Drift) -> bool:
        """Whether the event is of what the drift is of, and came after the stamp."""
        if end_of(event) < self.compared.taken_ns / clock.NS - SLACK_S:
            return False
        if drift.kind == "stale":
            # Nothing was written into that cache: the torch that loads it is another.
            return event.subject == "torch" and event.kind in CAME
        if drift.facet in PACKAGE_FACETS:
            return self._of_package(event, drift)
        if event.kind not in OF_FACET.get(drift.facet, ()):
            return False
        match drift.facet:
            case "python":
                return event.subject == "python"
            case "driver":
                return drift.subject == "version"
            case "compile_cache":
                return event.subject in self._cache_paths(drift)
            case "code":
                return any(proof.path == drift.subject for proof in event.evidence[:1])
            case "config" | "data":
                return f"/{event.subject}".endswith(f"/{drift.subject}")
        return False

    def _of_package(self, event: Event, drift: Drift) -> bool:
        if event.kind not in (*OF_PACKAGES, *OF_FILES):
            return False
        owner = self.owners.get(event.subject, event.subject)
        if drift.is_requirement:
            return owner in (drift.subject, drift.required)
        if (drift.facet, drift.subject) == ("cuda", "build"):
            return owner == "torch" and event.kind in CAME
        if drift.kind.removeprefix("problem:") in STARTUP_CODE or drift.kind == "startup":
            return event.kind in OF_FILES and owner == drift.subject
        if drift.kind == "overwritten" and owner == drift.b:
            return event.kind in CAME  # the install of the package whose files they are now
        if drift.subject not in (owner, without_cuda_major(owner)) or event.kind not in TELLS.get(
            drift.kind, (*OF_PACKAGES, *OF_FILES)
        ):
            return False
        # Of two swaps the one that led to what is there now.
        named = (event.to, (event.to or "").partition("+")[0])
        return drift.kind not in VERSIONED or None in (event.to, drift.b) or drift.b in named

    def _cache_paths(self, drift: Drift) -> set[str]:
        kind, _, path = drift.subject.partition(" ")
        both = (*(self.compared.then.compile_cache or ()), *(self.compared.live.compile_cache or ()))
        return {path} if path else {cache.path for cache in both if cache.kind == kind}


def drift_findings(
    compared: Compared,
    survey: Survey,
    own: Sequence[Record],
    events: Sequence[Event],
    drafts: Sequence[Draft],
    checkpoint: Checkpoint,
    saved: Event | None,
    ref: str | None,
) -> Told:
    """Every objection of `diff` as an event in a finding: one that is there already, else a new one."""
    ground = _Ground(compared, _owners(survey, compared))
    drafts = [draft for draft in drafts if not draft.by_times or not compared.equal(draft.about)]
    told = Told(list(events), drafts)
    resting = {event.id for draft in drafts for event in draft.events}
    covers: dict[str, list[Difference]] = {}
    left: list[tuple[Drift, list[Event]]] = []
    for drift in compared.objections:
        those = [event for event in events if ground.tells(event, drift)]
        for event in those:
            covers.setdefault(event.id, []).append(Difference(drift.facet, drift.subject))
        if any(event.id in resting for event in those):
            continue
        if survey.busy is not None and drift.facet in PACKAGE_FACETS:
            told.undetermined.append(Unknown(f"{drift.facet} {drift.subject}", survey.busy))
        else:
            left.append((drift, those))
    narrow = _Narrowed(compared, own, int(survey.machine.now * clock.NS))
    together: dict[str, list[tuple[Drift, list[Event]]]] = {}
    for drift, those in left:
        what = Difference(drift.facet, drift.subject)
        if not those:
            made = _made(compared, drift, narrow)
            told.made.append(made)
            those = [made]
        at = next((index for index, draft in enumerate(told.drafts) if what in draft.about), None)
        if at is not None:
            told.drafts[at] = replace(told.drafts[at], events=(*told.drafts[at].events, *those))
        else:
            together.setdefault(_group(drift), []).append((drift, those))
    told.drafts += [_draft(found, checkpoint, saved, ref) for found in together.values()]
    told.events = [
        msgspec.structs.replace(event, drifts=tuple(covers[event.id])) if event.id in covers else event
        for event in events
    ]
    return told


def _owners(survey: Survey, compared: Compared) -> dict[str, str]:
    edited = {edit.path: edit.package for edit in survey.edits}
    records = {f"{install.directory}/RECORD": install.name for install in survey.installs}
    return {**records, **edited, **compared.startup}


def _group(drift: Drift) -> str:
    return "packages" if drift.facet in PACKAGE_FACETS else drift.facet


class _Narrowed:
    """Between which two looks each drift came to be: the records of this environment after the stamp are searched for
    the first that has it. One that says what a process had loaded, and no more was on disk, dates nothing."""

    def __init__(self, compared: Compared, own: Iterable[Record], now_ns: int) -> None:
        self.compared = compared
        self.now_ns = now_ns
        self.later = [
            record for record in own if record.time_ns > compared.taken_ns and not record.fingerprint.diverged
        ]
        self.seen: dict[int, frozenset[tuple[str, str]]] = {}

    def bounds(self, drift: Drift) -> tuple[int, int, tuple[Evidence, ...]]:
        """(no earlier than, no later than, the records that say so), in ns."""
        what = (drift.facet, drift.subject)
        first = bisect.bisect_left(range(len(self.later)), True, key=lambda index: what in self._at(index))
        low, high = self.compared.taken_ns, self.now_ns
        proofs: list[Evidence] = []
        if first > 0:
            low = self.later[first - 1].time_ns
            proofs.append(self.later[first - 1].proof)
        if first < len(self.later):
            high = self.later[first].time_ns
            proofs.append(self.later[first].proof)
        return low, high, tuple(proofs)

    def _at(self, index: int) -> frozenset[tuple[str, str]]:
        if index not in self.seen:
            found = differences(self.compared.then, self.later[index].fingerprint)
            self.seen[index] = frozenset((item.facet, item.subject) for item in found if isinstance(item, Change))
        return self.seen[index]


def _made(compared: Compared, drift: Drift, narrow: _Narrowed) -> Event:
    low, high, proofs = narrow.bounds(drift)
    kind = MADE.get(drift.kind, "package.replaced") if drift.facet in PACKAGE_FACETS else _kind(drift)
    value = f"{drift.a or 'none'} → {drift.b or 'none'}"
    there = Evidence(
        witness=WITNESS.get(drift.facet, "dist-info"),
        path=_place(compared, drift),
        field=f"{drift.facet} {drift.subject}",
        value=drift.b or "none",
    )
    text = f"{LABEL.get(drift.facet, '')}{drift.subject}"
    text += f" {value}" if (drift.a, drift.b) != (None, None) else ""
    event = make_event(
        kind,
        drift.subject,
        low,
        high,
        f"{text}: {drift.why}",
        (compared.proof(f"{drift.facet} {drift.subject}", drift.a), there, *proofs),
        # Stamp and environment say that it changed; nothing saw it change.
        confidence="strong",
        from_=drift.a,
        to=drift.b,
        open_end=high == narrow.now_ns,
    )
    return msgspec.structs.replace(event, drifts=(Difference(drift.facet, drift.subject),))


def _kind(drift: Drift) -> EventKind:
    if drift.facet == "compile_cache" and drift.kind not in ("cleared", "removed", "shrunk"):
        return "compile_cache.written"
    return OF_FACET.get(drift.facet, ("config.changed",))[0]


def _place(compared: Compared, drift: Drift) -> str:
    """Where a reader can look."""
    live = compared.live
    if drift.facet == "code":
        return drift.subject
    if drift.facet == "env":
        return "/proc/self/environ"
    if drift.facet == "compile_cache":
        kind, _, path = drift.subject.partition(" ")
        there = (cache.path for cache in live.compile_cache or () if cache.kind == kind)
        return path or next(there, kind)
    package = live.package(drift.subject) or compared.then.package(drift.subject)
    return package.location if package is not None else live.python.environment


def _draft(
    found: Sequence[tuple[Drift, list[Event]]], checkpoint: Checkpoint, saved: Event | None, ref: str | None
) -> Draft:
    drifts = [drift for drift, _ in found]
    lead = drifts[0]
    names = [drift.subject for drift in drifts]
    verb = "was cleared" if {drift.kind for drift in drifts} == {"cleared"} else "changed"
    title = f"{LABEL.get(lead.facet, '')}{some_of(list(dict.fromkeys(names)), 3)} {verb} after {checkpoint.name}"
    says = [_said(drift) for drift in drifts[:8]]
    if len(drifts) > 8:
        says.append(f"And {len(drifts) - 8} more.")
    says.append(f"{diff_against(ref)} compares the stamp of {checkpoint.name} with now.")
    events = dict.fromkeys(event.id for _, those in found for event in those)
    by_id = {event.id: event for _, those in found for event in those}
    blocks = any(drift.severity == "block" for drift in drifts)
    weight = (1 if blocks else 5, importance(lead.subject) if lead.facet in PACKAGE_FACETS else 9, 0.5)
    return Draft(
        tuple(map(float, weight)),
        title,
        " ".join(says),
        (*((saved,) if saved is not None else ()), *(by_id[identity] for identity in events)),
        ("the stamp and the environment of now differ in it: when it changed is known within the bounds of its row",),
    )


def _said(drift: Drift) -> str:
    values = f" {drift.a or 'none'} → {drift.b or 'none'}" if (drift.a, drift.b) != (None, None) else ""
    return f"{drift.subject}{values}: {drift.why}."
