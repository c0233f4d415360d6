"""Extras and groups of a uv.lock: which sets of them may have been synced, and which markers hold under one."""

from __future__ import annotations

import pytest

from envguard.fingerprint.uv_choices import MOST_CHOICES, choices, encoded, holds

CU, CPU, OLD = "extra-1-x-cu", "extra-1-x-cpu", "group-1-x-old"


@pytest.mark.parametrize(
    ("marker", "choice", "holding"),
    [
        (None, (), True),
        (f"extra == '{CU}'", (CU,), True),
        (f"extra == '{CU}'", (), False),
        (f'extra != "{CU}" or extra == "{OLD}"', (CU, OLD), True),
        (f"extra == '{CU}' and extra == '{OLD}'", (CU, OLD), True),
        (f"extra == '{CU}' and python_version < '3'", (CU,), False),
        ("no marker at all", (), True),
    ],
)
def test_markers_under_a_choice(marker: str | None, choice: tuple[str, ...], holding: bool) -> None:
    assert holds(marker, {"python_version": "3.11"}, frozenset(choice)) is holding


def test_of_what_conflicts_at_most_one_was_synced() -> None:
    found = set(choices((frozenset({CU, CPU}), frozenset({OLD, "group-1-x-new"})), frozenset({OLD})))
    assert found == {frozenset({OLD}), frozenset({OLD, CU}), frozenset({OLD, CPU})}


def test_many_conflicts_are_not_tried_in_every_combination() -> None:
    conflicts = tuple(frozenset({encoded("extra", "x", f"{n}{side}") for side in "abc"}) for n in range(12))
    assert len(set(choices(conflicts, frozenset()))) == 37 < MOST_CHOICES
