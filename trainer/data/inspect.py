"""``data inspect``: what the training text is made of."""

from __future__ import annotations

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trainer.config import Config
from trainer.data import Dataset, open_dataset
from trainer.targets import open_tokenizer

_BAR = 40  # characters of the longest bar
_SHOWN = 20  # bad lines named on the screen; all of them are in the cache's meta.json


def run(config: Config, console: Console | None = None) -> None:
    """Prints counts, a histogram of lengths, how rows are filled, and the bad lines."""
    dataset = open_dataset(config.data, open_tokenizer(config.target))
    (console or Console()).print(describe(dataset))


def describe(dataset: Dataset) -> Group:
    """The same, to print."""
    return Group(_counts(dataset), _lengths(dataset), *_bad_lines(dataset))


def _counts(dataset: Dataset) -> Table:
    report = dataset.report
    counts = report.counts
    table = Table(title="Data", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in (
        ("lines", f"{counts.lines:,}"),
        ("documents", f"{counts.documents:,}"),
        ("bad lines", f"{len(report.bad_lines):,}"),
        ("without two labels in a row (dropped)", f"{counts.untrainable:,}"),
        ("cut at the greatest length", f"{counts.truncated:,}"),
        ("tokens", f"{counts.tokens:,}"),
        ("labels", f"{counts.supervised:,} ({counts.supervised / counts.tokens:.1%})"),
        ("rows of epoch 0", f"{report.rows:,} of {', '.join(map(str, dataset.lengths))} tokens"),
        ("packing efficiency", f"{report.efficiency:.1%}"),
        ("digest", dataset.digest[:16]),
    ):
        table.add_row(name, value)
    return table


def _lengths(dataset: Dataset) -> Table:
    lengths = dataset.cache.lengths
    edges = [1]
    while edges[-1] <= int(lengths.max()):
        edges.append(edges[-1] * 2)
    number, _ = np.histogram(lengths, bins=np.array(edges))
    table = Table(title="Document lengths in tokens")
    table.add_column("from", justify="right")
    table.add_column("to", justify="right")
    table.add_column("documents", justify="right")
    table.add_column("")
    for low, high, count in zip(edges[:-1], edges[1:], number.tolist(), strict=True):
        if count:
            table.add_row(str(low), str(high - 1), f"{count:,}", "█" * max(1, round(_BAR * count / number.max())))
    return table


def _bad_lines(dataset: Dataset) -> list[Table | Text]:
    bad = dataset.report.bad_lines
    if not bad:
        return []
    table = Table(title="Bad lines")
    table.add_column("where", overflow="fold")
    table.add_column("why", overflow="fold")
    for line in bad[:_SHOWN]:
        table.add_row(Text(f"{line.file}:{line.line}"), Text(line.reason))
    more = len(bad) - _SHOWN
    return [table, Text(f"and {more} more, all in {dataset.cache.folder / 'meta.json'}")] if more > 0 else [table]
