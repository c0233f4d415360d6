"""`envguard log`: checkpoints with their stamps, snapshots, runs, restores."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from envguard.cli.app import single
from envguard.cli.options import (
    CheckpointsOption,
    ColorOption,
    JsonOption,
    PythonOption,
    QuietOption,
    VerboseOption,
    open_session,
)

MOST_NOTES = 8
"""Warnings that are told without -v: what thousands of checkpoints may be said to lack is longer than any screen."""


def log(
    last: Annotated[
        int | None, typer.Option("-n", "--last", metavar="N", min=1, help="Only the last N entries.")
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Checkpoints with their stamps, snapshots, runs and restores, oldest first."""
    from envguard.cli.references import open_places
    from envguard.fingerprint.history import history
    from envguard.fingerprint.reference import no_live
    from envguard.report.log import render
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    report, notes = history(open_places(open_session(python, checkpoints), no_live))
    for note in notes if verbose else notes[:MOST_NOTES]:
        screen.warn(note)
    if len(notes) > MOST_NOTES and not verbose:
        screen.warn(f"and {len(notes) - MOST_NOTES} more of these (-v)")
    if last is not None:
        report = msgspec.structs.replace(report, entries=report.entries[-last:])
    screen.answer(report, render(report, verbose=verbose > 0))


app = single(log)
