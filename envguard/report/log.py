"""The log as a list: one line an entry, oldest first."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from envguard import clock
from envguard.model.action import LogEntry, LogReport
from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

STYLE = {"checkpoint": "bold", "run": "cyan", "restore": "magenta", "rollback": "magenta", "snapshot": ""}


def render(report: LogReport, *, verbose: bool) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`; `verbose` adds paths."""

    def show(console: Console) -> None:
        from rich.text import Text

        if not report.entries:
            console.print("Nothing is recorded yet: no checkpoint is found, no snapshot was taken, nothing was run.")
        widest = max((len(printable(entry.ref)) for entry in report.entries), default=0)
        for entry in report.entries:
            when = clock.local(entry.time) if entry.time else "at an unknown time"
            identity = entry.id or ("no stamp" if entry.kind == "checkpoint" else "")
            line = Text.assemble(
                (f"{when:<26}  ", "dim"),
                (f"{entry.kind:<10}  ", STYLE[entry.kind]),
                (f"{printable(entry.ref):<{widest}}  ", "bold"),
                (identity, "yellow" if identity == "no stamp" else "dim"),
            )
            if verbose and entry.path:
                line.append(f"  {printable(entry.path)}", style="dim")
            console.print(line, soft_wrap=True)
            if entry.kind == "run":
                console.print(Text(f"{'':<40}{_run(entry)}", style="dim"), soft_wrap=True)

    return show


def _run(entry: LogEntry) -> str:
    """How a run ended, after how long, against what, and what it was."""
    ended = "no end on record" if entry.code is None else f"exit {entry.code}"
    after = f" after {clock.span(entry.duration_s)}" if entry.duration_s is not None else ""
    against = f", against {entry.reference}" if entry.reference else ""
    return f"{ended}{after}{against}: {shlex.join(entry.command or ())}"
