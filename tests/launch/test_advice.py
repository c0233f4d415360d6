"""What a refusal advises helps: a restore is named where it takes away what stands against the start."""

from __future__ import annotations

from typing import Any

import pytest

from envguard.launch.gate import REFUSED, Verdict
from envguard.model.drift import Drift
from envguard.report.launch import advise


def verdict(*kinds: str) -> Verdict:
    given: dict[str, Any] = {"facet": "packages", "severity": "warn", "effect": "breaks"}
    drifts = tuple(Drift(subject="a", a=None, b=None, why="", kind=kind, **given) for kind in kinds)
    return Verdict(REFUSED, drifts, (), (), (), (), ())


@pytest.mark.parametrize(
    ("kinds", "restores"),
    [
        (["changed"], True),
        (["problem:files-missing"], True),
        (["problem:start-folder"], False),
        (["problem:extra-import"], False),
        (["problem:extra-import", "problem:start-folder"], False),
        (["problem:extra-import", "rebuilt"], True),
    ],
)
def test_a_restore_is_advised_where_it_helps(kinds: list[str], restores: bool) -> None:
    advice = advise(verdict(*kinds), "step_10")
    assert any("envguard restore step_10" in line for line in advice) is restores
    assert any("--waive packages:a" in line for line in advice)
