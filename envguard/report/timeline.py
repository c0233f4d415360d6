"""The timeline as a tired person reads it: the findings, then the rows, then what could not be seen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from envguard import clock
from envguard.fingerprint.units import counted
from envguard.model.event import Event, Finding, TimelineReport
from envguard.report.checks import check_command
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLE = {"certain": "green", "strong": "default", "weak": "yellow"}
WIDE = 100
"""Columns from which on a row shows its kind: below, the summary needs the room."""
MINOR = ("package.installed", "code.commit", "system.boot", "snapshot.taken", "compile_cache.written",
         "config.changed", "run.started", "run.ended", "system.packages")  # fmt: skip
MOST_ROWS = 60
"""Rows shown without --all; those that a finding rests on come on top of it."""


def render(
    report: TimelineReport,
    *,
    title: str,
    offset: Callable[[float], int] | None,
    verbose: bool,
    every: bool,
    quiet: bool = False,
) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`; `quiet` leaves how many findings there are and a line of each.

    `offset` gives the machine's offset from UTC (s) at a time; None: ours.
    """

    def show(console: Console) -> None:
        view = View(console, report, offset, verbose, every)
        view.head()
        if quiet:
            view.titles()
            return
        view.line(title, "dim")
        console.print()
        view.findings()
        view.rows()
        view.unknown()

    return show


class View:
    """One rendering: a console, a report, and how much of it to show."""

    def __init__(
        self,
        console: Console,
        report: TimelineReport,
        offset: Callable[[float], int] | None,
        verbose: bool,
        every: bool,
    ) -> None:
        self.console = console
        self.report = report
        self.offset = offset
        self.verbose = verbose
        self.every = every

    def local(self, text: str) -> str:
        """`2026-05-18 20:41:07 +02:00`, in the machine's own zone."""
        offset = self.offset(clock.seconds(text)) if self.offset is not None else None
        return clock.local(text, offset)

    def told(self, text: str) -> str:
        """A sentence, its times in the same zone as the rows."""
        return printable(clock.told(text, self.local))

    def indented(self, text: Text | str, by: int, style: str = "") -> None:
        """A paragraph that wraps under its own beginning."""
        paragraph(self.console, text, indent=by, style=style)

    def line(self, text: str, style: str = "") -> None:
        """One line that is never wrapped by us, so that a command can be copied."""
        from rich.text import Text

        self.console.print(Text(printable(text), style=style), soft_wrap=True)

    def head(self) -> None:
        """How much there is first, then of what: a tired reader may stop after one line."""
        checkpoint, count = self.report.checkpoint, len(self.report.findings)
        says = f"{counted(count, 'finding')}" if count else "No finding"
        if checkpoint is not None:
            when = self.local(checkpoint.time) if checkpoint.time else "at an unknown time"
            stamp = "with a stamp" if checkpoint.stamped else "without a stamp"
            unread = self.report.stamp_unread()
            if unread is not None:
                stamp = f"with a stamp that {unread.partition(':')[0]}"
            says += f" since {checkpoint.name}, saved {when}, {stamp}"
        if not count and self.report.undetermined():
            # A stamp that cannot be read leaves other witnesses; a moment out of their reach leaves nothing.
            beyond = any(item.code in ("since", "stamp") for item in self.report.unknown)
            lacks = (
                "what changed is not known"
                if beyond and not self.report.stamp_unread()
                else "not everything could be read"
            )
            says += f", but {lacks} (below)"
        self.line(says, "bold")

    def titles(self) -> None:
        for finding in self.report.findings:
            self._title(finding)

    def findings(self) -> None:
        for finding in self.report.findings:
            self._finding(finding)

    def _title(self, finding: Finding) -> None:
        from rich.text import Text

        self.console.print(Text.assemble((f"{finding.rank}. ", "bold"), (printable(finding.title), "bold red")))

    def _finding(self, finding: Finding) -> None:
        from rich.text import Text

        self._title(finding)
        self.indented(self.told(finding.says), 3)
        for caveat in finding.caveats:
            self.indented(Text.assemble(("but: ", "yellow"), self.told(caveat)), 3)
        if finding.because:
            shown = " ".join(f"[{index}]" for index in finding.because[:12])
            self.indented(f"rests on {shown}", 3, "dim")
        self.console.print()

    def rows(self) -> None:
        report = self.report
        needed = {index for finding in report.findings for index in finding.because}
        major = [i for i, event in enumerate(report.events) if event.kind not in MINOR]
        shown = set(range(len(report.events))) if self.every else needed | set(major[-MOST_ROWS:])
        day = ""
        for index, event in enumerate(report.events):
            if index not in shown:
                continue
            at = self.local(event.time or event.end or report.events[0].time or "1970-01-01T00:00:00+00:00")
            heading = f"{at[:10]} ({at[20:]})"
            if heading != day:
                day = heading
                self.line(day, "bold")
            self._row(index, event, self._clock(event, at))
        hidden = len(report.events) - len(shown)
        if hidden:
            rows = "row" if hidden == 1 else "rows"
            self.line(f"  and {hidden} more {rows} that no finding rests on (--all)", "dim")
        if report.events:
            self.console.print()

    def _clock(self, event: Event, at: str) -> str:
        """`20:52:11`, an interval as `20:59–23:20` or `20:52:11–14`, `≤` where only the bound is known, `+1` for the
        next day. How long an install took is no interval."""
        if event.time is None:
            return f"≤{at[11:19]}"
        end = self.local(event.end) if event.end is not None else at
        apart = clock.seconds(event.end or event.time) - clock.seconds(event.time)
        if apart < 1 or event.kind == "process.stale" or (apart < 60 and event.transaction is not None):
            return at[11:19]
        if at[:16] == end[:16]:
            return f"{at[11:19]}–{end[17:19]}"
        days = (datetime.fromisoformat(end[:10]) - datetime.fromisoformat(at[:10])).days
        return f"{at[11:16]}–{end[11:16]}" + (f"+{days}" if days else "")

    def _row(self, index: int, event: Event, at: str) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=max(5, len(f"[{len(self.report.events)}]")), justify="right", style="dim")
        table.add_column(width=13, justify="right")
        cells = [Text(f"[{index}]"), Text(at)]
        if self.console.width >= WIDE:
            table.add_column(width=21, style="cyan")
            cells.append(Text(event.kind))
        table.add_column(ratio=1)
        table.add_column(width=7, style=STYLE[event.confidence])
        table.add_row(*cells, Text(self.told(event.summary)), Text(event.confidence))
        self.console.print(table)
        if self.verbose:
            if event.end != event.time and event.end is not None:
                self.line(f"{'':16}until {self.local(event.end)}", "dim")
            for item in event.evidence:
                self.line(f"{'':16}{item.witness}: {item.field} = {item.value}")
                self.line(f"{'':16}$ {check_command(item)}", "dim")

    def unknown(self) -> None:
        missing = [item for item in self.report.unknown if item.code == "witness"]
        rest = [item for item in self.report.unknown if item.code != "witness"]
        if rest:
            self.line("could not be seen", "bold")
            for item in rest if self.every or self.verbose else rest[:8]:
                self.indented(self.told(f"{item.what}: {item.why}"), 2)
            if len(rest) > 8 and not (self.every or self.verbose):
                self.line(f"  and {len(rest) - 8} more (--all)", "dim")
        if missing:
            names = [item.what.removeprefix("witness ") for item in missing]
            if self.verbose:
                for name, item in zip(names, missing, strict=True):
                    self.indented(f"no {name}: {item.why}", 2, "dim")
            else:
                self.indented(f"not available here (-v says why): {', '.join(names)}", 0, "dim")


def write_page(path: Path, show: Callable[[Console], None], title: str) -> None:
    """The same view as a page of its own. Raises `InputError` where it cannot be written."""
    import io

    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME

    from envguard.errors import InputError
    from envguard.state.files import write_atomically

    console = Console(
        record=True, width=140, file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False
    )
    show(console)
    page = console.export_html(theme=DEFAULT_TERMINAL_THEME, inline_styles=True, code_format=_page(title))
    try:
        write_atomically(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}", "`--html` names a file in a folder that is there"
        ) from error


def _page(title: str) -> str:
    import html

    named = html.escape(printable(title)).replace("{", "{{").replace("}", "}}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>envguard timeline: {named}</title>\n"
        "<style>body {{ background: {background}; color: {foreground}; margin: 2em; }}\n"
        "pre {{ font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.35; }}</style></head>\n"
        "<body><pre><code>{code}</code></pre></body></html>\n"
    )
