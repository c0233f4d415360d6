"""What a restore and its undoing leave in the journal, for `log` and for the timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from envguard.restore.compile_cache import Brought
from envguard.restore.plan import Plan, Step
from envguard.restore.transaction import Transaction
from envguard.restore.wanted import Target
from envguard.state import journal


def remember(
    state: Path,
    target: Target,
    plan: Plan,
    since: Mapping[str, str],
    caches: tuple[Brought, ...],
    warn: Callable[[str], None],
) -> None:
    """Puts what was carried out into the journal: the files no longer tell what a restore undid, nor to which
    moment it went (`timeline.restored` reads it). A compile cache that was filled holds a stamp of its own, too."""
    changed = [_remembered(step, since.get(step.name)) for step in plan.steps]
    try:
        if changed:
            entry = {"reference": target.reference, "moment": target.moment, "packages": changed}
            journal.append(state, "restore", entry)
        for cache in caches:
            if cache.source is not None:
                about = {"path": cache.path, "source": cache.source, "files": cache.files, "bytes": cache.bytes}
                journal.append(state, "compile_cache", about)
    except OSError as error:
        warn(_unwritten(error))


def _remembered(step: Step, since: str | None) -> dict[str, str | None]:
    wanted = step.wanted
    return {
        "package": step.name,
        "from": step.was,
        "from_since": since,
        "to": wanted.shown if wanted is not None else None,
        "version": wanted.version if wanted is not None else None,
        "build": wanted.build if wanted is not None else None,
    }


def remember_undone(state: Path, found: Transaction, undone: bool) -> tuple[str, ...]:
    """That a restore was rolled back; `undone` where it had been carried out and has an entry that counts no more.

    Returns why it could not be written down: everything is back, which is no failure for that.
    """
    try:
        journal.append(state, "rollback", {"reference": found.about.get("reference"), "undone": undone})
    except OSError as error:
        return (_unwritten(error),)
    return ()


def _unwritten(error: OSError) -> str:
    return f"the journal cannot be written: {error.strerror or error}"
