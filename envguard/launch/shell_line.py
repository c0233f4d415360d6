"""A shell's text as simple commands, where it is no more than those: what `bash -c TEXT` and short scripts start.

A condition, a loop, a function, a group, or a substitution of a command's output needs a shell to know what is
started. Such a text is not guessed at.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_IN_ORDER = frozenset({"&&", ";", "\n"})
_BESIDE = frozenset({"|", "|&", "||", "&"})
_KEYWORDS = frozenset({
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function",
    "{", "}", "!", "[[", "coproc", "eval", "alias", "return", "break", "continue", "local", "declare", "typeset",
})  # fmt: skip
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
# `2>&1`, `&> FILE`, `>& FILE`: an ampersand that joins no commands.
_DUPLICATED = re.compile(r"(?:(?<!\d)\d+)?[<>]&[\d-]+|&>>?\s*\S+|>&\s*\S+")
_REDIRECT = re.compile(r"\d*[<>][<>&]?.*")


class NotSimple(Exception):
    """The text is more than a list of simple commands; the message gives the reason."""


@dataclass(frozen=True)
class Command:
    """A simple command; `always`: it runs in the shell itself, after the one before it, and not in a pipe, in the
    background or where another failed."""

    words: tuple[str, ...]
    always: bool = True


def simple_commands(text: str) -> tuple[Command, ...]:
    """The simple commands of a shell's text, in order. Raises `NotSimple`."""
    text = _without_comments(text)
    if re.search(r"`|\$\(|<\(|>\(|<<", text):
        raise NotSimple("it substitutes the output of a command, or reads a text from within itself")
    lexer = shlex.shlex(_DUPLICATED.sub(" ", text.replace("\\\n", " ")), posix=True, punctuation_chars="();|&\n")
    lexer.whitespace_split, lexer.whitespace, lexer.commenters = True, " \t\r", ""
    found: list[list[str]] = [[]]
    beside: set[int] = set()
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise NotSimple(f"no shell would read it: {error}") from error
    for token in tokens:
        if token and not token.strip("();|&\n"):
            operator = token.strip("\n") or "\n"
            if operator in _BESIDE:
                beside |= {len(found) - 1} | ({len(found)} if operator != "&" else set())
            elif operator not in _IN_ORDER:
                raise NotSimple(f"it groups commands by `{operator}`")
            found.append([])
        else:
            found[-1].append(token)
    commands = [
        Command(words, number not in beside)
        for number, each in enumerate(found)
        if (words := _without_redirections(each))
    ]
    for command in commands:
        if command.words[0] in _KEYWORDS or command.words[0].endswith("()"):
            raise NotSimple(f"it holds `{command.words[0]}`")
    return tuple(commands)


def _without_comments(text: str) -> str:
    """The text without what follows a `#` at the begin of a word; one within quotes stays."""
    kept: list[str] = []
    quote, before, skip = "", "\n", False
    for character in text:
        skip = skip and character != "\n"
        if not skip and not quote and character == "#" and before in " \t\n;&|(":
            skip = True
        if not skip:
            if character in "'\"" and before != "\\" and quote in ("", character):
                quote = "" if quote else character
            kept.append(character)
        before = character
    return "".join(kept)


def _without_redirections(words: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif _REDIRECT.fullmatch(word):
            skip = word[-1] in "<>"
        else:
            kept.append(word)
    return tuple(kept)


def expanded(word: str, environ: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` put in; what is left with a `$` in it could not be determined."""
    return _VARIABLE.sub(lambda match: environ.get(match[1] or match[2], ""), word)


def assignment(word: str) -> tuple[str, str] | None:
    """(NAME, VALUE) of a word NAME=VALUE."""
    if not _ASSIGNMENT.match(word) or "+=" in word.partition("=")[0] + "=":
        return None
    name, _, value = word.partition("=")
    return name, value
