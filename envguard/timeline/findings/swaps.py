"""Findings on install runs that replaced packages: what came for what, what forced it, the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import Event, PackageChange, PreviousBuild, Requirement, Transaction
from envguard.timeline.events.checkpoints import is_copy
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.findings.draft import STACK, Draft, diff_against, importance, more
from envguard.timeline.findings.old_build import WITNESS, build_before
from envguard.timeline.packages.inferred import is_another
from envguard.timeline.packages.package_events import Packages, Swap
from envguard.timeline.packages.previous import Sighting
from envguard.timeline.packages.records import Record
from envguard.timeline.packages.restored import Restored
from envguard.timeline.packages.transactions import Group

FILLS_NS = 600 * clock.NS
"""How long after the making of a venv the run that fills it may begin."""


@dataclass(frozen=True)
class Beneath:
    """What changed under the packages of a run: the swap of Python that they go with, and when the venv was made."""

    python: Event | None
    made_anew_ns: int | None

    def anew(self, group: Group) -> int | None:
        """When the environment was made anew, where this run was the first to fill it."""
        made = self.made_anew_ns
        return made if made is not None and 0 <= group.start_ns - made <= FILLS_NS else None


def _python_then(group: Group, events: Sequence[Event]) -> Event | None:
    """The swap of Python that the first run after it goes with."""
    swaps = (event for event in events if (event.kind, event.subject) == ("package.replaced", "python"))
    for event in swaps:
        first, last = start_of(event) * clock.NS - FILLS_NS, end_of(event) * clock.NS + FILLS_NS
        if first <= group.start_ns <= last and not is_patch(event):
            return event
    return None


def is_patch(event: Event) -> bool:
    """Whether a swap of Python is of patch releases, which take the same wheels."""
    return event.from_ is not None and event.to is not None and event.from_.split(".")[:2] == event.to.split(".")[:2]


def swap_findings(
    packages: Packages,
    events: Sequence[Event],
    checkpoint: Checkpoint | None,
    saved: Event | None,
    since: float | None,
    ref: str | None = None,
    had: Record | None = None,
) -> list[Draft]:
    """One finding a run that replaced or removed packages; after `since` (s), where it is given. `ref` is what names
    the checkpoint on a command line, `had` what its own stamp says that it was made with."""
    drafts = []
    for group in packages.groups:
        if since is not None and group.end_ns < since * clock.NS:
            continue
        swaps = [swap for swap in packages.swaps if swap.group is group and counts(swap)]
        run = packages.transaction(group.id)
        if not swaps or run is None:
            continue
        swaps.sort(key=lambda swap: (importance(swap.change.name), swap.change.name))
        own = swaps[0].own
        if own is not None:
            drafts.append(_restore_finding(swaps, own, checkpoint, saved))
            continue
        standing = [swap for swap in swaps if not _undone(swap, had)]
        if checkpoint is not None and not standing:
            drafts.append(_undone_finding(swaps, run, checkpoint, saved))
            continue
        swaps = standing or swaps
        gone = [
            event for event in packages.events if event.transaction == group.id and event.kind == "package.removed"
        ]
        earlier = _replaced_before(swaps[0], events, checkpoint)
        beneath = Beneath(_python_then(group, events), packages.made_anew_ns)
        drafts.append(_swap_finding(swaps, gone, run, checkpoint, saved, earlier, ref, beneath, had))
    return drafts


def _undone(swap: Swap, had: Record | None) -> bool:
    """Whether the run put back the very build that the checkpoint was made with."""
    seen = had.sighting(swap.install.name) if had is not None else None
    if had is None or seen is None:
        return False
    return not is_another(had.named.packages[swap.install.name], seen, swap.install)


def _undone_finding(swaps: list[Swap], run: Transaction, checkpoint: Checkpoint, saved: Event | None) -> Draft:
    """What was put back since the stamp is no difference now; a run in between had the other build."""
    lead = swaps[0]
    says = [f"{_told(lead)} in one {_tool(run)}: {checkpoint.name} was made with {lead.change.to}, by its stamp."]
    others = [swap.change.name for swap in swaps[1:]]
    if others:
        says.append(f"Put back with it: {', '.join(others[:6])}{more(others, 6)}.")
    if lead.change.from_ is not None:
        says.append(f"What was saved while {lead.change.from_} was there may be made with that.")
    return Draft(
        (5, importance(lead.change.name), -float(lead.group.start_ns)),
        f"{lead.change.name} was replaced and put back after {checkpoint.name}",
        " ".join(says),
        (*([saved] if saved is not None else []), *(swap.event for swap in swaps)),
        ("when the other build came is not told by this run",),
    )


def _restore_finding(swaps: list[Swap], own: Restored, checkpoint: Checkpoint | None, saved: Event | None) -> Draft:
    """A restore of envguard's own: no swap to be blamed, and what it took away says nothing of the time before that
    had come."""
    lead = swaps[0]
    says = [f"`envguard restore {own.reference}` put {lead.change.name} {own.full_version} there ({own.proof.field} "]
    says[0] += f"of {own.proof.path})."
    if own.was is not None and own.was_since_ns is not None:
        says.append(f"It took away {own.was}, which had been there since {clock.iso_ns(own.was_since_ns)}.")
        if checkpoint is not None and checkpoint.saved_ns < own.was_since_ns:
            says.append(f"{checkpoint.name} was saved before that came.")
    elif own.was is not None:
        says.append(f"It took away {own.was}; since when that had been there is not known.")
    others = [swap.change.name for swap in swaps[1:]]
    if others:
        says.append(f"With it: {', '.join(others[:6])}{more(others, 6)}.")
    return Draft(
        (5, importance(lead.change.name), -float(lead.group.start_ns)),
        f"{lead.change.name} was brought back by envguard",
        " ".join(says),
        (*([saved] if saved is not None else []), *(swap.event for swap in swaps)),
        (f"what came later stays without --exact: `envguard diff {own.reference}` shows what still differs",),
    )


def counts(swap: Swap) -> bool:
    """Whether a swap is worth a finding. That something older asks for a package does not prove that it was there
    (`--no-deps`): without a version to name, only the stack's own packages are worth the reader's time."""
    if swap.own is not None:
        return True
    if swap.install.cut_short is not None:
        return False  # told by itself
    known = bool(swap.previous) or swap.install.survived is not None or importance(swap.change.name) <= len(STACK)
    return swap.event.kind == "package.replaced" and known


def _replaced_before(lead: Swap, events: Sequence[Event], checkpoint: Checkpoint | None) -> Event | None:
    """A swap of the same package that may lie between the checkpoint and this one."""
    if checkpoint is None:
        return None
    low, high = checkpoint.saved_ns / clock.NS, lead.group.start_ns / clock.NS
    found = [
        event
        for event in events
        if (event.kind, event.subject) == ("package.replaced", lead.change.name)
        and event.id != lead.event.id
        and end_of(event) >= low
        and start_of(event) <= high
    ]
    return found[0] if found else None


def gap(lead: Swap, checkpoint: Checkpoint) -> str:
    """The sentence of the story: `torch replaced 11 min 04 s after step_690`."""
    apart = (lead.group.start_ns - checkpoint.saved_ns) / clock.NS
    when = "after" if apart >= 0 else "before"
    what = f"{lead.change.name} {'perhaps ' * lead.perhaps}replaced"
    if checkpoint.first_ns <= lead.group.start_ns <= checkpoint.saved_ns:
        return f"{what} between the first and the last file of {checkpoint.name}"
    return f"{what} {clock.span(apart)} {when} {checkpoint.name}"


def _removed_with_it(gone: Sequence[Event]) -> Iterator[str]:
    """What the run took out, and apart from it what only the shared cache lost in that second."""
    sure = tuple(event.subject for event in gone if event.confidence != "weak")
    perhaps = tuple(event.subject for event in gone if event.confidence == "weak")
    if sure:
        yield f"Removed: {_names(sure)}."
    if perhaps:
        yield f"Perhaps removed, here or from another environment that shares the cache: {_names(perhaps)}."


def _swap_finding(
    swaps: list[Swap],
    gone: list[Event],
    run: Transaction,
    checkpoint: Checkpoint | None,
    saved: Event | None,
    earlier: Event | None,
    ref: str | None,
    beneath: Beneath,
    had: Record | None,
) -> Draft:
    lead = swaps[0]
    then = had.sighting(lead.change.name) if had is not None else None
    # Where an event tells of a swap before this one, the caveat names it.
    between = _came_between(lead, then, checkpoint if earlier is None else None)
    title = gap(lead, checkpoint) if checkpoint is not None else f"{lead.change.name} replaced"
    parts = [f"{_told(lead)} in one {_tool(run)}"]
    parts[0] += f" that was asked for {_names(run.roots)}." if run.roots else "."
    anew = beneath.anew(lead.group)
    if anew is not None:
        parts.append(f"The environment was made anew just before, at {clock.iso_ns(anew)}.")
    if beneath.python is None:
        parts.append(why(lead.change, run))
        if lead.locked is not None and not lead.change.forced_by:
            lock = lead.locked.evidence[0].path
            written = f", last written at {clock.iso_ns(lead.locked.time_ns)}," if lead.locked.time_ns else ""
            parts.append(f"{lock}{written} names {lead.change.to}.")
    else:
        parts.append(f"It goes with Python {beneath.python.from_} → {beneath.python.to}, for which it was built.")
    others = [_told(swap) for swap in swaps[1:]]
    if others:
        parts.append(f"Replaced with it: {', '.join(others[:6])}{more(others, 6)}.")
    parts += _removed_with_it(gone)
    events = [swap.event for swap in swaps]
    if checkpoint is not None and saved is not None:
        if between and then is not None:
            parts.append(
                f"{checkpoint.name} was made with {then.version.full}, by its stamp: {lead.change.name} was replaced "
                "more than once since."
            )
        elif between:
            parts.append(
                f"No witness has {lead.change.from_} before {checkpoint.name} was saved: "
                "what that was made with is not known."
            )
        elif then is None and checkpoint.first_ns <= lead.group.start_ns <= checkpoint.saved_ns:
            parts.append(f"Which of the two builds made {checkpoint.name} is not known.")
        elif checkpoint.incomplete is not None:
            parts.append(f"{checkpoint.name} was saved before that and is not complete: {checkpoint.incomplete}.")
        elif earlier is None and not lead.perhaps:
            parts.append(f"{checkpoint.name} was saved before that: it is clean, made with the old build.")
        events.insert(0, saved)
    # Where it was replaced twice, the build that this run took away need not be the checkpoint's.
    back_to = ref if earlier is None else None
    previous = lead.change.previous
    if between:
        previous = tuple(item for item in previous if then is not None and _names_it(item, then))
        back_to = ref
    parts += build_before(previous, back_to, beneath.python, lead.install.editable)
    caveats = _caveats(lead, checkpoint)
    if checkpoint is not None and earlier is not None:
        told = f"{earlier.from_ or '?'} → {earlier.to or '?'}"
        caveats = (
            f"{lead.change.name} was also replaced around then ({told}): {checkpoint.name} may be older than that",
            *caveats,
        )
        events.append(earlier)
    if not caveats:
        caveats = (f"a swap alone proves no harm: {diff_against(ref)} grades what it changed",)
    return Draft(
        (0, importance(lead.change.name), -float(lead.group.start_ns)),
        title,
        " ".join(parts),
        (*events, *gone),
        caveats,
    )


def _came_between(lead: Swap, then: Sighting | None, checkpoint: Checkpoint | None) -> bool:
    """Whether what the run took away is not what the checkpoint was made with: by its stamp, else by its own time."""
    if not lead.previous:
        return False
    if then is not None:
        return not _names_it(lead.previous[0].as_model(), then)
    return checkpoint is not None and lead.previous[0].came_after(checkpoint.saved_ns)


def _names_it(previous: PreviousBuild, then: Sighting) -> bool:
    """Whether a candidate for the build before may be the build of a sighting."""
    if previous.build is not None and then.build is not None:
        return previous.build == then.build
    return previous.version in (then.version.full, then.version.declared)


def _told(swap: Swap) -> str:
    change = swap.change
    if change.from_ is not None and change.from_ == change.to:
        return f"{change.name} {change.to} → another build of that version"
    return f"{change.name} {change.from_ or '(version unknown)'} → {change.to}"


def _tool(run: Transaction) -> str:
    return f"run of {run.tool}" if run.tool else "install run"


def _names(names: tuple[str, ...]) -> str:
    shown = list(names[:4])
    return ", ".join(shown) + more(names, 4)


def why(change: PackageChange, run: Transaction) -> str:
    """What forced a swap; or that nothing did, and what allowed the old version too."""
    if change.from_ is None:
        asked = _lines(change.forced_by)
        return f"Which version was there is not known, so whether {asked} forced the swap cannot be told."
    if change.forced_by:
        return f"Forced by {_lines(change.forced_by)}, which {change.from_} does not meet."
    if change.name in run.roots:
        return f"Nothing required it: {change.name} was itself asked for."
    if change.allowed_by and all("extra ==" in item.requires for item in change.allowed_by):
        asked = _lines(change.allowed_by)
        return f"No requirement forced it: {asked} counts for an extra alone, and {change.from_} meets it too."
    if change.allowed_by:
        asked = _lines(change.allowed_by)
        return (
            f"Permitted, not forced: {change.from_} meets {asked} too; an --upgrade or another index swaps it then."
        )
    return "No requirement of this run forced it or names it."


def _lines(requirements: tuple[Requirement, ...]) -> str:
    told = [f"{item.package} {item.version} (`{item.requires}`)" for item in requirements[:3]]
    return (" and ".join(told) + more(requirements, 3)) if told else "its requirements"


def _caveats(lead: Swap, checkpoint: Checkpoint | None) -> tuple[str, ...]:
    found = []
    if lead.event.confidence == "weak":
        found.append(lead.was_there or "the date of this install rests on one weak witness")
    for path in lead.twins[:2]:
        found.append(
            f"another build bears the same version {lead.change.from_} ({path}): go by build, not by version"
        )
    for other in [item for item in lead.previous[1:3] if item.first("archive") not in lead.twins]:
        path = other.first("archive") or other.sightings[0].evidence[0].path
        found.append(f"{WITNESS[other.sightings[0].source]} names {other.version.full} ({path})")
    if checkpoint is not None and is_copy(checkpoint):
        found.append(f"{checkpoint.name} was copied here: its time is what the copy kept")
    return tuple(found)
