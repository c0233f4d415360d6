"""The finding that the code is another than when a checkpoint was saved: HEAD stands elsewhere, or tracked files were
edited since. A move there and back is none."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.project.git_history import GitHistory, Move
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.fingerprint.units import some_of
from envguard.model.event import Difference, Event
from envguard.model.fingerprint import Code, Fingerprint
from envguard.timeline.events.code import REFLOG
from envguard.timeline.events.happening import end_of
from envguard.timeline.findings.draft import Draft, diff_against

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
    says = list(_moved(history, then, checkpoint))
    files = _files(history, then, checkpoint, moved=bool(says))
    told = {
        "Edited and not committed": files.edited,
        "Deleted and not committed": files.deleted,
        f"Edits that {checkpoint.name} had, and that are gone": files.gone,
    }
    says += [f"{what}: {some_of(names)}." for what, names in told.items() if names]
    sure = bool(says)
    if files.perhaps:
        says.append(f"Perhaps after it, since only an inode or a folder is newer: {some_of(files.perhaps)}.")
    if not says:
        return None
    since = checkpoint.saved_ns / clock.NS - SECOND_S
    names = (*files.edited, *files.deleted, *files.perhaps)
    of_tree = [event for event in events if _is_of(event, history, names, since)]
    caveat = f"whether a run executes what changed is not known: {diff_against(ref)} grades it"
    if stamped is None:
        caveat = "whether a run executes what changed is not known, and no stamp has the code that it ran"
    return Draft(
        (6, 0.0),
        f"the code {'changed' if sure else 'may have changed'} after {checkpoint.name}",
        " ".join(says),
        (*((saved,) if saved is not None else ()), *of_tree[-8:]),
        (caveat,),
        frozenset({Difference("code", history.root)}),
        then is not None,
    )


def _moved(history: GitHistory, then: Code | None, checkpoint: Checkpoint) -> Iterator[str]:
    """That HEAD stands at a commit of other files than when the checkpoint was saved."""
    before = _head_at(history, checkpoint.saved_ns)
    was = then.commit if then is not None else before.to if before is not None else None
    now = history.moves[0] if history.moves else None
    if was is None or now is None or was == now.to:
        return
    trees = {move.to: move.tree for move in history.moves}
    tree = then.tree if then is not None and then.tree is not None else trees.get(was)
    if tree is None or tree != now.tree:
        yield (
            f"HEAD of {history.root} is at {now.to[:12]}, and was at {was[:12]}: "
            f"`git -C {shlex.quote(history.root)} diff {was[:12]}` shows the difference."
        )


@dataclass(frozen=True)
class _Files:
    """Files that differ from HEAD and did not then, by what tells it. `gone` are the other way round."""

    edited: list[str]
    deleted: list[str]
    perhaps: list[str]
    gone: list[str]


def _files(history: GitHistory, then: Code | None, checkpoint: Checkpoint, moved: bool) -> _Files:
    before = set(then.dirty_files) if then is not None else set()
    found = _Files([], [], [], [])
    for file in (item for item in history.dirty if item.status != "??"):
        new = then is not None and file.path not in before
        if new or (file.mtime_ns or 0) > checkpoint.saved_ns:
            (found.deleted if file.mtime_ns is None else found.edited).append(file.path)
        elif file.path not in before and (file.ctime_ns or 0) > checkpoint.saved_ns:
            # A rename and `touch -r` keep the time of the content; a folder loses other names, too.
            found.perhaps.append(file.path)
    if not moved and not history.more_dirty:
        found.gone.extend(sorted(before - {file.path for file in history.dirty}))
    return found


def _head_at(history: GitHistory, moment_ns: int) -> Move | None:
    """Where HEAD stood, by the reflog, whose newest entry comes first; None where that does not reach so far back."""
    return next((move for move in history.moves if move.time_ns <= moment_ns), None)


def _is_of(event: Event, history: GitHistory, names: Sequence[str], since: float) -> bool:
    if event.kind not in ("code.changed", "code.commit", "file.deleted") or event.evidence[0].path != history.root:
        return False
    if event.subject in names:
        return True
    return end_of(event) >= since and (event.evidence[0].field.startswith(REFLOG) or event.kind == "code.commit")
