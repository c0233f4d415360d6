"""Damage as a tired person reads it: by package, what happened to which file, and who says so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

from envguard.fingerprint.units import counted
from envguard.model.drift import Damage, VerifyReport
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console

# A wiped package has thousands of missing files, and the first few say it all.
_MOST_ROWS = 12


def render(report: VerifyReport, *, verbose: bool, quiet: bool) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`; `quiet` leaves the verdict alone."""

    def show(console: Console) -> None:
        from rich.text import Text

        style = {0: "bold green", 1: "bold red", 3: "bold yellow"}[report.exit_code()]
        console.print(Text(printable(verdict(report)), style=style))
        if quiet:
            return
        if report.prefix is not None:
            console.print(Text(printable(f"of {report.prefix}"), style="dim"), soft_wrap=True)
        for package, rows in groupby(report.problems, key=lambda row: row.package):
            _package(console, package, list(rows), verbose)
        _unverifiable(console, report, verbose)
        _litter(console, report, verbose)
        _scope(console, report)

    return show


def verdict(report: VerifyReport) -> str:
    """One line: sound, damaged and where, or not to be told."""
    if report.problems:
        owners = list(dict.fromkeys(row.package for row in report.problems))
        named = ", ".join(owners[:5]) + (f" and {len(owners) - 5} more" if len(owners) > 5 else "")
        return f"DAMAGED: {len(report.problems)} problem{'s' * (len(report.problems) > 1)} in {named}"
    if report.unverifiable:
        return f"NOT DETERMINED: no damage is known, but {len(report.unverifiable)} could not be verified"
    return f"SOUND: {counted(report.checked, 'package')} as installed"


def _package(console: Console, package: str, rows: list[Damage], verbose: bool) -> None:
    from rich.text import Text

    console.print()
    console.print(Text(printable(package), style="bold"))
    shown = rows if verbose else rows[:_MOST_ROWS]
    for row in shown:
        console.print(Text.assemble((f"  {row.kind} ", "red"), printable(row.path)), soft_wrap=True)
        if row.detail:
            paragraph(console, row.detail, indent=6)
        values = f"expected {row.expected or '—'}, got {row.got or '—'}; by {row.witness}"
        if verbose:
            console.print(Text(printable(f"      {values}"), style="dim"), soft_wrap=True)
        if row.diff:
            _diff(console, row.diff)
    if len(rows) > len(shown):
        paragraph(console, f"and {len(rows) - len(shown)} more (-v shows them)", indent=2, style="dim")


def _unverifiable(console: Console, report: VerifyReport, verbose: bool) -> None:
    """By reason: a distribution's Python has hundreds of packages that share one."""
    from rich.text import Text

    by_reason: dict[str, list[str]] = {}
    for item in report.unverifiable:
        by_reason.setdefault(item.why, []).append(item.package)
    for why, names in by_reason.items():
        rest = "" if verbose or len(names) <= _MOST_ROWS else f" and {len(names) - _MOST_ROWS} more (-v)"
        named = ", ".join(names if verbose else names[:_MOST_ROWS]) + rest
        paragraph(console, f"{named}: {why}", head=Text("unverifiable ", "yellow"), indent=6)


def _litter(console: Console, report: VerifyReport, verbose: bool) -> None:
    if not report.litter:
        return
    paths = [item.path for item in report.litter]
    shown = paths if verbose else paths[:_MOST_ROWS]
    rest = "" if len(shown) == len(paths) else f" and {len(paths) - len(shown)} more (-v)"
    says = f"{counted(len(paths), 'file')} of no package that nothing imports: {', '.join(shown)}{rest}"
    paragraph(console, says, style="dim")


def _diff(console: Console, diff: str) -> None:
    from rich.text import Text

    for line in diff.splitlines():
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        console.print(Text(printable(f"      {line}"), style=style), soft_wrap=True)


def _scope(console: Console, report: VerifyReport) -> None:
    """What this pass could see: an edit that keeps size and time is found by reading alone."""

    console.print()
    says = f"{counted(report.checked, 'package')}, {report.files:,} files: {report.hashed:,} by content"
    rest = report.files - report.hashed
    if rest > 0:
        says += f", {rest:,} by size and time (an edit that keeps both shows only with --deep)"
    paragraph(console, says, style="dim")
