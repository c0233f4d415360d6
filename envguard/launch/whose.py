"""Whether the environment that is compared is the one that COMMAND runs in, and what of it is not known."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.starts import Started
from envguard.acquire.seam.host import Host
from envguard.errors import UsageError
from envguard.launch.command import parse_start
from envguard.launch.starting import Start, What
from envguard.model.evidence import Unknown


def start_of(host: Host, command: Sequence[str], environ: Mapping[str, str]) -> Start:
    """What COMMAND starts here, in the working directory."""
    return parse_start(host, command, environ, os.getcwd())


def in_environment(
    host: Host, env: Environment, start: Start, *, chosen: bool
) -> tuple[tuple[str, ...], tuple[Unknown, ...]]:
    """(notes, what is not known) of a start that is held against an environment.

    Raises `UsageError` where COMMAND starts another environment's interpreter and nobody chose (`chosen`: by
    `--python` or the configuration) the compared one: everything would be held against one environment and the run
    made in the other. `python` without an activated `.venv` is the common case.
    """
    notes: list[str] = []
    unknown: dict[str, Unknown] = {}
    for doubt in start.undetermined:
        if chosen and doubt.what is What.INTERPRETER:
            notes.append(f"{doubt.why}; {env.prefix} ({env.how}) was compared")
        else:
            unknown.setdefault(doubt.what.value, Unknown(doubt.what.value, f"{doubt.why}; {doubt.write}"))
    if start.runner is not None and not _same(host, start.runner.started, env):
        if not chosen:
            _refuse(env, start.runner.word, start.runner.started)
        where = start.runner.started.prefix or _named(start.runner.started)
        notes.append(f"the command runs in {where}, and {env.prefix} ({env.how}) was compared")
    return tuple(dict.fromkeys(notes)), tuple(unknown.values())


def _refuse(env: Environment, word: str, started: Started) -> None:
    hint = f"write {env.executable or env.prefix + '/bin/python'} or activate {env.prefix} first"
    if started.prefix is not None:
        hint += f"; `--python {shlex.quote(started.prefix)}` compares the other one"
    how = "" if env.how == env.prefix else f" ({env.how})"
    raise UsageError(f"{word} runs {_named(started)}, and the environment compared here is {env.prefix}{how}", hint)


def _same(host: Host, started: Started, env: Environment) -> bool:
    return started.prefix is not None and host.realpath(started.prefix) == host.realpath(env.prefix)


def _named(started: Started) -> str:
    if started.prefix is None:
        return f"{started.interpreter}, which chooses an interpreter only when it runs"
    return f"{started.interpreter} of the environment {started.prefix}"
