"""The version that a process holds of a module: what the module keeps, and nothing that is looked up when asked."""

from __future__ import annotations

import sys
import types

import click
import pytest

from envguard.acquire.processes.own_process import loaded_version


def module(monkeypatch: pytest.MonkeyPatch, kind: type[types.ModuleType] = types.ModuleType) -> types.ModuleType:
    made = kind("made_up")
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


def test_what_a_module_looks_up_when_asked_is_not_what_the_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(name: str) -> str:
        raise DeprecationWarning(f"{name} is read from the metadata on disk")

    vars(module(monkeypatch))["__getattr__"] = look_up
    assert loaded_version("made_up") is None
    vars(sys.modules["made_up"])["__version__"] = "1.2"
    assert loaded_version("made_up") == "1.2"


def test_a_real_module_that_warns_of_the_question_costs_no_stamp() -> None:
    """Warnings are errors here, as in many a trainer's tests."""
    assert loaded_version("click") == vars(click).get("__version__")


def test_a_module_of_a_class_of_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does, whose module keeps its names in a table."""

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> str:
            return {"__version__": "5.6.0"}[name]

    module(monkeypatch, Lazy)
    assert loaded_version("made_up") == "5.6.0"


@pytest.mark.parametrize("error", [ImportError("an extra is missing"), KeyError("__version__"), UserWarning("old")])
def test_a_module_that_raises_at_the_question_costs_no_stamp(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> str:
            raise error

    module(monkeypatch, Broken)
    assert loaded_version("made_up") is None


def test_no_module_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded_version("made_up") is None
    vars(module(monkeypatch))["__version__"] = (1, 2)
    assert loaded_version("made_up") is None
