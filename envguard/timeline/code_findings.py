"""The finding that the code is another than when a checkpoint was saved: HEAD stands elsewhere, or tracked files were
edited since. A move there and back is none."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.project.git_history import GitHistory
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.fingerprint.units import some_of
from envguard.model.event import Event
from envguard.model.fingerprint import Fingerprint
from envguard.timeline.findings import Draft
from envguard.timeline.happening import end_of

SECOND_S = 1.0
"""The reflog knows whole seconds."""


def code_findings(
    histories: Iterable[GitHistory],
    events: Sequence[Event],
    checkpoint: Checkpoint | None,
    stamped: Fingerprint | None,
    saved: Event | None,
    ref: str | None,
) -> list[Draft]:
    """One for each tree; `stamped` is the checkpoint's own stamp, where it counts."""
    if checkpoint is None:
        return []
    found = (_of_tree(history, events, checkpoint, stamped, saved, ref) for history in histories)
    return [draft for draft in found if draft is not None]


def _of_tree(
    history: GitHistory,
    events: Sequence[Event],
    checkpoint: Checkpoint,
    stamped: Fingerprint | None,
    saved: Event | None,
    ref: str | None,
) -> Draft | None:
    then = next((tree for tree in (stamped.code if stamped else None) or () if tree.path == history.root), None)
    was = then.commit if then is not None else _head_at(history, checkpoint.saved_ns)
    now = history.moves[0].to if history.moves else None
    before = set(then.dirty_files) if then is not None else set()
    edited = [
        file.path
        for file in history.dirty
        if file.status != "??"
        and ((file.mtime_ns or 0) > checkpoint.saved_ns or (then is not None and file.path not in before))
    ]
    moved = was is not None and now is not None and was != now
    if not moved and not edited:
        return None
    says = []
    if moved and was is not None and now is not None:
        says.append(f"HEAD of {history.root} is at {now[:12]}, and was at {was[:12]}: "
                    f"`git -C {shlex.quote(history.root)} diff {was[:12]}` shows the difference.")  # fmt: skip
    if edited:
        says.append(f"Edited and not committed: {some_of(edited)}.")
    since = checkpoint.saved_ns / clock.NS - SECOND_S
    of_tree = [event for event in events if _is_of(event, history, edited) and end_of(event) >= since]
    against = f" {shlex.quote(ref)}" if ref is not None else ""
    caveat = f"whether a run executes what changed is not known: `envguard diff{against}` grades it"
    return Draft(
        (6, 0.0),
        f"the code changed after {checkpoint.name}",
        " ".join(says),
        (*((saved,) if saved is not None else ()), *of_tree[-8:]),
        (caveat,),
    )


def _head_at(history: GitHistory, moment_ns: int) -> str | None:
    """Where HEAD stood, by the reflog, whose newest entry comes first; None where that does not reach so far back."""
    return next((move.to for move in history.moves if move.time_ns <= moment_ns), None)


def _is_of(event: Event, history: GitHistory, edited: Sequence[str]) -> bool:
    if event.kind not in ("code.changed", "code.commit") or event.evidence[0].path != history.root:
        return False
    return event.subject in edited or event.summary.startswith("HEAD moved") or event.kind == "code.commit"
