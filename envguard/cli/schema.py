"""`envguard schema KIND`: the JSON Schema of an answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from envguard.cli.app import single
from envguard.cli.options import ColorOption, JsonOption, QuietOption, VerboseOption


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A command's answer, `error`, or `config`.")],
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = "auto",
) -> None:
    """Print the JSON Schema of an answer; it is one JSON object with `--json` and without.

    KIND is fingerprint (what `snapshot` prints), diff, verify, timeline, collect, restore, launch, log, vault,
    waivers, demo or error; or config, for what `envguard.toml` may hold.
    """
    from envguard.model.schema import schema_text
    from envguard.report.screen import Screen

    Screen(json, quiet, verbose, color)  # for its complaint about a --color that is none
    if kind == "config":
        import json as encoder

        from envguard.config import config_schema

        sys.stdout.write(encoder.dumps(config_schema(), indent=2) + "\n")
    else:
        sys.stdout.write(schema_text(kind))


app = single(schema)
