"""`envguard diff [A] [B] [MORE…]`: graded drift, or the odd one among many."""

from __future__ import annotations

from typing import Annotated

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
    say_default,
)


def diff(
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A] [B] [MORE]...", help="What to compare.", show_default=False),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every file of the live environment.")] = False,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Graded drift from A to B; with more, the odd one among many.

    Each is a checkpoint (a name or a path), a fingerprint file, a lock file, a bundle, `@N` (the Nth last snapshot),
    `baseline` (what `launch --baseline` recorded) or `live`. A defaults to the last stamped checkpoint of the newest
    run, else to the baseline, else to the configured lock; B to `live`.
    """
    from envguard.cli.references import elsewhere, live_fingerprint, open_knowledge, open_places, resolve_all
    from envguard.fingerprint.comparison import compare_references
    from envguard.fingerprint.reference import resolve
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.diff import render
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    session = open_session(python, checkpoints)
    witnesses: list[Fingerprint] = []
    live = live_fingerprint(session, screen, deep, witnesses)
    places, knowledge = open_places(session, live), open_knowledge(session, live)
    found = resolve_all(references or [], places, witnesses)
    if len(found) == 1:
        found.append(resolve("live", places))
    for reference in found:
        for note in reference.notes:
            screen.warn(f"{reference.label}: {note}")
    if any(reference.kind == "live" for reference in found):
        python_of = live().python
        say_default(session.python, python_of.kind, python_of.prefix, screen.warn)
        for note in elsewhere(found, live(), places.host):
            screen.warn(note)
    report = compare_references(found, knowledge, session.project.config.policy)
    screen.answer(report, render(report, verbose=verbose > 0, quiet=quiet))
    raise typer.Exit(report.exit_code())


app = single(diff)
