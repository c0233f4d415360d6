"""Shell history, only where the user opted in: commands that change an environment, with their times.

Lines are redacted before anything else sees them; those that cannot have changed an environment are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envguard.acquire.seam.host import Host, Machine, without_secrets
from envguard.acquire.seam.lines import lines
from envguard.clock import NS
from envguard.model.evidence import Unknown

CHUNK = 64 << 20
"""Bytes read at once: more than a history has, so that no line, with a secret perhaps, is kept in two halves."""
TELLING = re.compile(
    r"\b(?:uv (?:pip|sync|add|remove|run|venv|cache)|pip3? (?:install|uninstall)|conda (?:install|update|remove)|"
    r"mamba |apt(?:-get)? (?:install|upgrade|remove|full-upgrade|dist-upgrade)|rm -[rf]+|torchinductor|\.triton|"
    r"sed -i|patch |git (?:pull|checkout|reset|apply|stash|switch)|reboot|nvidia-)"
)
_COMMENT = re.compile(r"(?<=\s)#.*$")
_ZSH = re.compile(r"^: (\d{9,11}):\d+;(.*)$")


@dataclass(frozen=True)
class Command:
    """One command; `time_ns` is None where the shell kept no times."""

    path: str
    line: int
    time_ns: int | None
    text: str


def read_shell_history(host: Host, machine: Machine, unknown: list[Unknown]) -> tuple[Command, ...]:
    """bash (with HISTTIMEFORMAT), zsh (extended) and fish histories of the user."""
    found: list[Command] = []
    seen = False
    for name in (".bash_history", ".zsh_history", ".local/share/fish/fish_history"):
        path = f"{machine.home}/{name}"
        try:
            found += parse_history(path, lines(host, path, CHUNK))
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
            continue
        seen = True
    if not seen:
        unknown.append(
            Unknown("witness shell-history", "no history of bash, zsh or fish is there", "absent", "witness")
        )
    return tuple(sorted(found, key=lambda command: (command.time_ns or 0, command.path, command.line)))


def without_comment(text: str) -> str:
    """A command line without its comment: it changes nothing, and people note there what no redactor can know."""
    return _COMMENT.sub("", text)


def parse_history(path: str, numbered: Iterable[tuple[int, str]]) -> list[Command]:
    """The telling commands, each with the time that stands by it."""
    commands = _fish(numbered) if path.endswith("fish_history") else _bash_or_zsh(numbered)
    # Most lines tell nothing, and to look for secrets in each of a million takes minutes.
    telling = (
        (number, time, without_secrets(_COMMENT.sub("", text)))
        for number, time, text in commands
        if TELLING.search(text)
    )
    return [Command(path, number, time, text) for number, time, text in telling if TELLING.search(text)]


_Typed = tuple[int, int | None, str]
"""Line, time in ns, text as it was typed."""


def _fish(numbered: Iterable[tuple[int, str]]) -> Iterator[_Typed]:
    pending: _Typed | None = None
    for number, line in numbered:
        stripped = line.strip()
        if stripped.startswith("- cmd: "):
            if pending is not None:
                yield pending
            pending = (number, None, stripped[7:])
        elif stripped.startswith("when: ") and stripped[6:].isdigit() and pending is not None:
            pending = (pending[0], int(stripped[6:]) * NS, pending[2])
    if pending is not None:
        yield pending


def _bash_or_zsh(numbered: Iterable[tuple[int, str]]) -> Iterator[_Typed]:
    pending: int | None = None
    for number, line in numbered:
        match = _ZSH.match(line)
        if match is not None:
            yield number, int(match.group(1)) * NS, match.group(2)
        elif line.startswith("#") and line[1:].strip().isdigit():
            pending = int(line[1:]) * NS
        elif line.strip():
            yield number, pending, line
            pending = None
