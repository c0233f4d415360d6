"""`envguard vault list|gc`: what `snapshot --keep` stored."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from envguard.cli.app import single
from envguard.cli.options import (
    CheckpointsOption,
    ColorOption,
    JsonOption,
    QuietOption,
    Session,
    VerboseOption,
    open_session,
)

if TYPE_CHECKING:
    from envguard.restore.collecting import Needs


class Action(StrEnum):
    """What to do with the vault."""

    LIST = "list"
    GC = "gc"


def vault(
    action: Annotated[Action, typer.Argument(metavar="list|gc", help="Show it, or drop what nothing refers to.")],
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Show what is kept, or drop what is old, beyond the bound, and not referred to by any stamp."""
    from envguard.errors import InputError
    from envguard.model.action import VaultReport
    from envguard.report.screen import Screen
    from envguard.report.vault import render
    from envguard.restore.collecting import Collected, collect, entries
    from envguard.restore.vault import Vault

    screen = Screen(json, quiet, verbose, color)
    session = open_session(None, checkpoints)
    store, needs, config = Vault(session.project.state), _needs(session), session.project.config
    done: Collected | None = None
    for unread in needs.unread:
        screen.warn(f"what a stamp refers to is not known: {unread}")
    if action is Action.GC and not needs.unread:
        try:
            done = collect(store, needs, config.vault_max_bytes, config.vault_max_days)
        except OSError as error:
            raise InputError(
                f"{error.filename or store.root}: {error.strerror or error}",
                "what was dropped before it is gone, the rest is as it was; `envguard vault list` shows it",
            ) from error
    for path in store.damaged():
        screen.warn(f"{path} cannot be read as a manifest")
    report = VaultReport(entries=entries(store, needs))
    screen.answer(report, render(report, done))
    if action is Action.GC and needs.unread:
        # Dropping what an unreadable stamp may refer to is the one thing that a collector must not do.
        screen.warn("nothing was dropped; a stamp that cannot be read may refer to any of it")
        raise typer.Exit(3)


def _needs(session: Session) -> Needs:
    """What the stamps of this project's checkpoints refer to, and the baseline of its first start."""
    from envguard.acquire.runs.stamps import NoFingerprint, parse_fingerprint
    from envguard.acquire.seam.host import LiveHost
    from envguard.restore.collecting import read_needs
    from envguard.state.files import read_file
    from envguard.state.runs import baseline_file

    baseline, more = baseline_file(session.project.state), []
    unread = []
    if baseline.is_file():
        try:
            more = [("baseline", parse_fingerprint(read_file(baseline)))]
        except (OSError, NoFingerprint) as error:
            unread.append(f"{baseline}: {error}")
    needs = read_needs(LiveHost(), [str(root) for root in session.checkpoint_roots], more, str(session.project.state))
    needs.unread += unread
    return needs


app = single(vault)
