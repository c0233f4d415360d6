"""Every regular expression of the product, and texts that make a bad one slow: derived, so that none is forgotten."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import envguard

ROOT = Path(envguard.__path__[0])
METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
COMMON = ("a-", "a", "-", " ", "\n", "\t", "0", "1.", "a=", "/", '"', "\\", "(", "[", "://", "--a ", "https://a")
_parser: Any = importlib.import_module("re._parser")


@dataclass(frozen=True)
class Use:
    """A pattern, where it stands, and the methods of `re` that are used with it."""

    where: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


def uses() -> tuple[list[Use], list[str]]:
    """Each pattern of each module's text, or of the module itself where it is made at run time; and the calls that
    make one inside a function."""
    found: list[Use] = []
    made: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        if re.search(r"^import re$", text, re.MULTILINE):
            module = _Module(path.relative_to(ROOT.parent).as_posix(), text)
            held = _held(module.path) if module.made else []
            found += module.uses + held
            made += [] if held else module.made
    return found, made


def _held(path: str) -> list[Use]:
    """Patterns in the tables of a module."""
    values = vars(importlib.import_module(path.removesuffix(".py").replace("/", ".")))
    tables = [
        value for name, value in values.items() if isinstance(value, tuple | list | dict) and name != "__path__"
    ]
    found: list[re.Pattern[Any]] = []
    while tables:
        table = tables.pop()
        for value in table.values() if isinstance(table, dict) else table:
            if isinstance(value, tuple | list | dict):
                tables.append(value)
            elif isinstance(value, re.Pattern):
                found.append(value)
    return [Use(f"{path}#{number}", pattern, ("search",)) for number, pattern in enumerate(found)]


class _Module:
    """Calls of `re` in one module."""

    def __init__(self, path: str, text: str) -> None:
        tree = ast.parse(text)
        self.path = path
        self.uses: list[Use] = []
        self.made: list[str] = []
        constants = {
            target.id: node.value
            for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.col_offset == 0
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        named = {id(value): name for name, value in constants.items()}
        local = {
            id(node.value): node.targets[0].id
            for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree):
            if not _is_call(node):
                continue
            name = named.get(id(node))
            source = _text(node.args[0], constants)
            if source is not None:
                pattern = re.compile(source, _flags(node))
            elif name is not None:
                pattern = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
            else:
                self.made.append(f"{path}: {ast.unparse(node)}")
                continue
            methods = (
                (node.func.attr,)
                if node.func.attr != "compile"
                else _methods(name or local.get(id(node)), text, name is None)
            )
            self.uses.append(Use(f"{path}:{node.lineno}", pattern, methods))


class _Call(ast.Call):
    func: ast.Attribute


def _is_call(node: Any) -> TypeGuard[_Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in ("compile", *METHODS)
    )


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """A literal, or literals and named constants joined; what an f-string fills in becomes `x`. None: made anew."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], constants)
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else _text(part.value, constants) or "x"
            for part in node.values if isinstance(part, ast.Constant | ast.FormattedValue)
        ]  # fmt: skip
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.escape":
        return "x"
    return None


def _flags(node: ast.Call) -> int:
    named = re.findall(
        r"re\.([A-Z]+)", " ".join(map(ast.unparse, [*node.args[1:], *(k.value for k in node.keywords)]))
    )
    return sum({int(getattr(re, name)) for name in named})


def _methods(name: str | None, text: str, local: bool) -> tuple[str, ...]:
    """By which methods a name is used: a private or `local` one in its own module, another one anywhere."""
    if name is None:
        return ("search",)
    texts = text if local or name.startswith("_") else _whole()
    return tuple(sorted(set(re.findall(rf"\b{re.escape(name)}\.({'|'.join(METHODS)})\b", texts)))) or ("search",)


@functools.cache
def _whole() -> str:
    return "\n".join(path.read_text("utf-8") for path in ROOT.rglob("*.py"))


def slow_texts(pattern: re.Pattern[Any], length: int) -> Iterator[tuple[str, Any]]:
    """(seed, text): beginnings of matches repeated, and a beginning with each of its repetitions made long."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    as_bytes = isinstance(pattern.pattern, bytes)
    units = _units(_parser.parse(source, pattern.flags & ~(re.UNICODE if as_bytes else 0)))
    beginnings = ["".join(units[:end]) for end in range(1, len(units) + 1)]
    repeated = (*COMMON, *beginnings, *units, *map(str.__add__, units, units[1:]))
    seeds = dict.fromkeys(
        [*(("", seed) for seed in repeated), *(("".join(units[:at]), unit) for at, unit in enumerate(units))]
    )
    for before, seed in seeds:
        if seed:
            text = before + (seed * (length // len(seed) + 1))[:length] + "\x01"
            yield f"{before!r} + {seed!r} * n", text.encode("latin-1", "replace") if as_bytes else text


def _units(nodes: Any) -> list[str]:
    """What each part of a pattern matches, one example of it, in order; a group's parts count as parts."""
    return list(itertools.islice(itertools.chain.from_iterable(_unit(str(op), value) for op, value in nodes), 24))


def _unit(op: str, value: Any) -> list[str]:
    if op == "LITERAL":
        return [chr(value)]
    if op == "NOT_LITERAL":
        return ["b" if value == ord("a") else "a"]
    if op == "ANY":
        return ["a"]
    if op == "IN":
        return [_member(value)]
    if op in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        return _units(value[2]) * max(1, min(value[0], 3))
    if op == "SUBPATTERN":
        return _units(value[-1])
    if op == "ATOMIC_GROUP":
        return _units(value)
    if op == "BRANCH":
        return _units(value[1][0])
    return []


def _member(items: Any) -> str:
    negated = str(items[0][0]) == "NEGATE"
    tried = (chr(code) for code in (*b"a-0 ._/=:\"'x\t", *range(33, 127), 10, 13, 0))
    for char in tried:
        if any(_in(str(op), value, char) for op, value in items[negated:]) != negated:
            return char
    return "a"


def _in(op: str, value: Any, char: str) -> bool:
    if op == "LITERAL":
        return chr(value) == char
    if op == "RANGE":
        return bool(value[0] <= ord(char) <= value[1])
    classes = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
    negated, _, name = str(value).rpartition("CATEGORY_")[2].rpartition("NOT_")
    return (re.match(classes[name], char) is not None) != bool(negated or "NOT_" in str(value))
