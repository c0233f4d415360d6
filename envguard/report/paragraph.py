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
    for part in body.split("\n", allow_blank=True):
        for line in part.divide(_breaks(part.plain, width)):
            line.rstrip()
            begins.append_text(line)
            console.print(begins, soft_wrap=True)
            begins = Text(" " * indent)


def _breaks(plain: str, width: int) -> list[int]:
    """Where lines begin. A word that is longer than a line, such as a path, is left whole for whoever copies it."""
    from rich.cells import cell_len

    found, column = [], 0
    for word in _WORD.finditer(plain):
        if column and column + cell_len(word[0].rstrip()) > width:
            found.append(word.start())
            column = 0
        column += cell_len(word[0])
    return found
