"""The table of grades: total, documented, overridable."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.config import PolicyRule
from envguard.errors import UsageError
from envguard.fingerprint.rules import (
    PROBLEM_FACETS,
    RULES,
    Change,
    check_policy,
    grade,
    is_torch_stack,
    rule_for,
    rules_table,
)
from envguard.model.drift import FACETS, Facet

DOCS = Path(__file__).parents[2] / "docs"


def test_the_document_is_the_table() -> None:
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert rules_table() in text, "docs/rules.md holds another table than `rules_table()` makes"


@pytest.mark.parametrize("facet", FACETS)
def test_every_facet_ends_in_a_rule_that_fits_everything(facet: str) -> None:
    rules = [rule for rule in RULES if rule.facet == facet]
    assert (rules[-1].kind, rules[-1].subject) == ("*", "*")
    assert all((rule.kind, rule.subject) != ("*", "*") for rule in rules[:-1])


@pytest.mark.parametrize("facet", sorted({*PROBLEM_FACETS.values(), "packages", "unknown"}))
def test_a_finding_is_told_in_its_own_words(facet: Facet) -> None:
    assert grade(Change(facet, "subject", "problem:odd", detail="what was found")).why == "what was found"


def test_no_rule_is_hidden_by_one_above_it() -> None:
    """A rule whose every pair of patterns is caught earlier would be read and never applied."""
    for index, rule in enumerate(RULES):
        pairs = [
            (kind.replace("*", "anything"), subject.replace("*", "anything"))
            for kind in rule.kind.split("|")
            for subject in rule.subject.split("|")
        ]
        reached = [rule_for(Change(rule.facet, subject, kind)) is rule for kind, subject in pairs]
        assert any(reached), f"rule {index} is never reached: {rule}"


def test_severity_and_effect_agree() -> None:
    for rule in RULES:
        assert not (rule.severity == "block" and rule.effect == "none"), rule
        assert rule.why.strip()


def test_policy_overrides_the_severity_and_says_so() -> None:
    change = Change("packages", "transformers", "changed", "5.6.0", "5.8.1")
    assert grade(change).severity == "warn"
    policy = [
        PolicyRule("packages", "block", "transf*", "we were bitten"),
        PolicyRule("*", "info"),
    ]
    drift = grade(change, policy)
    assert drift.severity == "block"
    assert drift.why.endswith("[warn → block by policy: we were bitten]")
    assert grade(Change("code", "/x", "dirty"), policy).severity == "info"
    assert grade(change, [PolicyRule("packages", "warn")]).why == grade(change).why


def test_policy_for_a_facet_that_is_none() -> None:
    with pytest.raises(UsageError, match="unknown facet 'package'") as caught:
        check_policy([PolicyRule("package", "info")])
    assert caught.value.hint == "did you mean `packages`?"


def test_braces_in_what_was_found_are_no_template() -> None:
    drift = grade(Change("torch", "torch", "patched", "a", "b", "torch/{a}/x.py"))
    assert "torch/{a}/x.py" in drift.why


@pytest.mark.parametrize(
    ("name", "belongs"),
    [("torch", True), ("torchvision", True), ("triton", True), ("nvidia-cublas-cu12", True), ("flash-attn", True),
     ("xformers", True), ("apex", True), ("nvidia-ml-py", False), ("numpy", False), ("pytorch-lightning", False)],
)  # fmt: skip
def test_torch_stack(name: str, belongs: bool) -> None:
    assert is_torch_stack(name) is belongs
