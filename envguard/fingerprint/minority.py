"""Many fingerprints: which node is the odd one, and in what. Found before anything starts, not as a hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from envguard.config import PolicyRule
from envguard.fingerprint.diff import differences, order, report
from envguard.fingerprint.rules import OWN, Change, check_policy, grade
from envguard.model.drift import DiffReport, Drift, Minority, Side
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint

Named = tuple[str, Fingerprint]
_Key = tuple[str, str]
_Said = tuple[tuple[str, str | None, str], ...]


def compare_many(named: Sequence[Named], policy: Sequence[PolicyRule] = ()) -> DiffReport:
    """The minority among three or more: every (facet, subject) in which some differ from most.

    Where no value has most votes, every reference is named with its own. Differences that are only informative
    (another card of the same model, a rank's variables) make nobody odd.
    """
    check_policy(policy)
    base = named[0][1]
    said = [_by_subject(base, fingerprint) for _, fingerprint in named]
    keys = sorted({key for changes in said for key in changes})
    drifts: dict[Drift, None] = {}
    minority: list[Minority] = []
    for key in keys:
        groups, found = _vote(named, [changes.get(key, []) for changes in said], key, policy)
        most, odd = groups[0], [index for group in groups[1:] for index in group]
        # A tie has no majority: then nobody is right, and everybody is named.
        tied = len(groups) > 1 and len(groups[1]) == len(most)
        drifts.update(dict.fromkeys(drift for each in found.values() for drift in each))
        grave = [index for index in odd if _is_grave(found[index])]
        if not grave:
            continue
        for index in (*most, *odd) if tied else grave:
            minority.append(
                _row(named[index][0], key, found.get(index) or next(iter(found.values())), index in found)
            )
    odd_labels = list(dict.fromkeys(row.ref for row in minority))
    usual = Side(id=None, label=f"most of {len(named)}" if odd_labels else f"all {len(named)}")
    plain = report((), _undetermined(named), policy, usual, _odd(odd_labels, named))
    return DiffReport(
        a=plain.a,
        b=plain.b,
        match=plain.match and not minority,
        drifts=tuple(sorted((*plain.drifts, *drifts), key=order)),
        unknown=plain.unknown,
        minority=tuple(minority),
    )


def _by_subject(base: Fingerprint, other: Fingerprint) -> dict[_Key, list[Change]]:
    found: dict[_Key, list[Change]] = {}
    for item in differences(base, other) if other is not base else ():
        if isinstance(item, Change) and item.facet != "unknown":
            found.setdefault((item.facet, item.subject), []).append(item)
    return found


def _vote(
    named: Sequence[Named], said: list[list[Change]], key: _Key, policy: Sequence[PolicyRule]
) -> tuple[list[list[int]], dict[int, list[Drift]]]:
    """Groups that say the same, the majority first, and what each of the others has against the majority.

    References that set a variable themselves differ in nothing from one that did not, and may differ from each other:
    where the majority set nothing, they are held against each other.
    """
    groups = _groups(said)
    found = _against_first(named, groups, key, policy)
    by_themselves = any(change.kind == OWN for changes in said for change in changes)
    if by_themselves and len(groups) > 2 and not any(_is_grave(drifts) for drifts in found.values()):
        among = _against_first(named, groups[1:], key, policy)
        if any(_is_grave(drifts) for drifts in among.values()):
            return groups[1:], among
    return groups, found


def _against_first(
    named: Sequence[Named], groups: list[list[int]], key: _Key, policy: Sequence[PolicyRule]
) -> dict[int, list[Drift]]:
    usual = named[groups[0][0]][1]
    return {index: _drifts(usual, named[index][1], key, policy) for group in groups[1:] for index in group}


def _is_grave(drifts: Iterable[Drift]) -> bool:
    return any(drift.severity != "info" for drift in drifts)


def _groups(changes: list[list[Change]]) -> list[list[int]]:
    """Indexes of the references that say the same, the largest group first; of equals the one that begins first."""
    groups: dict[_Said, list[int]] = {}
    for index, each in enumerate(changes):
        groups.setdefault(tuple((change.kind, change.b, change.detail) for change in each), []).append(index)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def _drifts(usual: Fingerprint, odd: Fingerprint, key: _Key, policy: Sequence[PolicyRule]) -> list[Drift]:
    return [grade(change, policy) for change in _by_subject(usual, odd).get(key, [])]


def _row(label: str, key: _Key, drifts: list[Drift], is_odd: bool) -> Minority:
    value = next((drift.b if is_odd else drift.a for drift in drifts), None)
    return Minority(ref=label, facet=key[0], subject=key[1], value=value)


def _undetermined(named: Sequence[Named]) -> list[Unknown]:
    """What some could not tell; what all could not, for one reason, makes nobody odd (but for the GPU)."""
    every = set.intersection(*(set(fingerprint.unknown) for _, fingerprint in named))
    found = []
    for label, fingerprint in named:
        for item in differences(named[0][1], fingerprint):
            if isinstance(item, Unknown):
                found.append(msgspec.structs.replace(item, why=f"{label}: {item.why}"))
    return [item for item in dict.fromkeys(found) if item not in every]


def _odd(labels: list[str], named: Sequence[Named]) -> Side:
    ids = {label: fingerprint.id for label, fingerprint in named}
    return Side(id=ids[labels[0]] if len(labels) == 1 else None, label=", ".join(labels) or "none differs")
