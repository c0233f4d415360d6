"""What a bundle holds, in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envguard.acquire.survey import Survey
from envguard.fingerprint.units import counted
from envguard.model.action import CollectReport
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console


def render(report: CollectReport, size: int, seen: Survey, verbose: bool) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`."""

    def show(console: Console) -> None:
        console.print(printable(report.bundle), style="bold", soft_wrap=True)
        holds = (
            (len(seen.installs), "package"),
            (len(seen.archive_uses), "cached build"),
            (len(seen.checkpoints.found), "checkpoint"),
            (sum(map(len, seen.train_logs)), "log line"),
        )
        told = [f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in holds]
        told.append(f"{len(seen.processes)} process{'es' * (len(seen.processes) != 1)}")
        paragraph(console, f"{report.evidence:,} pieces of evidence, {size / 1e6:.1f} MB: {', '.join(told)}")
        if seen.unknown:
            what = counted(len(seen.unknown), "thing")
            console.print(f"{what} could not be seen; `envguard timeline --bundle FILE` says what")
        if report.unavailable:
            if verbose:
                for item in report.unavailable:
                    console.print(printable(f"  no {item.witness}: {item.why}"), style="dim")
            else:
                names = ", ".join(item.witness for item in report.unavailable)
                paragraph(console, f"not available here (-v says why): {names}", style="dim")

    return show
