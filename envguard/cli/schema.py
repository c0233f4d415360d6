"""`envguard schema KIND`: the JSON Schema of an answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from envguard.cli.app import single


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="fingerprint, diff, timeline, …")],
) -> None:
    """Print the JSON Schema of an answer."""
    from envguard.model.schema import schema_text

    sys.stdout.write(schema_text(kind))


app = single(schema)
