"""Shell history, only where the user opted in: commands that change an environment, with their times.

Lines are redacted before anything else sees them; those that cannot have changed an environment are not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envguard.acquire.seam.host import Host, Machine, without_secrets
from envguard.clock import NS
from envguard.model.evidence import Unknown

MOST_BYTES = 8 << 20
TELLING = re.compile(
    r"\b(?:uv (?:pip|sync|add|remove|run|venv|cache)|pip3? (?:install|uninstall)|conda (?:install|update|remove)|"
    r"mamba |apt(?:-get)? (?:install|upgrade|remove|full-upgrade|dist-upgrade)|rm -[rf]+|torchinductor|\.triton|"
    r"sed -i|patch |git (?:pull|checkout|reset|apply|stash|switch)|reboot|nvidia-)"
)
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
            text = host.read(path, MOST_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown.append(Unknown(path, error.strerror or str(error)))
            continue
        seen = True
        found += [command for command in parse_history(path, text) if TELLING.search(command.text)]
    if not seen:
        unknown.append(Unknown("witness shell-history", "no history of bash, zsh or fish is there"))
    return tuple(sorted(found, key=lambda command: (command.time_ns or 0, command.path, command.line)))


def parse_history(path: str, text: str) -> list[Command]:
    """Every command with the time that stands by it."""
    found: list[Command] = []
    pending: int | None = None
    fish = path.endswith("fish_history")
    for number, line in enumerate(text.splitlines(), 1):
        if fish:
            stripped = line.strip()
            if stripped.startswith("- cmd: "):
                found.append(Command(path, number, None, without_secrets(stripped[7:])))
            elif stripped.startswith("when: ") and stripped[6:].isdigit() and found:
                last = found[-1]
                found[-1] = Command(path, last.line, int(stripped[6:]) * NS, last.text)
            continue
        match = _ZSH.match(line)
        if match is not None:
            found.append(Command(path, number, int(match.group(1)) * NS, without_secrets(match.group(2))))
        elif line.startswith("#") and line[1:].strip().isdigit():
            pending = int(line[1:]) * NS
        elif line.strip():
            found.append(Command(path, number, pending, without_secrets(line)))
            pending = None
    return found
