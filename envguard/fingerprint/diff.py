"""Two fingerprints in, a graded answer out. Pure: what was not recorded is not looked up here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from envguard.config import PolicyRule
from envguard.fingerprint.cache_changes import cache_changes
from envguard.fingerprint.changes import (
    code_changes,
    file_changes,
    python_changes,
    variable_changes,
)
from envguard.fingerprint.machine_changes import facet_of_unknown, machine_changes
from envguard.fingerprint.package_changes import facet_of, package_changes
from envguard.fingerprint.rules import (
    PROBLEM_FACETS,
    PROBLEMS_OF_CONTENTS,
    PROBLEMS_TOLD_ELSEWHERE,
    STARTUP_CODE,
    Change,
    check_policy,
    grade,
    policy_for,
)
from envguard.model import plain
from envguard.model.drift import FACETS, DiffReport, Drift, Side
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Problem

_SEVERITY = {"block": 0, "warn": 1, "info": 2}
_EFFECT = {"breaks": 0, "numerics": 1, "performance": 2, "none": 3}
# What decides most about a run is told first.
_FIRST = ("torch", "cuda", "driver", "gpu", "memory", "python")


def compare(
    a: Fingerprint,
    b: Fingerprint,
    policy: Sequence[PolicyRule] = (),
    a_label: str = "A",
    b_label: str = "B",
) -> DiffReport:
    """Drift from `a` to `b`, worst first. What is undetermined on either side is in `unknown`, never a match.

    Raises `UsageError` for a policy that names no facet.
    """
    check_policy(policy)
    found = list(differences(a, b))
    changes = [item for item in found if isinstance(item, Change)]
    unknown = [item for item in found if isinstance(item, Unknown)]
    return report(changes, unknown, policy, side_of(a, a_label), side_of(b, b_label))


def report(
    changes: Iterable[Change], unknown: Iterable[Unknown], policy: Sequence[PolicyRule], a: Side, b: Side
) -> DiffReport:
    """Grades and orders. A policy for facet `unknown` that says "info" answers for what is undetermined."""
    drifts = [grade(change, policy) for change in changes]
    undetermined = []
    for item in dict.fromkeys(unknown):
        answered = policy_for(policy, "unknown", item.what)
        if answered is not None and answered.facet == "unknown" and answered.severity == "info":
            drifts.append(grade(Change("unknown", item.what, "undetermined", detail=item.why), policy))
        else:
            undetermined.append(item)
    drifts.sort(key=order)
    match = not undetermined and all(drift.severity == "info" for drift in drifts)
    return DiffReport(a=a, b=b, match=match, drifts=tuple(drifts), unknown=tuple(undetermined))


def side_of(fingerprint: Fingerprint | None, label: str) -> Side:
    """One side by its label; None for what was never fingerprinted."""
    if fingerprint is None:
        return Side(id=None, label=label)
    return Side(id=fingerprint.id, label=label, prefix=fingerprint.python.environment)


def order(drift: Drift) -> tuple[int, bool, int, int, bool, str]:
    """Sort key: the worst first; torch before what came with it; then by what it does, by facet; what went or changed
    before the requirements that fail for it; by subject."""
    facets = (*_FIRST, *FACETS)
    return (
        _SEVERITY[drift.severity],
        (drift.facet, drift.subject) != ("torch", "torch"),
        _EFFECT[drift.effect],
        facets.index(drift.facet),
        drift.is_requirement,
        drift.subject,
    )


def differences(a: Fingerprint, b: Fingerprint) -> Iterator[Change | Unknown]:
    """Every difference and everything undetermined, ungraded."""
    a, b = plain.as_stored(a), plain.as_stored(b)
    yield from package_changes(a, b)
    yield from python_changes(a, b)
    yield from machine_changes(a, b)
    yield from cache_changes(a, b)
    yield from code_changes(a, b)
    yield from file_changes(a, b)
    yield from variable_changes(a, b)
    yield from _problems(a, b)
    yield from _unknown(a, b)


def _unknown(a: Fingerprint, b: Fingerprint) -> Iterator[Change | Unknown]:
    """What one side could not tell is undetermined; what neither could, for one reason, is equal but for the GPU."""
    both = {item.same for item in a.unknown} & {item.same for item in b.unknown}
    for item in dict.fromkeys((*a.unknown, *b.unknown)):
        if item.same not in both or facet_of_unknown(item.what) == "gpu":
            yield item
        else:
            yield Change("unknown", item.what, "both", None, None, item.why)
    if a.gpus is None and b.gpus is None and not any(facet_of_unknown(item.what) == "gpu" for item in b.unknown):
        yield Unknown("gpu", "not recorded on either side")


def _problems(a: Fingerprint, b: Fingerprint) -> Iterator[Change]:
    """Findings about B's environment that A's had not, and what ran at the start of A's alone."""
    known = {(problem.kind, problem.subject) for problem in a.problems if problem.kind not in STARTUP_CODE}
    before = {package.name for package in a.packages}
    newcomers = {package.name for package in b.packages} - before
    told_code: set[str] = set()
    for problem in b.problems:
        if (problem.kind, problem.subject) in known or problem.kind in PROBLEMS_TOLD_ELSEWHERE:
            continue
        if problem.kind in STARTUP_CODE:
            if _ran(problem, b, a):
                continue
            told_code.add(problem.subject)
        if problem.kind in PROBLEMS_OF_CONTENTS and problem.subject in before:
            continue  # its build differs from A's, and that row names the files
        facet = PROBLEM_FACETS.get(problem.kind.replace("_", "-").split("-")[0]) or facet_of(problem.subject)
        newcomer = problem.subject in newcomers and facet == "packages"
        kind = "newcomer-problem" if newcomer else f"problem:{problem.kind}"
        yield Change(facet, problem.subject, kind, detail=problem.says)
    for problem in a.problems:
        if problem.kind in STARTUP_CODE and problem.subject not in told_code and not _ran(problem, a, b):
            yield Change("packages", problem.subject, "startup", detail=problem.says)


def _ran(problem: Problem, own: Fingerprint, other: Fingerprint) -> bool:
    """Whether the other side's starts run this code of one side's as well, wherever its environment lies."""
    says = problem.says.replace(own.python.environment, "")
    return any(
        (item.kind, item.subject, item.says.replace(other.python.environment, ""))
        == (problem.kind, problem.subject, says)
        for item in other.problems
    )
