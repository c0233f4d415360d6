"""`envguard schema KIND`: the JSON Schema of an answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from envguard.cli.app import single
from envguard.cli.options import ColorOption, JsonOption, QuietOption, VerboseOption


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What `--json` of that command prints, or `error`.")],
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Print the JSON Schema of an answer; it is one JSON object with `--json` and without.

    KIND is fingerprint (what `snapshot` prints), diff, verify, timeline, collect, restore, launch, log, vault, demo
    or error.
    """
    from envguard.model.schema import schema_text
    from envguard.report.screen import Screen

    Screen(json, quiet, verbose, color)  # for its complaint about a --color that is none
    sys.stdout.write(schema_text(kind))


app = single(schema)
