"""`envguard restore REF`: bring packages back, or leave everything as it was."""

from __future__ import annotations

import sys
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
    from envguard.report.screen import Screen
    from envguard.restore.service import Request


def restore(
    reference: Annotated[
        str | None, typer.Argument(metavar="REF", help="A checkpoint, a stamp, a lock file, a journal entry.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this package. May repeat.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Also remove packages that REF does not have.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while processes run from the environment.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Undo: of a killed restore, else of the last one.")
    ] = False,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Bring packages back to a reference, offline and exactly, or change nothing."""
    from envguard.errors import RestoreError, RollbackError, UsageError
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    session = open_session(python, checkpoints)
    if not dry_run and not yes and not sys.stdin.isatty():
        raise UsageError("restore changes the environment and there is no terminal to ask", "-y answers for you")
    try:
        if rollback:
            code = _roll_back(screen, session, reference, yes, force)
        else:
            code = _restore(screen, session, reference, dry_run, yes, tuple(only or ()), exact, force)
    except (RestoreError, RollbackError) as error:
        code = _failed(screen, reference, error)
    raise typer.Exit(code)


def _restore(
    screen: Screen,
    session: Session,
    reference: str | None,
    dry_run: bool,
    yes: bool,
    only: tuple[str, ...],
    exact: bool,
    force: bool,
) -> int:
    from envguard.errors import RestoreError, UsageError
    from envguard.report.errors import print_error
    from envguard.report.restore import progress_bar, render
    from envguard.restore import service

    if reference is None:
        raise UsageError("restore needs a REF", "`envguard log` lists checkpoints and snapshots")
    _finish_killed(screen, session, dry_run)
    request = _request(screen, session, reference, only, exact, force)
    plan = service.find_and_plan(request)
    shown = not screen.quiet and not screen.json
    if plan.missing or not plan.steps or dry_run:
        with progress_bar(screen.err, shown) as bar:
            report = service.report_of(request, plan, service.prove(plan, bar))
        screen.answer(report, render(report, dry_run))
        if report.missing:
            print_error(f"{len(report.missing)} package(s) cannot be had from this machine", None, 4, as_json=False)
        return RestoreError.code if report.missing else 0
    if not yes and not _confirmed(screen, service.report_of(request, plan)):
        raise UsageError("not confirmed; nothing was changed")
    with progress_bar(screen.err, shown) as bar:
        outcome = service.carry_out(request, plan, bar)
    report = service.report_of(request, plan, outcome)
    screen.answer(report, render(report, dry_run=False))
    if outcome.failure is not None:
        print_error(
            outcome.failure, outcome.hint or "everything is as it was before", RestoreError.code, as_json=False
        )
        return RestoreError.code
    service.remember(session.project.state, report, screen.warn)
    return 0


def _finish_killed(screen: Screen, session: Session, dry_run: bool) -> None:
    """A restore that was killed is undone first, so that the plan is made over a whole environment."""
    from envguard.restore import service, transaction

    if not dry_run and transaction.pending_transaction(session.project.state) is not None:
        undone = service.roll_back(session.project.state)
        screen.say(f"a killed restore was undone first: {undone.notes[0]}")


def _request(
    screen: Screen, session: Session, reference: str, only: tuple[str, ...], exact: bool, force: bool
) -> Request:
    from envguard.acquire.environment import locate
    from envguard.acquire.host import LiveHost
    from envguard.cli.references import live_fingerprint, open_places
    from envguard.cli.timeline import request_of
    from envguard.restore.service import Request
    from envguard.restore.target import ask_witnesses, find_target

    host = LiveHost()
    env = locate(host, session.python, str(session.start))
    live = live_fingerprint(session, screen)
    places = open_places(session, live)
    target = find_target(reference, places, live, lambda found: ask_witnesses(found, host, request_of(session)))
    return Request(host, env, session.project, target, live(), only, exact, force)


def _confirmed(screen: Screen, report: object) -> bool:
    from envguard.model.action import RestoreReport
    from envguard.report.restore import render

    assert isinstance(report, RestoreReport)
    render(report, dry_run=True)(screen.err)
    return typer.confirm("Go ahead?", err=True)


def _roll_back(screen: Screen, session: Session, reference: str | None, yes: bool, force: bool) -> int:
    from envguard.errors import UsageError
    from envguard.report.restore import progress_bar, render
    from envguard.restore import service

    if reference is not None:
        raise UsageError("--rollback takes no REF: it undoes the last restore")
    if not yes and not typer.confirm("Put the environment back to what it was before the last restore?", err=True):
        raise UsageError("not confirmed; nothing was changed")
    with progress_bar(screen.err, not screen.quiet and not screen.json) as bar:
        report = service.roll_back(session.project.state, bar, force)
    screen.answer(report, render(report, dry_run=False))
    return 0


def _failed(screen: Screen, reference: str | None, error: Exception) -> int:
    """Codes 4 and 5 answer with the command's own kind, and say why on stderr."""
    from envguard.errors import Error
    from envguard.model.action import RestoreReport
    from envguard.report.errors import print_error

    assert isinstance(error, Error)
    if screen.json:
        notes = (str(error), *((error.hint,) if error.hint else ()))
        report = RestoreReport(
            reference=reference or "",
            plan=(),
            missing=(),
            poisoned=(),
            notes=notes,
            applied=False,
            verified=False,
            rolled_back=False,
        )
        screen.answer(report, lambda console: None)
    print_error(str(error), error.hint, error.code, as_json=False)
    return error.code


app = single(restore)
