"""Undoing: which restore of an environment was killed or can be undone, and `restore --rollback`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from envguard import clock
from envguard.errors import RestoreError
from envguard.fingerprint.units import counted, some_of
from envguard.model.action import RestoreReport
from envguard.restore import apply, register, transaction
from envguard.restore.progress import Progress, Silent
from envguard.restore.register import Registered
from envguard.restore.remembering import remember_undone
from envguard.restore.transaction import Transaction


def roll_back(
    prefix: str, state: Path, progress: Progress | None = None, force: bool = False, dry_run: bool = False
) -> RestoreReport:
    """`restore --rollback` of the environment at `prefix`; `dry_run` only says what would be undone.

    A restore that was killed is undone before the last one that was carried out. Raises `RestoreError` where there is
    none, and `RollbackError`.
    """
    found = _to_undo(prefix, state)
    unwritten: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    if not dry_run:
        undone = found.step == "done"
        differs = apply.roll_back_found(found, progress or Silent(), force)
        unwritten = remember_undone(state, found, undone)
    began = clock.local(found.began) if found.began else "an unknown time"
    will = "would be" if dry_run else "is"
    but = f", but for {counted(len(differs), 'path')} that changed since ({some_of(differs)})" if differs else ""
    return RestoreReport(
        reference=str(found.about.get("reference", "?")),
        environment=found.prefix,
        plan=(),
        missing=(),
        poisoned=(),
        notes=(f"{found.prefix} {will} as it was before the restore that began {began}{but}", *unwritten),
        applied=False,
        verified=not dry_run,
        rolled_back=not dry_run,
        differs=differs,
    )


def _to_undo(prefix: str, state: Path) -> Transaction:
    try:
        lost = transaction.out_of_reach(prefix)
        known = transaction.of_environment(prefix, state)
    except OSError as error:
        raise RestoreError(f"{error.filename or prefix}: {error.strerror or error}", "nothing was changed") from error
    if lost:
        raise RestoreError(_lost(prefix, lost[-1]), _of_the_lost(lost[-1]))
    killed = next((each for each in reversed(known) if transaction.was_killed(each)), None)
    found = killed or next((each for each in reversed(known) if each.undoable), None)
    if found is not None:
        return found
    running = next((each for each in reversed(known) if transaction.is_running(each)), None)
    if running is not None:
        raise RestoreError(f"a restore is running (PID {running.entries[-1].pid})", "wait for it to end")
    raise RestoreError(
        f"there is nothing to roll back: no restore of {prefix} was begun or carried out",
        "`envguard log` lists checkpoints and snapshots, and `envguard restore REF` goes to any of them",
    )


def killed(prefix: str, state: Path, force: bool = False) -> bool:
    """Whether a restore of this environment was killed and can be undone. Raises `RestoreError` where that cannot be
    told, and where its roll-back point is out of reach: what it left is installed over with `force` alone."""
    try:
        lost = transaction.out_of_reach(prefix)
        found = any(transaction.was_killed(each) for each in transaction.of_environment(prefix, state))
    except OSError as error:
        raise RestoreError(f"{error.filename or prefix}: {error.strerror or error}", "nothing was changed") from error
    if lost and not found and not force:
        raise RestoreError(_lost(prefix, lost[-1]), _of_the_lost(lost[-1]))
    return found


def _lost(prefix: str, entry: Registered) -> str:
    where = "" if entry.environment == register.real(prefix) else f" in {entry.environment}"
    return (
        f"a restore to {entry.reference} was begun{where} ({entry.begun}) and may not have ended: {prefix} may be "
        f"half-installed, and the roll-back point {entry.folder} cannot be read from here"
    )


def _of_the_lost(entry: Registered) -> str:
    return (
        f"`envguard restore --rollback` undoes it where {entry.folder} can be read; where that is gone for good, "
        f"`envguard restore {shlex.quote(entry.reference)} --force` installs over what was left"
    )


def pending(prefix: str | None, state: Path) -> str | None:
    """What every command says first: that a restore of the environment at `prefix`, or one that this project keeps,
    was killed or is at work; None where neither is so."""
    known = {each.folder: each for each in transaction.transactions(state) if each.is_of(each.prefix)}
    lost: tuple[Registered, ...] = ()
    if prefix is not None:
        try:
            lost = transaction.out_of_reach(prefix)
            known |= {each.folder: each for each in transaction.of_environment(prefix, state)}
        except OSError as error:
            return f"{error.filename or prefix}: {error.strerror or error}: whether a restore was killed is not known"
    found = next((each for each in known.values() if transaction.was_killed(each)), None)
    if found is not None:
        return _says_killed(found, prefix)
    running = next((each for each in known.values() if transaction.is_running(each)), None)
    if running is not None and running.entries[-1].pid != os.getpid():
        where = f"{running.prefix} (PID {running.entries[-1].pid})"
        return f"a restore is at work in {where}: what is read of it may be half-installed"
    return f"{_lost(prefix, lost[-1])}. {_of_the_lost(lost[-1])}" if prefix is not None and lost else None


def _says_killed(found: Transaction, prefix: str | None) -> str:
    what = f"{found.prefix} may be half-installed" if found.touched else f"{found.prefix} was not touched yet"
    here = prefix is not None and register.real(prefix) == register.real(found.prefix)
    named = "" if here else f" --python {shlex.quote(found.prefix)}"
    return (
        f"a restore to {found.about.get('reference', '?')} was killed (begun {found.began}, step `{found.step}`); "
        f"{what}. `envguard restore --rollback -y{named}` puts it right, and so does running the restore again"
    )
