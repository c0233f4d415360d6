"""Options that several commands share, and the session that they describe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from envguard.errors import UsageError
from envguard.project import Project, open_project

PythonOption = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="The environment: a venv directory or an interpreter."),
]
CheckpointsOption = Annotated[
    list[str] | None,
    typer.Option("--checkpoints", metavar="DIR", help="Where checkpoints are looked up. May repeat."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Print only what was asked for.")]
VerboseOption = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="More; twice for tracebacks.")
]
ColorOption = Annotated[str, typer.Option("--color", metavar="WHEN", help="auto, always or never.")]


@dataclass(frozen=True)
class Session:
    """What a command runs in: where it was started, its project, and which environment was named."""

    start: Path
    project: Project
    python: str | None
    checkpoint_roots: tuple[Path, ...]
    journaled: bool = True
    """Stamps that the journal knows of are looked up, too: not where `--checkpoints` says where to look."""


def say_default(named: str | None, kind: str | None, prefix: str | None, warn: Callable[[str], None]) -> None:
    """Says that nobody chose the environment which is about to be judged: without a venv it is the Python of PATH."""
    if named is None and kind == "system":
        warn(
            f"no virtual environment is active or beside this folder: the Python on PATH is examined, {prefix}; "
            "`--python` names another"
        )


def open_session(python: str | None, checkpoints: list[str] | None = None, otherwise: str | None = None) -> Session:
    """Resolves the shared options; `otherwise` is the environment where neither they nor the configuration name one.

    Raises `UsageError` for a bad configuration.
    """
    start = Path.cwd()
    project = _open_project(start, python, otherwise)
    for name in checkpoints or ():
        if not Path(name).is_dir():
            # Looked up silently, a misspelt folder would say "no such checkpoint" of one that is there.
            raise UsageError(f"--checkpoints {name}: there is no such directory", "name the folder that holds runs")
    roots = tuple(Path(name).absolute() for name in checkpoints or ()) or tuple(
        project.path(name) for name in project.config.checkpoints
    )
    _say_doubts(project)
    _say_pending(project, python or project.config.python or otherwise)
    return Session(start, project, python or project.config.python or otherwise, roots, journaled=not checkpoints)


def _open_project(start: Path, python: str | None, otherwise: str | None) -> Project:
    """Outside any project the state is the environment's: which one it is must be known first."""
    project = open_project(start, os.environ)
    if project.root is not None or project.config.state is not None:
        return project
    from envguard.acquire.packages.environment import locate
    from envguard.acquire.seam.host import LiveHost
    from envguard.errors import InputError

    try:
        prefix = locate(LiveHost(), python or project.config.python or otherwise, str(start)).prefix
    except InputError:
        return project  # the command that needs an environment says so itself
    return open_project(start, os.environ, prefix=prefix)


def _say_doubts(project: Project) -> None:
    from envguard.acquire.seam.collector.redaction import redact
    from envguard.config import doubts
    from envguard.report.errors import printable

    for says in doubts(project.root, project.start, os.environ):
        sys.stderr.write(f"warning: {printable(redact(says))}\n")


def _say_pending(project: Project, python: str | None) -> None:
    """A killed restore is the first thing that any command says: whatever it reads next may be half-installed."""
    from envguard.acquire.packages.environment import find_prefix
    from envguard.acquire.packages.restore_register import REGISTER
    from envguard.acquire.seam.host import LiveHost

    prefix = find_prefix(LiveHost(), python, str(project.start))
    registered = prefix is not None and os.path.lexists(f"{prefix}/{REGISTER}")
    if registered or (project.state / "restore").is_dir():
        from envguard.report.errors import printable
        from envguard.restore.undoing import pending

        says = pending(prefix, project.state)
        if says is not None:
            sys.stderr.write(f"warning: {printable(says)}\n")
