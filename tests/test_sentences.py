"""What envguard does is decided by fields: no code outside `report` takes a sentence for a person apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "envguard"
SENTENCES = frozenset({"why", "why_not", "says", "summary", "detail", "title", "message"})
TAKES_APART = frozenset({
    "startswith", "endswith", "replace", "split", "rsplit", "partition", "rpartition", "removeprefix",
    "removesuffix", "find", "index", "count",
})  # fmt: skip
MATCHES = frozenset({"match", "search", "fullmatch", "sub", "findall", "finditer"})
KEEPS = frozenset({"lower", "casefold", "strip", "lstrip", "rstrip"})

# (file, function): why it may. Of three sorts: the words of another program, words for a person alone, old stamps.
ALLOWED = {
    ("acquire/packages/pip_logs.py", "parse_pip_log"): "pip's log has no fields",
    ("acquire/project/git_history.py", "read_git_history"): "git has one exit code for all that fails",
    ("acquire/seam/host.py", "refused"): "a bundle holds an error of a walk by the system's words",
    ("fingerprint/diff.py", "_ran"): "a stamp holds the start-up code in that sentence alone",
    ("model/event.py", "stamp_unread"): "chooses the words of the screen's first line",
    ("timeline/build.py", "_no_stamp"): "joins two sentences",
}


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS:
        return _name(node.func.value)
    return None


def _takes_apart(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False)
        return any(
            (isinstance(op, ast.In | ast.NotIn) and bool({_name(left), _name(right)} & SENTENCES))
            or (isinstance(op, ast.Eq | ast.NotEq) and bool({_name(left), _name(right)} & SENTENCES))
            for op, left, right in pairs
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in TAKES_APART and _name(node.func.value) in SENTENCES:
        return True
    return node.func.attr in MATCHES and any(_name(each) in SENTENCES for each in (node.func.value, *node.args))


def _found(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if _takes_apart(node) and isinstance(node, ast.expr):
            yield function, node.lineno
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _found(node, inner)


def test_nothing_is_decided_by_a_sentence() -> None:
    found: dict[tuple[str, str], int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("report/"):
            found |= {(name, function): line for function, line in _found(ast.parse(path.read_text("utf-8")))}
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an entry that allows nothing"


def test_the_walk_sees_every_form() -> None:
    forms = (
        'item.why.startswith("a")', '"a" in event.summary', 'why.lower().endswith("b")', '_WORD.search(drift.detail)',
        're.sub("a", "b", problem.says)', 'title == "x"', '"x" != message', 'item.says.strip() in ("a", "b")',
    )  # fmt: skip
    assert [form for form in forms if not list(_found(ast.parse(form)))] == []
    assert not list(_found(ast.parse('path.startswith("a"); name in names; f"{why}"')))
