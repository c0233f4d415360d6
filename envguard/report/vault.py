"""The vault as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envguard import clock
from envguard.model.action import VaultReport
from envguard.report.errors import printable
from envguard.report.restore import size

if TYPE_CHECKING:
    from rich.console import Console

    from envguard.restore.collecting import Collected


def render(report: VaultReport, done: Collected | None) -> Callable[[Console], None]:
    """A table of what is kept; after a collection, what went."""

    def draw(console: Console) -> None:
        from rich.table import Table

        if done is not None:
            for entry in done.gone:
                console.print(
                    printable(f"dropped {entry.name} ({size(entry.bytes)}, stored {clock.local(entry.stored)})")
                )
            console.print(f"freed {size(done.freed)}")
            if done.over:
                console.print(f"what stamps refer to is {size(done.over)} over the bound, and is kept")
        if not report.entries:
            console.print("the vault is empty: `envguard snapshot --keep` fills it")
            return
        table = Table(box=None, pad_edge=False)
        for heading in ("kind", "name", "build", "stored", "referenced by"):
            table.add_column(heading, overflow="fold")
        table.add_column("size", justify="right")
        for entry in report.entries:
            who = ", ".join(entry.referenced_by[:3]) + (" …" if len(entry.referenced_by) > 3 else "")
            stored = clock.local(entry.stored)[:10]  # the day: a time would make three lines of a row
            row = (entry.kind, entry.name, entry.build[:12], stored, who or "nothing")
            table.add_row(*(printable(word) for word in row), size(entry.bytes))
        console.print(table)

    return draw
