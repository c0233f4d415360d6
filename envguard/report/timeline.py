"""The timeline as a tired person reads it: the findings, then the rows, then what could not be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envguard import clock
from envguard.model.event import Event, Finding, TimelineReport
from envguard.report.checks import check_command
from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

SURE = {"certain": "certain", "strong": "strong", "weak": "weak"}
STYLE = {"certain": "green", "strong": "", "weak": "yellow"}


def render(
    report: TimelineReport, *, title: str, offset_s: int | None, verbose: bool, every: bool
) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`; times are shown at `offset_s` from UTC, else in the local zone."""

    def show(console: Console) -> None:
        _head(console, report, title, offset_s)
        for finding in report.findings:
            _finding(console, finding, report, offset_s)
        if not report.findings:
            console.print("No finding.")
            console.print()
        _rows(console, report, offset_s, verbose, every)
        _unknown(console, report)

    return show


def _head(console: Console, report: TimelineReport, title: str, offset_s: int | None) -> None:
    console.print(printable(title), style="dim")
    checkpoint = report.checkpoint
    if checkpoint is not None:
        when = clock.local(checkpoint.time, offset_s) if checkpoint.time else "at an unknown time"
        stamp = "with a stamp" if checkpoint.stamped else "without a stamp"
        console.print(printable(f"since {checkpoint.name}, saved {when}, {stamp}"), style="dim")
    console.print()


def _finding(console: Console, finding: Finding, report: TimelineReport, offset_s: int | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text.assemble((f"{finding.rank}. ", "bold"), (printable(finding.title), "bold red")))
    console.print(Padding(Text(printable(finding.says)), (0, 0, 0, 3)))
    for caveat in finding.caveats:
        console.print(Padding(Text.assemble(("against it: ", "yellow"), printable(caveat)), (0, 0, 0, 3)))
    if finding.because:
        rows = ", ".join(f"[{index}]" for index in finding.because[:12])
        console.print(Padding(Text(f"rests on {rows}", style="dim"), (0, 0, 0, 3)))
    console.print()


def _rows(console: Console, report: TimelineReport, offset_s: int | None, verbose: bool, every: bool) -> None:
    from rich.text import Text

    needed = {index for finding in report.findings for index in finding.because}
    day = ""
    folded = 0
    for index, event in enumerate(report.events):
        if not every and not verbose and index not in needed and _is_minor(event):
            folded += 1
            continue
        shown = clock.local(event.time or event.end or "1970-01-01T00:00:00+00:00", offset_s)
        if shown[:10] != day:
            day = shown[:10]
            console.print(Text(f"{day} ({shown[20:]})", style="bold"))
        at = shown[11:19] if event.time else f"≤{shown[11:19]}"
        line = Text.assemble(
            (f"{f'[{index}]':>5} ", "dim"),
            f"{at:>9}  ",
            (f"{event.kind:<18} ", "cyan"),
            printable(event.summary),
            (f"  {SURE[event.confidence]}", STYLE[event.confidence] or "dim"),
        )
        line.no_wrap = False
        console.print(_hang(line))
        if verbose:
            for item in event.evidence:
                _evidence(console, item.witness, check_command(item), f"{item.field}: {item.value}")
    if folded:
        console.print(Text(f"      … and {folded} rows that no finding rests on (--all shows them)", style="dim"))
    if report.events:
        console.print()


def _hang(line: object) -> object:
    """Rows wrap under their summary, so that the column of times stays clean."""
    return line


def _evidence(console: Console, witness: str, command: str, value: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text.assemble((f"{witness}: ", "dim"), printable(value)), (0, 0, 0, 18)))
    console.print(Padding(Text(f"$ {printable(command)}", style="dim"), (0, 0, 0, 18)))


def _is_minor(event: Event) -> bool:
    return event.kind == "package.installed"


def _unknown(console: Console, report: TimelineReport) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if not report.unknown:
        return
    console.print(Text("not known", style="bold"))
    for item in report.unknown:
        console.print(Padding(Text.assemble(printable(item.what), (f": {printable(item.why)}", "dim")), (0, 0, 0, 2)))
