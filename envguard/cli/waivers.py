"""`envguard waivers list|revoke`: what somebody answers for, and the end of it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from envguard.cli.app import single
from envguard.cli.options import ColorOption, JsonOption, PythonOption, QuietOption, VerboseOption, open_session


def waivers(
    action: Annotated[
        Literal["list", "revoke"], typer.Argument(metavar="[list|revoke]", help="Show the waivers, or end one.")
    ] = "list",
    which: Annotated[
        str | None, typer.Argument(metavar="[FACET[:SUBJECT]]", help="The waiver to revoke, as it was given.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over, or served one launch.")] = False,
    python: PythonOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """List the waivers that later launches heed, or revoke one.

    Example: `envguard waivers revoke packages:transformers`.
    """

    from envguard import clock
    from envguard.errors import InputError, UsageError
    from envguard.launch.waivers import in_force, read_waivers, revoke, waiver_file
    from envguard.model.action import WaiverRow, WaiversReport
    from envguard.report.screen import Screen
    from envguard.report.waivers import render

    screen = Screen(json, quiet, verbose, color)
    state = open_session(python).project.state
    now = clock.now()
    if (action == "revoke") != (which is not None):
        raise UsageError(
            "revoke takes the waiver to end, list takes none",
            "`envguard waivers list` shows them; `envguard waivers revoke FACET[:SUBJECT]` ends one",
        )
    revoked = 0
    try:
        if which is not None:
            revoked = revoke(state, which, now)
        stored = read_waivers(state)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{waiver_file(state)} cannot be read or written: {error}", "mend the file, or take it away"
        ) from error
    rows = tuple(
        WaiverRow(
            facet=waiver.facet, subject=waiver.subject, because=waiver.because, author=waiver.author,
            given=waiver.given, until=waiver.until, run=waiver.run, in_force=in_force(waiver, now),
        )
        for waiver in stored
    )  # fmt: skip
    report = WaiversReport(waivers=tuple(row for row in rows if every or row.in_force), revoked=revoked)
    screen.answer(report, render(report))


app = single(waivers)
