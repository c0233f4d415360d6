"""Events of code and files: commits, moves of HEAD, edits that are not committed, edits inside site-packages."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from envguard import clock
from envguard.acquire.project.git_history import DirtyFile, GitHistory
from envguard.acquire.project.watched_files import Edited, Watched
from envguard.fingerprint.units import some_of
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import make_event

REFLOG = "reflog HEAD@"
"""How the field of the evidence for a move of HEAD begins."""
MOVED = ("checkout", "reset", "pull", "merge", "rebase", "am", "cherry-pick", "revert")


def git_events(history: GitHistory) -> Iterable[Event]:
    """Commits, moves of HEAD that changed files, and files that differ from HEAD."""
    here: set[str] = set()
    for move in history.moves:
        action = move.action.partition(":")[0].partition(" ")[0]
        if action.startswith("commit"):
            here.add(move.to)
        if action in MOVED:
            evidence = Evidence(witness="git", path=history.root, field=f"{REFLOG}{move.to[:12]}", value=move.action)
            yield make_event("code.changed", _name(history.root), move.time_ns, None, f"HEAD moved: {move.action}",
                             [evidence], precision_s=1.0)  # fmt: skip
    for commit in history.commits:
        evidence = Evidence(
            witness="git", path=history.root, field=f"committer date of {commit.id[:12]}",
            value=clock.iso(commit.committed_ns / clock.NS, 0),
        )  # fmt: skip
        # The date is the committer's clock; only the reflog says that the commit was made in this work tree.
        best = "strong" if commit.id in here else "weak"
        yield make_event("code.commit", commit.id[:12], commit.committed_ns, None,
                         f"{commit.id[:9]} {commit.subject}", [evidence], precision_s=1.0,
                         best="strong" if best == "strong" else "weak")  # fmt: skip
    for file in history.dirty:
        yield _dirty_event(history, file)


def _dirty_event(history: GitHistory, file: DirtyFile) -> Event:
    path, full, mtime, ctime = file.path, f"{history.root}/{file.path}", file.mtime_ns, file.ctime_ns
    evidence = [Evidence(witness="git", path=history.root, field=f"status {path}", value=file.status)]
    if mtime is None:
        kind: EventKind = "file.deleted"
        if ctime is not None:
            above = posixpath.dirname(full)
            evidence.append(Evidence(witness="file", path=above, field="mtime", value=clock.iso_ns(ctime)))
        return make_event(kind, path, None, ctime, f"{path} deleted since HEAD", evidence, best="weak")
    evidence.append(Evidence(witness="file", path=full, field="mtime", value=clock.iso_ns(mtime)))
    evidence += [
        Evidence(witness="git", path=history.root, field=f"diff {path}", value=line) for line in file.added[:2]
    ]
    what = "new, not under git" if file.status == "??" else "differs from HEAD"
    shown = next((line[1:].strip() for line in file.added if line.startswith("+") and line[1:].strip()), "")
    text = f"{path} {what}, last written then" + (f": {shown[:80]}" if shown else "")
    # That it was edited is certain from git; when the edit that counts was made is the mtime's word alone.
    return make_event("code.changed", path, mtime, None, text, evidence, confidence="strong")


def edit_events(edits: Iterable[Edited]) -> Iterable[Event]:
    """Installed files that were edited after their install."""
    for edit in edits:
        if edit.beside is not None:
            yield _record_event(edit, edit.beside)
            continue
        differs = Evidence(witness="dist-info", path=edit.path, field="sha256", value="not the one in RECORD")
        shared = kept = ""
        if edit.shared > 1:
            shared = f"; {edit.shared} hard links: the uv cache and every environment that shares it have it too"
        if edit.since_ns is not None:
            kept = ", under a time that is no later"
        text = f"{_name(edit.path)} of {edit.package} edited after its install{kept}{shared}"
        end_ns = edit.ctime_ns if edit.since_ns is not None else None
        yield make_event(
            "file.patched", edit.path, edit.first_ns, end_ns, text, (*edit_proofs(edit), differs), confidence="strong"
        )


def _record_event(edit: Edited, beside: tuple[str, ...]) -> Event:
    files = f", with {some_of([_name(path) for path in beside])}" if beside else ""
    text = f"RECORD of {edit.package} was written anew after its install{files}"
    mark = f"{posixpath.dirname(edit.path)}/INSTALLER"
    earlier = Evidence(witness="dist-info", path=mark, field="mtime", value="earlier than RECORD's")
    return make_event(
        "file.patched", edit.path, edit.mtime_ns, None, text, (*edit_proofs(edit), earlier), confidence="strong"
    )


def edit_proofs(edit: Edited) -> tuple[Evidence, ...]:
    """What says when a file was edited: its mtime, and where that was kept, its ctime, which nothing sets back."""
    times = [("mtime", edit.mtime_ns)] + ([("ctime", edit.ctime_ns)] if edit.since_ns is not None else [])
    return tuple(Evidence(witness="file", path=edit.path, field=name, value=clock.iso_ns(at)) for name, at in times)


def tree_events(trees: Iterable[Watched], kind: EventKind, witness: str) -> Iterable[Event]:
    """Configured data, config and lock files: the newest writing in each."""
    for tree in (item for item in trees if item.files):
        evidence = Evidence(witness=witness, path=tree.newest_path, field="mtime", value=clock.iso_ns(tree.newest_ns))
        size = f"{tree.size / 1e6:,.1f} MB" + (f" in {tree.files:,} files" if tree.files > 1 else "")
        copied = "; it lies here as a copy that kept its times" if tree.copied else ""
        yield make_event(kind, tree.path, tree.newest_ns, None,
                         f"{_name(tree.path)} last written ({size}){copied}", [evidence], best="weak",
                         to=size)  # fmt: skip


def _name(path: str) -> str:
    return posixpath.basename(path.rstrip("/")) or path
