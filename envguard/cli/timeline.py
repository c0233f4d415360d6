"""`envguard timeline`: what happened, when, resting on what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from envguard.cli.app import single
from envguard.cli.options import (
    CheckpointsOption,
    ColorOption,
    JsonOption,
    PythonOption,
    QuietOption,
    Session,
    VerboseOption,
    open_session,
)

if TYPE_CHECKING:
    from envguard.acquire.survey import Request


def timeline(
    since_checkpoint: Annotated[
        str | None, typer.Option("--since-checkpoint", metavar="CKPT", help="What happened after it was saved.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every row, also those that no finding rests on.")] = False,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """What happened to this environment, when, and how we know."""
    from envguard.acquire.host import LiveHost
    from envguard.acquire.survey import survey
    from envguard.report.screen import Screen
    from envguard.report.timeline import render
    from envguard.timeline.build import Bounds, build_timeline
    from envguard.timeline.selection import choose_checkpoint

    screen = Screen(json, quiet, verbose, color)
    session = open_session(python, checkpoints)
    request = request_of(session)
    seen = survey(LiveHost(), request)
    chosen = None
    if since_checkpoint is not None:
        chosen = choose_checkpoint(seen.checkpoints, since_checkpoint, request.checkpoint_roots)
    report = build_timeline(seen, Bounds(checkpoint=chosen))
    title = f"{seen.env.prefix} on {seen.machine.host}, {seen.env.how}"
    screen.answer(report, render(report, title=title, offset_s=None, verbose=verbose > 0, every=every))
    raise typer.Exit(report.exit_code())


def request_of(session: Session) -> Request:
    """The session as the survey needs it."""
    from envguard.acquire.survey import Request

    root = session.project.root
    return Request(
        start=str(session.start),
        python=session.python,
        root=str(root) if root is not None else None,
        state=str(session.project.state),
        checkpoint_roots=tuple(str(path) for path in session.checkpoint_roots),
        config=session.project.config,
        own_pids=frozenset({os.getpid(), os.getppid()}),
    )


app = single(timeline)
