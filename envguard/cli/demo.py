"""`envguard demo`: the eleven-minute gap, replayed in a throw-away directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from envguard.cli.app import single
from envguard.cli.options import ColorOption, JsonOption, QuietOption, VerboseOption


def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Play in DIR (new or empty) and leave it there.")
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Replay the eleven-minute gap in a throw-away directory, for real, in about a minute."""
    from envguard.demo.show import Show
    from envguard.demo.stage import Stage
    from envguard.errors import UsageError
    from envguard.report.screen import Screen

    screen = Screen(json, quiet, verbose, color)
    if keep is not None and keep.exists() and (not keep.is_dir() or os.listdir(keep)):
        raise UsageError(f"{keep} is not an empty directory", "name one that does not exist yet")
    root = Path(keep.absolute() if keep is not None else tempfile.mkdtemp(prefix="envguard-demo-"))
    stage = Stage(root)
    try:
        show = Show(stage, screen)
        report = show.play()
        if keep is not None:
            show.tell(f"Left for you to look at: cd {stage.project}")
    finally:
        if keep is None:
            stage.remove()
    if screen.json:
        screen.answer(report, lambda console: None)
    raise typer.Exit(0 if report.ok else 1)


app = single(demo)
