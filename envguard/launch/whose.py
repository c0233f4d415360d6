"""Which environment COMMAND itself runs in, where its words tell: that one is to be compared, and no other."""

from __future__ import annotations

import os
import posixpath
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envguard.acquire.packages.environment import Environment, is_tool
from envguard.acquire.packages.starts import STARTS_OTHERS, WRAPPERS, Started, found_by_scripts, is_python, started_by
from envguard.acquire.seam.host import Host
from envguard.errors import UsageError

# Scripts that start the trainer with the interpreter that they themselves run on.
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "ipython", "ipython3", "lightning", "fabric", "composer"}
)
# They run the command in an environment of their own choice: their own interpreter tells nothing.
_CHOOSERS = frozenset(
    {"uv", "uvx", "poetry", "pdm", "hatch", "pipenv", "conda", "mamba", "rye", "pixi", "tox", "nox"}
)
_MOST_WORDS = 12


@dataclass(frozen=True)
class Runner:
    """The interpreter that COMMAND runs on, and the word that names it."""

    word: str
    started: Started

    @property
    def interpreter(self) -> str | None:
        """As `--python` would name it, where the word is a path: whoever writes one means that environment. A bare
        `python` is whatever PATH has, also where an environment was not activated."""
        return self.started.interpreter if "/" in self.word and self.started.prefix is not None else None


def runs_on(host: Host, command: Sequence[str], environ: Mapping[str, str]) -> Runner | None:
    """What COMMAND runs on; None where its words do not tell.

    A tool's own environment (`uv tool`, pipx) is none that a training runs in.
    """
    word = _program(command)
    path = shutil.which(word, path=environ.get("PATH")) if word is not None else None
    if word is None or path is None or posixpath.basename(word) in _CHOOSERS:
        return None
    started = started_by(host, os.path.abspath(path))
    if started is None or (started.prefix is not None and is_tool(host, started.prefix)):
        return None
    return Runner(word, started)


def _program(command: Sequence[str]) -> str | None:
    """The word that names the program: the first, or an interpreter or launcher behind what merely wraps it."""
    if not command or posixpath.basename(command[0]) not in WRAPPERS:
        return command[0] if command else None
    names = ((word, posixpath.basename(word)) for word in command[1:_MOST_WORDS])
    return next((word for word, name in names if is_python(name) or name in _LAUNCHERS), None)


def in_environment(
    host: Host, env: Environment, command: Sequence[str], runner: Runner | None, *, chosen: bool
) -> tuple[str, ...]:
    """Doubts whether a command starts the interpreter of the environment that is compared.

    Raises `UsageError` where it starts another and nobody chose (`chosen`: by `--python` or the configuration) the
    compared one: everything would be held against one environment and the run made in the other. `python` without an
    activated `.venv` is the common case.
    """
    if runner is not None and not _same(host, runner.started, env):
        if chosen:
            where = runner.started.prefix or _told(runner.started)
            return (f"the command runs in {where}, and {env.prefix} ({env.how}) was compared",)
        hint = f"write {env.executable or env.prefix + '/bin/python'} or activate {env.prefix} first"
        if runner.started.prefix is not None:
            hint += f"; `--python {shlex.quote(runner.started.prefix)}` compares the other one"
        how = "" if env.how == env.prefix else f" ({env.how})"
        says = f"{runner.word} runs {_told(runner.started)}, and the environment compared here is {env.prefix}{how}"
        raise UsageError(says, hint)
    if runner is None and command and posixpath.basename(command[0]) in STARTS_OTHERS:
        found = found_by_scripts(host)
        if found is not None and not _same(host, found, env):
            return (
                f"a script that calls {posixpath.basename(found.interpreter)} runs {_told(found)}, which was not "
                f"compared; {env.prefix} was",
            )
    return ()


def _same(host: Host, started: Started, env: Environment) -> bool:
    return started.prefix is not None and host.realpath(started.prefix) == host.realpath(env.prefix)


def _told(started: Started) -> str:
    if started.prefix is None:
        return f"{started.interpreter}, which chooses an interpreter only when it runs"
    return f"{started.interpreter} of the environment {started.prefix}"
