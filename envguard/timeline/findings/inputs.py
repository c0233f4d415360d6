"""Findings on configured data and configuration that are others since a checkpoint: a run reads them anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.project.watched_files import Watched
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.fingerprint.units import counted, size
from envguard.model.drift import Facet
from envguard.model.event import Difference, Event, EventKind
from envguard.model.fingerprint import FileSet, Fingerprint
from envguard.timeline.findings.draft import Draft, diff_against


def input_findings(
    survey: Survey,
    events: Sequence[Event],
    checkpoint: Checkpoint | None,
    stamped: Fingerprint | None,
    saved: Event | None,
    ref: str | None,
) -> list[Draft]:
    """One for the configuration and one for the data; `stamped` is the checkpoint's own stamp, where it counts."""
    if checkpoint is None:
        return []
    drafts = []
    inputs: tuple[tuple[str, Facet, EventKind, tuple[Watched, ...], tuple[FileSet, ...] | None], ...] = (
        ("configuration", "config", "config.changed", survey.config, stamped.config if stamped is not None else None),
        ("data", "data", "data.changed", survey.data, stamped.data if stamped is not None else None),
    )
    for what, facet, kind, trees, then in inputs:
        sets = [(tree, _set_of(tree, then or ())) for tree in trees]
        told = {tree.path: text for tree, known in sets if (text := _says(tree, known, checkpoint)) is not None}
        says = [*told.values()]
        if not says:
            continue
        about = {known.path for tree, known in sets if known is not None and tree.path in told}
        own = {tree.path for tree in trees}
        rests = [event for event in events if event.kind == kind and event.subject in own]
        caveat = f"a touch or a copy writes a file, too: {diff_against(ref)} compares contents"
        if stamped is None:
            caveat = "a touch or a copy writes a file, too, and no stamp has its content of then"
        title = f"the {what} changed after {checkpoint.name}"
        events_of = (*((saved,) if saved is not None else ()), *rests)
        differences = frozenset(Difference(facet, path) for path in about)
        drafts.append(
            Draft((6, 0.5), title, " ".join(says), events_of, (caveat,), differences, len(about) == len(told))
        )
    return drafts


def _set_of(tree: Watched, sets: Iterable[FileSet]) -> FileSet | None:
    """A stamp names them as the configuration does, mostly relative to the project."""
    return next((item for item in sets if tree.path == item.path or tree.path.endswith(f"/{item.path}")), None)


def _says(tree: Watched, then: FileSet | None, checkpoint: Checkpoint) -> str | None:
    """What differs from the stamp; else that it was written since. None where nothing tells of a change."""
    known = then is not None and then.files and then.bytes is not None
    if then is not None and known and (then.files, then.bytes) != (tree.files, tree.size):
        had = f"{counted(then.files, 'file')} of {size(then.bytes)} by the stamp of {checkpoint.name}"
        if not tree.files:
            return f"{tree.path} is not there, and was {had}."
        return f"{tree.path} holds {counted(tree.files, 'file')} of {size(tree.size)}, and held {had}."
    if tree.newest_ns > checkpoint.saved_ns:
        return f"{tree.newest_path} was written at {clock.iso_ns(tree.newest_ns)}."
    return None
