"""Waivers as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envguard import clock
from envguard.model.action import WaiversReport
from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


def render(report: WaiversReport) -> Callable[[Console], None]:
    """A table of waivers, after a line on those that were revoked."""

    def draw(console: Console) -> None:
        from rich.table import Table

        if report.revoked:
            console.print(f"{report.revoked} revoked: the next launch holds that against the start again")
        if not report.waivers:
            console.print("no waiver is in force")
            return
        table = Table(box=None, pad_edge=False)
        for heading in ("waived", "until", "given", "by", "because"):
            table.add_column(heading, overflow="fold")
        for row in report.waivers:
            waived = row.facet if row.subject is None else f"{row.facet}:{row.subject}"
            until = clock.local(row.until)[:16] if row.until else "its launch"
            words = (waived, until, clock.local(row.given)[:16], row.author, row.because)
            table.add_row(*(printable(word) for word in words), style="" if row.in_force else "dim")
        console.print(table)

    return draw
