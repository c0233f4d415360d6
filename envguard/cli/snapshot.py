"""`envguard snapshot`: fingerprint the environment, keep it in the journal, stamp a checkpoint with it."""

from __future__ import annotations

import os
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
from envguard.errors import InputError, NotDetermined, UsageError

if TYPE_CHECKING:
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.screen import Screen


def snapshot(
    into: Annotated[
        str | None, typer.Option("--into", metavar="CKPT", help="Stamp this checkpoint (a path or a name).")
    ] = None,
    retrospective: Annotated[
        bool, typer.Option("--retrospective", help="Stamp an older checkpoint too, as no evidence of the past.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the fingerprint there, as JSON.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every file of every package.")] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Import torch once in the environment's own interpreter, for run-time facts."),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the installed builds and the compile caches in the vault.")
    ] = False,
    lock: Annotated[
        str | None, typer.Option("--lock", metavar="FILE", help="Write a lock of the installed builds (pylock.toml).")
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Fingerprint the environment and print a summary."""
    from envguard.cli.references import newest_stamp, open_places
    from envguard.fingerprint.determined import undetermined
    from envguard.fingerprint.reference import no_live
    from envguard.fingerprint.snapshot import take_live
    from envguard.model.identity import sealed
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    session = open_session(python, checkpoints)
    if retrospective and into is None:
        raise UsageError("--retrospective is about a checkpoint", "name it with `--into CKPT`")
    target = _checkpoint(into, session) if into is not None else None
    witnesses = newest_stamp(open_places(session, no_live), screen)
    with screen.hashing() as progress:
        fingerprint = take_live(
            session.project,
            session.python,
            deep=deep,
            probe=probe,
            own_pids=frozenset({os.getpid(), os.getppid()}),
            progress=progress,
            warn=screen.warn,
            witnesses=witnesses,
        )
    if target is not None:
        from envguard.stamping import stamp_live

        fingerprint = stamp_live(target, fingerprint, retrospective)
    fingerprint = sealed(fingerprint)
    if output is not None:
        _write(output, fingerprint)
    if lock is not None:
        from envguard.cli.keeping import write_lock

        write_lock(session, lock, fingerprint, screen)
    if keep:
        from envguard.cli.keeping import keep_builds

        keep_builds(session, fingerprint, screen)
    _keep(session, fingerprint, target, screen)
    _show(screen, fingerprint, target)
    if undetermined(fingerprint):
        raise typer.Exit(NotDetermined.code)


def _checkpoint(into: str, session: Session) -> str:
    """The path of the checkpoint that was named: a path that is there, else a name looked up as any REF is."""
    path = session.start / Path(into).expanduser()
    if into and path.exists():
        from envguard.acquire.seam.host import LiveHost
        from envguard.stamping import to_stamp

        return to_stamp(LiveHost(), str(path))
    from envguard.cli.references import open_places
    from envguard.fingerprint.reference import resolve

    def no_live() -> Fingerprint:
        raise UsageError("--into takes a checkpoint, not `live`", "name the checkpoint to stamp")

    found = resolve(into, open_places(session, no_live)).checkpoint
    if found is None:
        raise UsageError(f"--into {into} names no checkpoint", "name a checkpoint's path, or its name (`step_690`)")
    return found.path


def _write(output: str, fingerprint: Fingerprint) -> None:
    from envguard.report.screen import encode
    from envguard.state.files import write_atomically

    try:
        write_atomically(output, encode(fingerprint).encode() + b"\n")
    except OSError as error:
        raise InputError(
            f"{output} cannot be written: {error.strerror or error}", "`-o` names a file in a folder that is there"
        ) from error


def _keep(session: Session, fingerprint: Fingerprint, target: str | None, screen: Screen) -> None:
    """The journal holds the whole fingerprint: `diff @1` compares with it."""
    from envguard.state import journal

    try:
        journal.append_snapshot(session.project.state, fingerprint, target)
    except OSError as error:
        screen.warn(f"the journal was not written: {error.strerror or error}: {session.project.state}")


def _show(screen: Screen, fingerprint: Fingerprint, target: str | None) -> None:
    from envguard.report.snapshot import render

    if screen.quiet and not screen.json:
        print(fingerprint.id)
        return
    screen.answer(fingerprint, lambda console: render(console, fingerprint, target, screen.verbose))


app = single(snapshot)
