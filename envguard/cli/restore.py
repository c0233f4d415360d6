"""`envguard restore REF`: bring packages back, or leave everything as it was."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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
    from envguard.acquire.packages.environment import Environment
    from envguard.model.action import RestoreReport
    from envguard.report.screen import Screen
    from envguard.restore.plan import Plan
    from envguard.restore.service import Request
    from envguard.restore.wanted import Target


NOT_CONFIRMED = "answer y, or `-y` answers for you; `--dry-run` shows what would be done"
UNREAD = "each is named above: make it readable, leave it out with `--only PACKAGE`, or take a REF of `envguard log`"


@dataclass(frozen=True)
class Wish:
    """The command line's own options."""

    reference: str | None
    dry_run: bool
    yes: bool
    only: tuple[str, ...]
    exact: bool
    caches: bool
    fetch: bool
    force: bool


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
    no_compile_cache: Annotated[
        bool, typer.Option("--no-compile-cache", help="Packages only; leave the compile cache alone.")
    ] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Download what is missing, by hash.")] = False,
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
    from envguard.acquire.packages.metadata import canonical
    from envguard.errors import RestoreError, RollbackError, UsageError
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    session = open_session(python, checkpoints)
    wish = Wish(reference, dry_run, yes, tuple(map(canonical, only or ())), exact, not no_compile_cache, fetch, force)
    if reference is None and not rollback:
        raise UsageError("restore needs a REF", "`envguard log` lists checkpoints and snapshots")
    if not dry_run and not yes and not sys.stdin.isatty():
        if reference is not None and not rollback:
            _check_reference(session, reference)
        raise UsageError("restore changes the environment and there is no terminal to ask", "-y answers for you")
    try:
        code = _roll_back(screen, session, wish) if rollback else _restore(screen, session, wish)
    except (RestoreError, RollbackError) as error:
        code = _failed(screen, reference, error)
    raise typer.Exit(code)


def _check_reference(session: Session, reference: str) -> None:
    """A REF that names nothing is what is wrong, whether or not there is somebody to ask."""
    from envguard.cli.references import open_places
    from envguard.fingerprint.reference import no_live
    from envguard.restore.target import find_reference

    find_reference(reference, open_places(session, no_live))


def _restore(screen: Screen, session: Session, wish: Wish) -> int:
    env = _environment(session)
    _finish_killed(screen, session, env.prefix, wish)
    request = _request(screen, session, env, wish)
    with request.downloads:
        return _carry_out(screen, request, wish)


def _carry_out(screen: Screen, request: Request, wish: Wish) -> int:
    from envguard.errors import RestoreError, UsageError
    from envguard.report.errors import print_error
    from envguard.report.restore import progress_bar, render
    from envguard.restore import service
    from envguard.restore.apply import Outcome
    from envguard.restore.remembering import remember

    shown = not screen.quiet and not screen.json
    with progress_bar(screen.err, shown) as bar:
        request = service.look_closely(request, bar)
        plan = service.find_and_plan(request, bar)
    if plan.missing or plan.unknown or wish.dry_run:
        return _plan_only(screen, request, plan, wish)
    if plan.steps and not wish.yes and not _confirmed(screen, service.report_of(request, plan)):
        raise UsageError("not confirmed; nothing was changed", NOT_CONFIRMED)
    since = service.installed_since(request, plan)
    with progress_bar(screen.err, shown) as bar:
        there = Outcome(verified=service.already_there(plan))
        outcome = service.carry_out(request, plan, bar) if plan.steps else there
        brought = service.bring_caches_back(request, bar) if wish.caches and outcome.failure is None else ()
    service.note_caches(outcome, brought)
    report = service.report_of(request, plan, outcome)
    if outcome.failure is None:
        # Before anything is printed: `restore … | head -1` ends here, and what was done has to be known all the same.
        remember(request.state, request.target, plan, since, brought, screen.warn)
    screen.answer(report, render(report, dry_run=False))
    if outcome.failure is not None:
        hint = outcome.hint if outcome.hint is not None and not wish.fetch else None
        if hint is None and not outcome.differs:
            hint = "everything is as it was before"
        print_error(outcome.failure, hint, RestoreError.code, as_json=False)
        return RestoreError.code
    return 1 if report.unmet else 0


def _plan_only(screen: Screen, request: Request, plan: Plan, wish: Wish) -> int:
    """What would be done, its sources proved; 4 where something is missing, since it could not be done, and 3 where
    it cannot be told whether it must be."""
    from envguard.errors import NotDetermined, RestoreError
    from envguard.fingerprint.units import counted
    from envguard.report.errors import print_error
    from envguard.report.restore import progress_bar, render
    from envguard.restore import service

    with progress_bar(screen.err, not screen.quiet and not screen.json) as bar:
        proved = service.prove(request, plan, bar)
    if wish.caches and not plan.missing:
        service.note_caches(proved, service.bring_caches_back(request, dry_run=True))
    report = service.report_of(request, plan, proved)
    screen.answer(report, render(report, wish.dry_run))
    if not report.missing and report.unknown:
        says = f"{counted(len(report.unknown), 'thing')} could not be determined; nothing was changed"
        print_error(says, UNREAD, 3, as_json=False)
        return NotDetermined.code
    if report.refused and not report.missing:
        print_error(f"{report.refused[0]}; nothing was changed", None, RestoreError.code, as_json=False)
        return RestoreError.code
    if not report.missing:
        return 1 if report.unmet else 0
    narrower = "`--only NAME` restores that package alone"
    hint = narrower if wish.fetch else f"`--fetch` downloads what a witness names by hash; {narrower}"
    print_error(f"{counted(len(report.missing), 'package')} cannot be had from this machine", hint, 4, as_json=False)
    return RestoreError.code


def _finish_killed(screen: Screen, session: Session, prefix: str, wish: Wish) -> None:
    """A restore that was killed is undone first, so that the plan is made over a whole environment."""
    from envguard.restore import undoing

    if not wish.dry_run and undoing.killed(prefix, session.project.state, wish.force):
        undone = undoing.roll_back(prefix, session.project.state)
        screen.say(f"a killed restore was undone first: {undone.notes[0]}")


def _environment(session: Session) -> Environment:
    from envguard.acquire.packages.environment import locate
    from envguard.acquire.seam.host import LiveHost

    return locate(LiveHost(), session.python, str(session.start))


def _request(screen: Screen, session: Session, env: Environment, wish: Wish) -> Request:
    import msgspec

    from envguard.acquire.seam.host import LiveHost
    from envguard.cli.references import live_fingerprint, open_places
    from envguard.cli.timeline import request_of
    from envguard.restore.foreseen import of_another
    from envguard.restore.service import Request
    from envguard.restore.target import ask_witnesses, find_target

    assert wish.reference is not None
    host = LiveHost()
    live = live_fingerprint(session, screen)
    places = open_places(session, live)
    target = find_target(wish.reference, places, live, lambda found: ask_witnesses(found, host, request_of(session)))
    another = of_another(host, env, target)
    if another is not None:
        if session.python is None:
            _refuse_another(wish.reference, target, env)
        target = msgspec.structs.replace(target, notes=(another, *target.notes))
    return Request(host, env, session.project, target, live(), wish.only, wish.exact, wish.fetch, wish.force)


def _refuse_another(reference: str, target: Target, env: Environment) -> None:
    """An environment that only happens to be active is not made like another one: which of them is meant must be
    said."""
    import shlex

    from envguard.errors import UsageError

    theirs = target.fingerprint.python.environment if target.fingerprint is not None else "another environment"
    command = f"envguard restore {shlex.quote(reference)} --python"
    raise UsageError(
        f"{target.reference} was made in {theirs}, and {env.prefix} ({env.how}) would be changed",
        f"`{command} {shlex.quote(theirs)}` restores that one; `{command} {shlex.quote(env.prefix)}` makes this one "
        "like it",
    )


def _confirmed(screen: Screen, report: RestoreReport) -> bool:
    from envguard.report.restore import render

    render(report, dry_run=True)(screen.err)
    return typer.confirm("Go ahead?", err=True)


def _roll_back(screen: Screen, session: Session, wish: Wish) -> int:
    from envguard.errors import UsageError
    from envguard.report.paragraph import paragraph
    from envguard.report.restore import progress_bar, render
    from envguard.restore import undoing

    if wish.reference is not None:
        raise UsageError(
            "--rollback takes no REF: it undoes the last restore",
            f"`envguard restore --rollback` undoes it; `envguard restore {wish.reference}` goes to {wish.reference}",
        )
    if wish.only or wish.exact or wish.fetch:
        raise UsageError("--rollback undoes a restore whole", "leave out --only, --exact and --fetch")
    prefix, state = _environment(session).prefix, session.project.state
    if wish.dry_run:
        planned = undoing.roll_back(prefix, state, dry_run=True)
        screen.answer(
            planned, lambda console: paragraph(console, f"{planned.notes[0]}; nothing was changed (dry run)")
        )
        return 0
    question = f"Put {prefix} back to what it was before the last restore of it?"
    if not wish.yes and not typer.confirm(question, err=True):
        raise UsageError("not confirmed; nothing was changed", NOT_CONFIRMED)
    with progress_bar(screen.err, not screen.quiet and not screen.json) as bar:
        report = undoing.roll_back(prefix, state, bar, wish.force)
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
