"""Every command that a message, a hint or a page quotes is one that envguard takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from envguard.cli.app import COMMANDS, whole_group

ROOT = Path(__file__).parent.parent.parent
QUOTED = re.compile(r"`((?:envguard |--)[^`]+)`")
CONSOLE = re.compile(rf"(?m)^(?:\$ )?(envguard (?:{'|'.join(COMMANDS)})\b[^#\n]*?)(?:\s{{2,}}.*|#.*)?$")
PLACEHOLDER = " step_690"


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that is no docstring; what an f-string fills in is a checkpoint's name."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr):
            inner.add(id(node.body[0].value))
        if isinstance(node, ast.JoinedStr):
            inner.update(id(value) for value in node.values)
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (value.value if isinstance(value, ast.Constant) else PLACEHOLDER for value in node.values)
            yield node.lineno, "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _quoted() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "envguard").rglob("*.py")):
        for line, text in _texts(path):
            for command in QUOTED.findall(text):
                yield f"{path.relative_to(ROOT)}:{line}", " ".join(command.split())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        # Of a page only whole commands: it names options of torchrun, Slurm, uv and the trainer, too.
        for command in [*QUOTED.findall(page.read_text()), *CONSOLE.findall(page.read_text())]:
            if command.startswith("envguard "):
                yield str(page.relative_to(ROOT)), " ".join(command.split())


FOUND = sorted(set(_quoted()))


def _of(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def _options() -> set[str]:
    group = whole_group()
    names = set()
    with click.Context(group) as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None
            names |= {
                option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
            }
    return names


@pytest.mark.parametrize(("where", "command"), FOUND, ids=[f"{where} {command}" for where, command in FOUND])
def test_a_quoted_command_is_one_that_envguard_takes(where: str, command: str) -> None:
    words = [word for word in shlex.split(command.replace("…", " ").replace("[", " ").replace("]", " ")) if word]
    if words[0].startswith("--"):
        assert words[0].partition("=")[0] in _options() | {"--help", "--version"}, f"{where} quotes {command}"
        return
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    group = whole_group()
    with click.Context(group, info_name="envguard") as context:
        if own[0].startswith("-"):
            assert own[0] in ("--help", "--version")
            return
        found = group.get_command(context, own[0])
        assert found is not None, f"{where} quotes a command that is not there: {command}"
        unknown = [
            word.partition("=")[0]
            for word in own[1:]
            if word.startswith("--") and word.partition("=")[0] not in _of(found)
        ]
        assert unknown == [], f"{where} quotes {command}"


def test_there_are_commands_to_hold() -> None:
    assert len(FOUND) > 80
    assert {command.split()[1] for _, command in FOUND if command.startswith("envguard ")} >= {
        "snapshot", "diff", "verify", "timeline", "restore", "launch", "log", "collect", "vault",
    }  # fmt: skip
