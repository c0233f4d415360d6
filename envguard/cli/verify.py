"""`envguard verify [PACKAGE…]`: installed files against RECORD, and RECORD against a second witness."""

from __future__ import annotations

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
    say_default,
)

if TYPE_CHECKING:
    from envguard.model.drift import VerifyReport
    from envguard.model.evidence import Unknown


def verify(
    packages: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PACKAGE]...", help="Only these; all where none is named.", show_default=False),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every file, and every archive in the cache.")] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="Of the machine that this bundle is from.")
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Installed files against their RECORD, and RECORD against a stamp and the cache.

    PACKAGE names what to look at; every package where none is named.
    """
    from envguard.cli.references import open_places
    from envguard.fingerprint.reference import no_live, stamps_of_newest
    from envguard.fingerprint.verify import with_unseen
    from envguard.fingerprint.verify_live import verify_live
    from envguard.report.screen import Screen
    from envguard.report.verify import render

    screen = Screen(json, quiet, verbose, color)
    if bundle is not None:
        report = _of_bundle(bundle, tuple(packages or ()), deep, python)
        screen.answer(report, render(report, verbose=verbose > 0, quiet=quiet))
        raise typer.Exit(report.exit_code())
    session = open_session(python, checkpoints)
    unseen: list[Unknown] = []
    stamps = stamps_of_newest(open_places(session, no_live), unseen)
    with screen.hashing() as progress:
        report = verify_live(
            session.project, session.python, tuple(packages or ()), deep, stamps, progress, screen.warn
        )
    report = with_unseen(report, unseen)
    say_default(session.python, report.kind, report.prefix, screen.warn)
    screen.answer(report, render(report, verbose=verbose > 0, quiet=quiet))
    raise typer.Exit(report.exit_code())


def _of_bundle(bundle: Path, packages: tuple[str, ...], deep: bool, python: str | None) -> VerifyReport:
    from envguard.acquire.gathering import open_bundle
    from envguard.errors import UsageError
    from envguard.fingerprint.bundled import verify_bundle

    if python is not None:
        raise UsageError("--python names an environment of this machine", "a bundle holds one environment, its own")
    if deep:
        raise UsageError("--deep hashes files, and a bundle holds none", "run `verify --deep` on the machine itself")
    return verify_bundle(open_bundle(str(bundle)), packages)


app = single(verify)
