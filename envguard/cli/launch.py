"""`envguard launch`: start a command only on a clean match, and record the run."""

from __future__ import annotations

import os
import shlex
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
    VerboseOption,
    open_session,
)

if TYPE_CHECKING:
    from envguard.launch.prepare import Request
    from envguard.launch.session import Gate
    from envguard.model.action import LaunchReport
    from envguard.report.screen import Screen


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="What to start; default: this checkout's trainer."),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="REF", help="The checkpoint, fingerprint or lock to match.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="The first start: record this environment as the reference.")
    ] = False,
    waive: Annotated[
        list[str] | None, typer.Option("--waive", metavar="FACET[:SUBJECT]", help="Answer for a drift. May repeat.")
    ] = None,
    because: Annotated[str | None, typer.Option("--because", metavar="TEXT", help="Why it is safe.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="Keep the waiver for later launches until then.")
    ] = None,
    on_drift: Annotated[
        str | None, typer.Option("--on-drift", metavar="warn|stop", help="What a change under the run does.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="How many nodes start together.")] = None,
    node_rank: Annotated[
        int | None, typer.Option("--node-rank", metavar="K", help="Which of them this is, from 0.")
    ] = None,
    meet: Annotated[
        str | None,
        typer.Option("--meet", metavar="HOST:PORT", help="Where they compare; default: as torchrun is told."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash every file of the environment before the start.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and say why; start and write nothing.")] = False,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write the JSON answer there.")
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Start COMMAND only where the environment matches the reference, watch it, and pass on its exit code."""
    from envguard.acquire.seam.host import LiveHost
    from envguard.cli.references import open_knowledge, open_places
    from envguard.launch.prepare import Request
    from envguard.launch.rendezvous import explicit
    from envguard.launch.whose import start_of
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    started = start_of(LiveHost(), command or (), os.environ)
    runner = started.runner
    session = open_session(python, checkpoints, otherwise=runner.interpreter if runner is not None else None)
    request = Request(
        project=session.project,
        start=session.start,
        python=session.python,
        chosen=bool(python or session.project.config.python),
        started=started,
        deep=deep,
        checkpoint_roots=session.checkpoint_roots,
        command=tuple(command or ()),
        against=against,
        baseline=baseline,
        waive=tuple(waive or ()),
        because=because,
        until=until,
        on_drift=on_drift,
        dry_run=dry_run,
        json=json,
        meet=explicit(nodes, node_rank, meet),
        environ=os.environ,
        places=lambda live: open_places(session, live),
        knowledge=lambda live: open_knowledge(session, live),
    )
    raise typer.Exit(_launch(screen, request, _report_file(report)))


def _launch(screen: Screen, request: Request, target: Path | None) -> int:
    from envguard.launch.child import CannotExecute
    from envguard.launch.prepare import prepare
    from envguard.launch.supervise import run
    from envguard.report.errors import print_error
    from envguard.report.launch import could_not_start, ended_lines, render, started_line

    try:
        gated, plan = prepare(request, screen.warn)
        if gated.verdict.decision != "go" or request.dry_run:
            report = gated.report()
            console = screen.out if request.dry_run else screen.err
            _answer(screen, report, target)
            if not screen.json:
                render(console, report, gated, screen.verbose, _asked(request), _way_back(request, gated))
            return gated.verdict.code
        for note in gated.notes:
            screen.warn(note)
        screen.say(started_line(gated.report(), gated.live))
        report, code = run(request.project, gated, plan, screen.say, screen.warn)
    except CannotExecute as error:
        _answer(screen, could_not_start(str(error), error.code), target)
        print_error(str(error), error.hint, error.code, as_json=False)
        return error.code
    for line in ended_lines(report):
        screen.say(line)
    _answer(screen, report, target)
    return code


def _way_back(request: Request, gated: Gate) -> str | None:
    """The options of the restore that would change something of what differs; None where none would."""
    import shlex

    from envguard.acquire.packages.environment import find_prefix, locate
    from envguard.acquire.seam.host import LiveHost
    from envguard.errors import Error
    from envguard.report.launch import is_restorable
    from envguard.restore import service
    from envguard.restore.target import find_reference, target_of
    from envguard.restore.way_back import way_back

    if gated.reference is None or gated.verdict.decision == "go" or not is_restorable(gated.verdict):
        return ""
    host, prefix = LiveHost(), gated.live.python.environment
    named = "" if find_prefix(host, None, str(request.start)) == prefix else f" --python {shlex.quote(prefix)}"
    try:
        found = find_reference(gated.reference, request.places(lambda: gated.live))
        target = target_of(found, lambda: gated.live)
        env = locate(host, prefix, str(request.start))
    except (Error, OSError):
        return named  # the restore says why
    if target is None:
        return named  # only the witnesses know; it costs more than a hint may
    asked = service.Request(host, env, request.project, target, gated.live)
    way = way_back(asked, {drift.subject for drift in gated.verdict.drifts if drift.facet == "packages"})
    return {"plain": named, "exact": f" --exact{named}", "none": None}[way]


def _asked(request: Request) -> str:
    """What the next command line needs again to mean the same reference."""
    if request.against is not None:
        return f"--against {shlex.quote(request.against)}"
    return "--baseline" if request.baseline else ""


def _report_file(name: str | None) -> Path | None:
    """Where `--report` writes, known to be writable now: days later it would be too late to say so."""
    import errno
    import tempfile

    from envguard.errors import UsageError

    if name is None:
        return None
    path = Path(name).absolute()
    try:
        if not name or path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(
            f"--report {name!r} cannot be written: {why}", "name a file in a folder that takes files"
        ) from error


def _answer(screen: Screen, report: LaunchReport, target: Path | None) -> None:
    """The one JSON object: on stdout under --json, in a file under --report."""
    from envguard.report.screen import encode
    from envguard.state.files import write_atomically

    if screen.json:
        screen.answer(report, lambda console: None)
    if target is not None:
        try:
            write_atomically(target, encode(report).encode() + b"\n")
        except OSError as error:
            screen.warn(f"the report cannot be written to {target}: {error.strerror or error}")


app = single(launch)
