"""The restore's answer as text, and its progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envguard.fingerprint.units import counted, some_of
from envguard.model.action import RestoreReport, Source
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


MOST_NAMED = 4
_SOURCES: dict[Source, str] = {
    "pylock": "uv cache",
    "rebuilt-wheel": "unpacked copy, rebuilt",
    "vault": "vault",
    "find-links": "wheel",
    "fetched": "fetched",
}
"""Where a build comes from, as people call it."""


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
    """Text for a terminal: how it ended, the plan, what is in its way, and what to know."""

    def draw(console: Console) -> None:
        paragraph(console, Text(printable(_verdict(report, dry_run)), style="bold"))
        if report.plan:
            _plan(console, report)
        obstacles = (("missing", report.missing), ("poisoned", report.poisoned), ("refused", report.refused))
        for title, found in obstacles:
            for obstacle in found:
                paragraph(console, str(obstacle), head=f"{title}: ", indent=6, style="red")
        for item in report.unknown:
            paragraph(console, f"{item.what}: {item.why}", head="undetermined: ", indent=6, style="yellow")
        if report.differs:
            says = f"{some_of(report.differs)}, which the restore has no part in"
            paragraph(console, says, head="changed meanwhile: ", indent=6, style="yellow")
        for note in report.notes:
            paragraph(
                console,
                note,
                head="note: ",
                indent=6,
                style="yellow" if "will" in note or "is broken" in note else "",
            )

    return draw


def _plan(console: Console, report: RestoreReport) -> None:
    """The table, without the blanks that rich fills its cells with: they would be pasted too."""
    console.print(Text(_title(report), style="italic"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("package", "from", "to", "source"):
        table.add_column(heading, overflow="fold")
    table.add_column("size", justify="right")
    for item in report.plan:
        table.add_row(
            printable(item.package),
            printable(item.from_ or "not installed"),
            printable(item.to or "removed"),
            _SOURCES[item.source] if item.source else "",
            size(item.bytes),
        )
    for segments in console.render_lines(table, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _title(report: RestoreReport) -> str:
    """Which environment goes where: with two of them the wrong one may be active."""
    of = f" of {printable(report.environment)}" if report.environment else ""
    return f"restore{of} to {printable(report.reference)}"


def _verdict(report: RestoreReport, dry_run: bool) -> str:
    if report.applied and report.verified:
        return f"restored and verified, file by file: {_named(report)}"
    if report.applied and report.unmet:
        return f"restored: {_named(report)}; not restored: {some_of(report.unmet)}"
    if report.rolled_back:
        if report.differs:
            return f"rolled back; {counted(len(report.differs), 'path')} changed meanwhile, and not by the restore"
        return "rolled back: everything is as it was before"
    if report.missing:
        return "not possible from what is on this machine; nothing was changed"
    if report.refused:
        return "refused as things are; nothing was changed"
    if report.unknown:
        return "NOT DETERMINED: what is installed could not all be held against the reference; nothing was changed"
    if report.unmet and not report.plan:
        return f"nothing can be done: {some_of(report.unmet)}: no wheel brings back what is built from a folder"
    if not report.plan and report.caches:
        caches = counted(len(report.caches), "compile cache")
        filled = f"{caches} would be filled" if dry_run else f"{caches} filled"
        packages = "every package is already of its build" if report.verified else "no package is changed"
        return f"{filled}: {some_of([cache.path for cache in report.caches])}; {packages}"
    if not report.plan:
        return (
            "nothing to do: every package that was asked for is already of that build, file by file"
            if report.verified
            else "no step is known to be needed: the notes say what is not proved"
        )
    return f"would be changed: {_named(report)}" if dry_run else "nothing was changed"


def _named(report: RestoreReport) -> str:
    """What the packages are after it, the first ones by name."""
    told = [f"{item.package} {item.to or 'removed'}" for item in report.plan[:MOST_NAMED]]
    rest = len(report.plan) - len(told)
    return ", ".join(told) + (f" and {counted(rest, 'package')} more" if rest else "")


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
