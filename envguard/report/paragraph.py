"""Paragraphs that wrap under their own beginning and end no line in blanks, so that they can be pasted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_WORD = re.compile(r"\S+\s*")
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
    width = max(NARROWEST, console.width - indent)
    # The head of the first line may be wider than what the others are indented by.
    first = max(NARROWEST, console.width - begins.cell_len)
    for part in body.split("\n", allow_blank=True):
        for line in part.divide(_breaks(part.plain, width, first)):
            line.rstrip()
            begins.append_text(line)
            console.print(begins, soft_wrap=True)
            begins = Text(" " * indent)
        first = width


def _breaks(plain: str, width: int, first: int) -> list[int]:
    """Where lines begin. A word that is longer than a line, such as a path, is left whole for whoever copies it."""
    from rich.cells import cell_len

    found, column, room = list[int](), 0, first
    for word in _WORD.finditer(plain):
        if column and column + cell_len(word[0].rstrip()) > room:
            found.append(word.start())
            column, room = 0, width
        column += cell_len(word[0])
    return found
