"""`envguard collect -o FILE`: the evidence of a machine in one file."""

from __future__ import annotations

from collections.abc import Callable
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
    from envguard.acquire.gathering import Gathered


def collect(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the bundle goes.")],
    via: Annotated[
        str | None,
        typer.Option("--via", metavar="PREFIX", help="Gather on the machine that this reaches: 'ssh host', …"),
    ] = None,
    chdir: Annotated[
        str | None, typer.Option("--chdir", metavar="DIR", help="With --via: the folder to start from over there.")
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Gather the evidence of a machine into one file that `timeline --bundle` and `diff` read anywhere."""
    from envguard.errors import InputError, UsageError
    from envguard.model.action import CollectReport
    from envguard.report.collect import render
    from envguard.report.screen import Screen
    from envguard.report.waiting import waiting
    from envguard.state.files import write_atomically

    screen = Screen(json, quiet, verbose, color)
    if chdir is not None and via is None:
        raise UsageError("--chdir goes with --via", "here, start envguard in the folder itself")
    with waiting(screen) as progress:
        gathered = (
            _here(python, checkpoints, progress) if via is None else _there(via, chdir, python, checkpoints, progress)
        )
    try:
        write_atomically(output, gathered.data, 0o600)
    except OSError as error:
        raise InputError(
            f"{output} cannot be written: {error.strerror or error}", "`-o` names a file in a folder that is there"
        ) from error
    for item in gathered.left_out:
        screen.warn(f"{item.witness}: {item.why}")
    report = CollectReport(
        bundle=str(output.absolute()),
        evidence=gathered.evidence,
        unavailable=(*gathered.left_out, *gathered.seen.unavailable),
    )
    screen.answer(report, render(report, len(gathered.data), gathered.seen, verbose=verbose > 0))


def _here(python: str | None, checkpoints: list[str] | None, progress: Callable[[str], None]) -> Gathered:
    from envguard.acquire.gathering import gather
    from envguard.acquire.seam.host import LiveHost
    from envguard.cli.timeline import request_of
    from envguard.fingerprint.bundled import QUESTIONS

    return gather(LiveHost(), request_of(open_session(python, checkpoints)), QUESTIONS, progress)


def _there(
    via: str, chdir: str | None, python: str | None, checkpoints: list[str] | None, progress: Callable[[str], None]
) -> Gathered:
    from envguard.acquire.ahead import ask_ahead
    from envguard.acquire.gathering import gather
    from envguard.acquire.seam.remote import RemoteHost, remote_request
    from envguard.fingerprint.bundled import QUESTIONS

    # The project's own configuration lies over there and is read there; only names come from this command line.
    with RemoteHost(via, chdir) as host:
        request = remote_request(host, python, checkpoints)
        progress("site-packages and caches over there")
        ask_ahead(host, request)
        return gather(host, request, QUESTIONS, progress)


app = single(collect)
