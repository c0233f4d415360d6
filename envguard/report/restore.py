"""The restore's answer as text, and its progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envguard.fingerprint.units import counted
from envguard.model.action import RestoreReport
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


def size(count: int | None) -> str:
    """A number of bytes as a person reads it."""
    if count is None:
        return ""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def render(report: RestoreReport, dry_run: bool) -> Callable[[Console], None]:
    """Text for a terminal: the plan, what is in its way, what to know, and how it ended."""

    def draw(console: Console) -> None:
        if report.plan:
            console.print(_plan(report))
        for title, obstacles in (("missing", report.missing), ("poisoned", report.poisoned)):
            for obstacle in obstacles:
                where = f" {obstacle.path}" if obstacle.path else ""
                says = f"{obstacle.package}{where}: {obstacle.why}"
                paragraph(console, says, head=f"{title}: ", indent=6, style="red")
        for note in report.notes:
            paragraph(console, note, head="note: ", indent=6, style="yellow" if "will" in note else "")
        console.print(Text(_verdict(report, dry_run), style="bold"))

    return draw


def _plan(report: RestoreReport) -> Table:
    table = Table(box=None, pad_edge=False, title=f"restore to {printable(report.reference)}", title_justify="left")
    for heading in ("package", "from", "to", "source"):
        table.add_column(heading, overflow="fold")
    table.add_column("size", justify="right")
    for item in report.plan:
        table.add_row(
            printable(item.package),
            printable(item.from_ or "not installed"),
            printable(item.to or "removed"),
            item.source or "",
            size(item.bytes),
        )
    return table


def _verdict(report: RestoreReport, dry_run: bool) -> str:
    if report.applied and report.verified:
        return f"restored and verified: {counted(len(report.plan), 'package')}, file by file"
    if report.rolled_back:
        return "rolled back: everything is as it was before"
    if report.missing:
        return "not possible from what is on this machine; nothing was changed"
    if not report.plan:
        return "nothing to do: every package that was asked for is already of that build"
    return "nothing was changed (dry run)" if dry_run else "nothing was changed"


class ProgressBar:
    """A bar for each phase, in bytes, on stderr where that is a terminal."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.task: TaskID | None = None

    def begin(self, phase: str, total: int) -> None:
        self.end()
        self.task = self.bar.add_task(phase, total=total or None)

    def advance(self, count: int) -> None:
        if self.task is not None:
            self.bar.advance(self.task, count)

    def end(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None


@contextmanager
def progress_bar(console: Console, shown: bool) -> Iterator[ProgressBar]:
    """Shows a bar while the block runs; without a terminal, or where it is not wanted, nothing is drawn."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
    with bar:
        yield ProgressBar(bar)
