"""`envguard timeline`: what happened, when, resting on what."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
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
    from envguard.acquire.runs.checkpoints import Checkpoint
    from envguard.acquire.seam.host import Host
    from envguard.acquire.survey import Request, Survey
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.screen import Screen
    from envguard.timeline.compared import Compared


def timeline(
    moment: Annotated[
        str | None,
        typer.Argument(
            metavar="[CKPT|T]", help="Since this checkpoint was saved, or since this time.", show_default=False
        ),
    ] = None,
    since_checkpoint: Annotated[
        str | None, typer.Option("--since-checkpoint", metavar="CKPT", help="Show what happened after it was saved.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Show events from T on: ISO, `20:41`, `3h`, `yesterday`."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="Show events before T.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="K", help="Show only this kind: `package`, `run.ended`, … May repeat."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="Read a bundle written by `envguard collect` instead of this machine."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page, too.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every row, also those that no finding rests on.")
    ] = False,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Show what happened to this environment, when, and how we know.

    Example: `envguard timeline step_690`.
    """
    from envguard.acquire.survey import survey
    from envguard.report.screen import Screen
    from envguard.report.timeline import render, write_page
    from envguard.report.waiting import waiting
    from envguard.timeline.asked import parse_kinds, parse_time
    from envguard.timeline.build import Bounds, build_timeline
    from envguard.timeline.selection import choose_checkpoint

    screen = Screen(json, quiet, verbose, color)
    kinds = parse_kinds(kind or ())
    since_checkpoint, since = _start(moment, since_checkpoint, since)
    host, request, session = _asked(bundle, python, checkpoints, since_checkpoint)
    with waiting(screen) as progress:
        seen = survey(host, request, progress)
    now, zone = seen.machine.now, seen.zone
    chosen = None
    if since_checkpoint is not None:
        name = request.named[0] if request.named else since_checkpoint
        chosen = choose_checkpoint(seen.checkpoints, name, request.checkpoint_roots, request.start)
        chosen = _examined(host, seen, chosen)
    bounds = Bounds(
        checkpoint=chosen,
        since=parse_time(since, zone, now) if since is not None else None,
        until=parse_time(until, zone, now, latest=True) if until is not None else None,
        kinds=kinds,
    )
    compared = _compared(seen, host, request, chosen, session, screen) if chosen is not None else None
    report = build_timeline(seen, bounds, compared)
    how = "" if seen.env.how == seen.env.prefix else f" ({seen.env.how})"
    title = f"{seen.env.prefix} on {seen.machine.host}{how}"
    told = partial(render, report, title=title, offset=zone.offset_s, verbose=verbose > 0, every=every)
    if html is not None:
        write_page(html, told(), title)
    screen.answer(report, told(quiet=quiet))
    raise typer.Exit(report.exit_code())


def _examined(host: Host, seen: Survey, chosen: Checkpoint) -> Checkpoint:
    """The checkpoint by its content, too: the others are known by names and sizes."""
    from envguard.acquire.runs.checkpoint_content import examined
    from envguard.model.evidence import Unknown

    try:
        found = examined(host, chosen)
    except OSError as error:
        seen.unknown.append(Unknown.refused(f"checkpoint {chosen.name}", error))
        return chosen
    seen.checkpoints = seen.checkpoints.with_times_of([found])
    return found


def _start(moment: str | None, checkpoint: str | None, since: str | None) -> tuple[str | None, str | None]:
    """(checkpoint, time) from which on events are shown: `--since step_90` and a bare `yesterday` are understood."""
    from envguard.errors import UsageError
    from envguard.timeline.asked import is_time

    if moment is not None:
        if is_time(moment) and since is None:
            since = moment
        elif checkpoint is None and not is_time(moment):
            checkpoint = moment
        else:
            raise UsageError(f"{moment} and an option name two beginnings", "name one of them")
    if since is not None and checkpoint is None and not is_time(since):
        return since, None  # `--since step_90`
    return checkpoint, since


def _asked(
    bundle: Path | None, python: str | None, checkpoints: list[str] | None, of: str | None
) -> tuple[Host, Request, Session | None]:
    """The host and the request: this machine and session, or a bundle and what it was gathered for, without a
    session. `of` is the checkpoint that is asked about."""
    from dataclasses import replace

    from envguard.acquire.seam.host import LiveHost

    if bundle is None:
        session = open_session(python, checkpoints)
        request = request_of(session)
        return LiveHost(), replace(request, named=_named(LiveHost(), request, of)), session
    from envguard.acquire.gathering import open_bundle
    from envguard.errors import UsageError

    if python is not None:
        raise UsageError("--python names an environment of this machine", "a bundle holds one environment, its own")
    opened = open_bundle(str(bundle))
    request = opened.request
    if checkpoints:
        roots = tuple(request.path(name) for name in checkpoints)
        request = replace(request, checkpoint_roots=roots, journaled=False)
    return opened.host, replace(request, named=_named(opened.host, request, of, far=True)), None


def _compared(
    seen: Survey, host: Host, request: Request, chosen: Checkpoint, session: Session | None, screen: Screen
) -> Compared | None:
    """What `diff` answers of the checkpoint's stamp: of the environment of now, or of the one in a bundle."""
    from envguard.timeline.compared import compare_with_stamp

    installed = (seen.env, seen.distributions)

    def live(stamp: Fingerprint) -> Fingerprint:
        if session is None:
            from envguard.fingerprint.bundled import fingerprint_on

            return fingerprint_on(host, request, (stamp,), installed)
        from envguard.cli.references import live_fingerprint

        return live_fingerprint(session, screen, witnesses=(stamp,), found=installed)()

    return compare_with_stamp(seen, chosen, live, request.config.policy)


def _named(host: Host, request: Request, of: str | None, far: bool = False) -> tuple[str, ...]:
    """The checkpoint that a path or a name without a step means, which may lie outside of the places to look in, as
    for every other command. A bundle (`far`) knows of checkpoints, and not of each file in them. Raises `InputError`
    and `UsageError` for what is there and is none."""
    from envguard.acquire.runs.checkpoints import step_of
    from envguard.fingerprint.places import Places
    from envguard.fingerprint.reference import no_live, resolve

    if of is None or ("/" not in of and step_of(of) is not None):
        return ()
    places = Places(
        host, request.start, request.checkpoint_roots, request.state or "", no_live, journaled=request.journaled
    )
    path = places.path(of)
    if far and any(path.startswith(f"{item.path}/") for item in places.checkpoints().found):
        return tuple(item.path for item in places.checkpoints().found if path.startswith(f"{item.path}/"))[:1]
    found = resolve(of, places).checkpoint
    return (found.path,) if found is not None else ()


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
        journaled=session.journaled,
        config=session.project.config,
        own_pids=frozenset({os.getpid(), os.getppid()}),
    )


app = single(timeline)
