"""The plan: which package goes from what to what, out of which source, and what stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from envguard.fingerprint.requirements import check_requirements
from envguard.model.action import Obstacle, PlanItem, Source
from envguard.model.fingerprint import Fingerprint, Package
from envguard.restore.candidate import PLACES, Candidate
from envguard.restore.wanted import Target, Wanted


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One package to change: to `wanted` out of the first of `candidates` that proves sound, or away (None)."""

    name: str
    now: Package | None
    wanted: Wanted | None
    candidates: tuple[Candidate, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. Nothing may be done while `missing` is not empty."""

    steps: tuple[Step, ...]
    missing: tuple[Obstacle, ...]
    same: tuple[str, ...]
    """Names that are already as wanted."""
    kept: tuple[str, ...]
    """Names outside the reference that stay."""
    notes: tuple[str, ...]


def make_plan(
    target: Target,
    live: Fingerprint,
    candidates: Iterable[Candidate],
    tags: frozenset[str],
    only: tuple[str, ...] = (),
    exact: bool = False,
) -> Plan:
    """Compares what is wanted with what is there, and finds a source for each difference.

    `tags` are the wheel tags that the environment's interpreter takes; `only` restricts to those names; `exact`
    removes what the reference does not have.
    """
    present: dict[str, Package] = {}
    for package in live.packages:
        present.setdefault(package.name, package)
    by_name: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_name.setdefault(candidate.name, []).append(candidate)
    steps, missing, same, notes = [], [], [], list(target.notes)
    for wanted in target.packages:
        if only and wanted.name not in only:
            continue
        now = present.get(wanted.name)
        if wanted.editable is not None:
            notes += _editable_notes(wanted, now)
            continue
        if _is_there(wanted, now):
            same.append(wanted.name)
            continue
        found, why = _matching(wanted, by_name.get(wanted.name, []), tags)
        if not found:
            missing.append(Obstacle(package=f"{wanted.name} {wanted.version or '?'}", path=None, why=why))
        else:
            steps.append(Step(name=wanted.name, now=now, wanted=wanted, candidates=found))
            notes += _step_notes(wanted, found)
    outside = [name for name in present if all(wanted.name != name for wanted in target.packages)]
    if exact and not only:
        steps += [Step(name=name, now=present[name], wanted=None, candidates=()) for name in sorted(outside)]
        outside = []
    plan = Plan(
        steps=tuple(steps), missing=tuple(missing), same=tuple(same), kept=tuple(sorted(outside)), notes=tuple(notes)
    )
    return msgspec.structs.replace(plan, notes=(*plan.notes, *broken_requirements(plan, live, target)))


def _is_there(wanted: Wanted, now: Package | None) -> bool:
    if now is None:
        return False
    if wanted.build is not None:
        return now.build == wanted.build
    # Without a build only the version can be compared, and a package that is not as its RECORD says is not it.
    return wanted.version is not None and now.version == wanted.version and not now.departs and not wanted.sha256


def _matching(wanted: Wanted, candidates: list[Candidate], tags: frozenset[str]) -> tuple[tuple[Candidate, ...], str]:
    """Sources of exactly the wanted build, best first; where there is none, why."""
    fitting = [candidate for candidate in candidates if tags.intersection(candidate.tags)]
    if wanted.build is not None:
        exact = [candidate for candidate in fitting if candidate.build == wanted.build]
    elif wanted.sha256:
        exact = [candidate for candidate in fitting if set(candidate.sha256) & set(wanted.sha256)]
    else:
        exact = [candidate for candidate in fitting if candidate.version == wanted.version]
        builds = {candidate.build for candidate in exact}
        if len(builds) > 1:
            places = ", ".join(candidate.path for candidate in exact)
            return (), f"ambiguous: {len(builds)} different builds of {wanted.version} are here ({places})"
    if exact:
        return tuple(sorted(exact, key=_preference)), ""
    return (), _why_missing(wanted, candidates, fitting)


def _preference(candidate: Candidate) -> tuple[int, bool, str]:
    return PLACES.index(candidate.place), candidate.pylock is None, candidate.path


def _why_missing(wanted: Wanted, candidates: list[Candidate], fitting: list[Candidate]) -> str:
    known = [f"build {wanted.build[:16]}"] if wanted.build else []
    known += [f"sha256 {digest}" for digest in wanted.sha256] + [f"from {wanted.url}"] * bool(wanted.url)
    says = f"not on this machine ({', '.join(known) or 'by version'}; {wanted.witness})"
    other = sorted({f"{c.version} build {c.build[:16]}" for c in fitting if c.version == wanted.version})
    if other:
        says += f"; another build of the same version is: {', '.join(other)}"
    foreign = [c for c in candidates if c not in fitting and c.build == wanted.build]
    if foreign:
        says += f"; {foreign[0].path} is for another interpreter or platform ({', '.join(foreign[0].tags)})"
    return says


def _editable_notes(wanted: Wanted, now: Package | None) -> list[str]:
    if now is not None and now.editable == wanted.editable:
        return []
    where = f"git -C {wanted.editable} checkout {wanted.commit}" if wanted.commit else f"its source {wanted.editable}"
    return [f"{wanted.name} was an editable install, which no wheel brings back: {where}"]


def _step_notes(wanted: Wanted, found: tuple[Candidate, ...]) -> list[str]:
    notes = []
    if wanted.sure:
        notes.append(f"{wanted.name}: {wanted.sure}")
    if wanted.version is not None and found[0].version != wanted.version:
        notes.append(f"{wanted.name}: the build is the wanted one; its archive calls itself {found[0].version}")
    return notes


def source_of(candidate: Candidate) -> Source:
    """The name that the answer gives to a source."""
    if candidate.place == "uv-cache":
        return "pylock" if candidate.pylock is not None else "rebuilt-wheel"
    return "find-links" if candidate.place == "pip-cache" else candidate.place


def plan_items(plan: Plan, chosen: dict[str, Candidate]) -> tuple[PlanItem, ...]:
    """The plan as the answer shows it; `chosen` are the sources that were proved, file by file."""
    items = []
    for step in plan.steps:
        candidate = chosen.get(step.name) or (step.candidates[0] if step.candidates else None)
        items.append(
            PlanItem(
                package=step.name,
                from_=step.now.version if step.now else None,
                to=(step.wanted.version or (candidate.version if candidate else None)) if step.wanted else None,
                source=source_of(candidate) if candidate else None,
                verified=step.name in chosen or step.wanted is None,
                bytes=candidate.bytes if candidate else None,
            )
        )
    return tuple(items)


def broken_requirements(plan: Plan, live: Fingerprint, target: Target) -> list[str]:
    """Requirements that are met now and would not be after the plan."""
    changed = {step.name: step.wanted for step in plan.steps}
    kept = [package for package in live.packages if package.name not in changed]
    stamped = {package.name: package for package in target.fingerprint.packages} if target.fingerprint else {}
    for name, wanted in changed.items():
        if wanted is not None:
            kept.append(stamped.get(name) or _placeholder(wanted))
    after = check_requirements(msgspec.structs.replace(live, packages=tuple(kept))).unmet
    before = {(unmet.package, unmet.line) for unmet in check_requirements(live).unmet}
    return [
        f"a requirement will be broken: {unmet.says}" for unmet in after if (unmet.package, unmet.line) not in before
    ]


def _placeholder(wanted: Wanted) -> Package:
    return Package(name=wanted.name, version=wanted.version, build=wanted.build, installer=None, location="")
