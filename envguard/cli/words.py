"""What people type by habit, as the command line that they mean: pure, before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

_FLAGS = ("--json", "-q", "--quiet", "-v", "-vv", "--verbose")
"""Options of every command that people write before it, as with git and uv."""
_LAST = re.compile(r"-(\d+)")


def as_meant(words: Sequence[str], commands: Container[str]) -> list[str]:
    """The words of the command line, rewritten where one form alone can be meant.

    `help`, `help diff` → `--help`, `diff --help`; `-V` → `--version`; `--json diff` → `diff --json`;
    `log -5` → `log --last 5`. What follows `--` belongs to somebody else and is left alone.
    """
    end = list(words).index("--") if "--" in words else len(words)
    own, rest = list(words[:end]), list(words[end:])
    if own[:1] == ["-V"]:
        own[0] = "--version"
    if own[:1] == ["help"]:
        own = [*own[1:], "--help"]
    early: list[str] = []
    while own and (own[0] in _FLAGS or own[0] == "--color" or own[0].startswith("--color=")):
        count = 2 if own[0] == "--color" else 1
        early += own[:count]
        del own[:count]
    if early and own and own[0] in commands:
        own[1:1] = early
    else:
        own = [*early, *own]
    if own[:1] == ["log"]:
        own = [word for each in own for word in _last(each)]
    return [*own, *rest]


def _last(word: str) -> tuple[str, ...]:
    match = _LAST.fullmatch(word)
    return ("--last", match.group(1)) if match is not None else (word,)
