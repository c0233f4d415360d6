"""Marker values: those that packaging finds inside an interpreter, told from outside by its files."""

from __future__ import annotations

import sys

import pytest
from packaging.markers import default_environment

from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.markers import marker_values
from envguard.acquire.seam.host import LiveHost
from envguard.fingerprint.requirements import check_requirements
from tests.fingerprint.made import fingerprint, package


def test_they_are_those_that_the_interpreter_itself_finds() -> None:
    host = LiveHost()
    env, machine = locate(host, sys.prefix, "/"), host.machine()
    told = marker_values(env.implementation, env.version, machine.arch, machine.kernel, machine.system)
    assert told == {**default_environment(), "platform_version": ""}


def test_either_spelling_of_an_implementation_is_read() -> None:
    both = [marker_values(name, "3.11.9", "x86_64", "6.8") for name in ("PyPy", "pypy")]
    assert both[0] == both[1]
    assert (both[0]["implementation_name"], both[0]["platform_python_implementation"]) == ("pypy", "PyPy")


@pytest.mark.parametrize(
    "marker", ["implementation_name == 'cpython'", "platform_python_implementation == 'CPython'"]
)
def test_a_line_for_this_implementation_counts(marker: str) -> None:
    needs = package("transformers", "5.6.0", requires=(f"tokenizers; {marker}",))
    unmet = check_requirements(fingerprint(needs)).unmet
    assert [item.needs for item in unmet] == ["tokenizers"]
