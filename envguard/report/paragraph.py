"""Paragraphs that wrap under their own beginning and end no line in blanks, so that they can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NARROWEST = 24
"""Columns that a paragraph gets at least, however deep it stands."""


def paragraph(console: Console, text: Text | str, *, head: Text | str = "", indent: int = 0, style: str = "") -> None:
    """Prints `head` and then `text`, wrapped to the console; every further line begins `indent` columns in.

    Strings are made printable and get `style`; whoever passes a `Text` has done so.
    """
    from rich.text import Text

    body = Text(printable(text), style=style) if isinstance(text, str) else text
    begins = Text(printable(head), style=style) if isinstance(head, str) else head
    begins.append(" " * max(0, indent - begins.cell_len))
    for line in body.wrap(console, max(NARROWEST, console.width - indent)):
        line.rstrip()
        begins.append_text(line)
        console.print(begins, soft_wrap=True)
        begins = Text(" " * indent)
