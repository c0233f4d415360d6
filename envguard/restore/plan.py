"""The plan: which package goes from what to what, out of which source, and what stays. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec
from packaging.version import InvalidVersion, Version

from envguard.acquire.packages.distributions import path_of_url
from envguard.fingerprint.package_changes import full_version
from envguard.fingerprint.requirements import check_requirements
from envguard.fingerprint.units import some_of
from envguard.model.action import Obstacle, PlanItem, Source
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Package
from envguard.restore.candidate import PLACES, Candidate
from envguard.restore.wanted import Target, Wanted

WILL_BREAK = "a requirement will be broken"
IS_BROKEN = "a requirement is broken now"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One package to change: to `wanted` out of the first of `candidates` that proves sound, or away (None)."""

    name: str
    now: Package | None
    was: str | None
    """The full version that is there now."""
    wanted: Wanted | None
    candidates: tuple[Candidate, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. Nothing may be done while `missing` or `unknown` is not empty."""

    steps: tuple[Step, ...]
    missing: tuple[Obstacle, ...]
    same: tuple[str, ...]
    """Names that are already as wanted."""
    unproved: tuple[str, ...] = ()
    """Those of them of which only the version is known to be the wanted one; the notes say why."""
    kept: tuple[str, ...]
    """Names outside the reference that stay."""
    notes: tuple[str, ...]
    absent: tuple[Wanted, ...] = ()
    """The packages behind `missing`, for whoever may fetch them."""
    unmet: tuple[str, ...] = ()
    """Names that stay other than wanted, since no wheel brings them back: editable installs, and builds of a
    folder that a lock names."""
    unknown: tuple[Unknown, ...] = ()
    """Packages that may or may not be as wanted, since what is installed could not be read."""


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
    present = {package.name: package for package in reversed(live.packages)}
    by_name: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_name.setdefault(candidate.name, []).append(candidate)
    steps: list[Step] = []
    missing: list[Obstacle] = []
    absent: list[Wanted] = []
    same: list[str] = []
    unproved: list[str] = []
    unmet: list[str] = []
    unknown: list[Unknown] = []
    notes = list(target.notes)
    for wanted in target.packages:
        if only and wanted.name not in only:
            continue
        now, known = present.get(wanted.name), by_name.get(wanted.name, [])
        if wanted.editable is not None:
            told = _editable_notes(wanted, now, live)
            notes += told
            unproved += [wanted.name] if told else []
            unmet += [wanted.name] if now is None or now.editable != wanted.editable else []
            continue
        if now is not None and now.unread:
            unknown.append(unread(now))
            continue
        if wanted.folder is not None:
            built, says = _is_built_from(wanted.folder, wanted, now)
            notes.append(f"{wanted.name}: {says}")
            unproved.append(wanted.name)
            unmet += [] if built else [wanted.name]
            continue
        there, why = is_there(wanted, now, known)
        if there:
            same.append(wanted.name)
            unproved += [wanted.name] if why else []
            notes += [f"{wanted.name}: {why}"] if why else []
            continue
        found, why = _matching(wanted, known, tags, now, _how_they_were(live, wanted.name))
        if found:
            was = full_version(live, now) if now else None
            steps.append(Step(name=wanted.name, now=now, was=was, wanted=wanted, candidates=found))
            notes += _step_notes(wanted, found, _how_they_were(target.fingerprint, wanted.name))
        else:
            absent.append(wanted)
            missing.append(Obstacle(package=f"{wanted.name} {wanted.shown or '?'}", path=None, why=why))
    notes += _notes_of_edits(target, present, frozenset(same))
    gone, kept = _outside(target, present, only, exact)
    steps += [_removal(live, present[name]) for name in gone]
    plan = Plan(
        steps=tuple(steps),
        missing=tuple(missing),
        same=tuple(same),
        unproved=tuple(unproved),
        unmet=tuple(unmet),
        kept=kept,
        notes=tuple(notes),
        absent=tuple(absent),
        unknown=tuple(unknown),
    )
    return msgspec.structs.replace(plan, notes=(*plan.notes, *broken_requirements(plan, live, target)))


def unread(now: Package) -> Unknown:
    """That a package's files are out of reach: what cannot be read can be neither proved nor kept for a roll-back."""
    count = len(now.unread)
    files = f"{now.location}/{now.unread[0]}" + (f" and {count - 1} more of its files" if count > 1 else "")
    why = f"{files} cannot be read, or RECORD has no hash that proves anything, so that its build is not known"
    return Unknown(f"packages: {now.name}", why)


def _removal(live: Fingerprint, now: Package) -> Step:
    return Step(name=now.name, now=now, was=full_version(live, now), wanted=None, candidates=())


def _outside(
    target: Target, present: dict[str, Package], only: tuple[str, ...], exact: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names outside the reference: those that go, and those that stay. pip and its like are the venv's own."""
    named = {wanted.name for wanted in target.packages}
    outside = sorted(name for name in present if name not in named)
    if not exact or only:
        return (), tuple(outside)
    gone = [name for name in outside if target.complete or name in target.newer]
    return tuple(gone), tuple(name for name in outside if name not in gone)


def is_there(wanted: Wanted, now: Package | None, known: list[Candidate]) -> tuple[bool, str | None]:
    """Whether the package is already as wanted, and, where that is not proved, why it is let be.

    One with files that no install had brought is as wanted where the stamp saw the same in them: nothing is to be
    done, and nothing could be, since no source has them.
    """
    if now is None:
        return False, None
    if wanted.edited is not None and now.build == wanted.edited:
        return True, _unread_then(wanted)
    if wanted.build is not None:
        return now.build == wanted.build, None
    if not same_version(now.version, wanted.version) or now.departs:
        return False, None
    if not wanted.sha256:
        return True, wanted.sure or (None if now.build else "by its version; it has no RECORD that tells its build")
    proofs = [candidate for candidate in known if candidate.build == now.build and candidate.sha256]
    if any(set(candidate.sha256) & set(wanted.sha256) for candidate in proofs):
        return True, None
    if proofs:
        return False, None
    return True, (
        f"{now.version} is installed, as the lock says; whether from the locked wheel cannot be told, "
        "since nothing here recorded that wheel's hash"
    )


def _unread_then(wanted: Wanted) -> str | None:
    if not wanted.unread:
        return None
    files = some_of(wanted.unread)
    return f"it is as the stamp has it as far as that goes: of {files} nothing could be read when it was taken"


def _notes_of_edits(target: Target, present: dict[str, Package], same: frozenset[str]) -> list[str]:
    """What is let be although the stamp saw files in it that no install had brought: said once for all packages."""
    edited = [wanted for wanted in target.packages if wanted.edited is not None and wanted.name in same]
    kept: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for wanted in edited:
        notes = kept if present[wanted.name].build == wanted.edited else whole
        how = _how_they_were(target.fingerprint, wanted.name)
        notes.setdefault(how, []).append(f"{wanted.name} ({some_of(wanted.departs)})")
    return [
        f"left as the stamp has it, with files that were {how} then {'too' if how == _GONE else 'either'}: {listed}"
        for how, listed in ((how, "; ".join(each)) for how, each in sorted(kept.items()))
    ] + [
        f"what was installed is there whole, though the stamp saw files that were {how}"
        f"{'' if how == _GONE else ', and those edits are in no wheel'}: {listed}"
        for how, listed in ((how, "; ".join(each)) for how, each in sorted(whole.items()))
    ]


_GONE, _OTHER, _EITHER = "missing", "not what was installed", "missing or not what was installed"


def _how_they_were(taken: Fingerprint | None, name: str) -> str:
    """What was the matter with the files of a package that were not as RECORD says, as its findings tell."""
    kinds = {problem.kind for problem in taken.problems if problem.subject == name} if taken is not None else set()
    gone, other = "files-missing" in kinds, "files-modified" in kinds
    return _EITHER if gone == other else _GONE if gone else _OTHER


def same_version(one: str | None, other: str | None) -> bool:
    """Equal as PEP 440 reads them, or equal as they stand where they are no versions."""
    if one is None or other is None:
        return False
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _matching(
    wanted: Wanted, candidates: list[Candidate], tags: frozenset[str], now: Package | None, how: str
) -> tuple[tuple[Candidate, ...], str]:
    """Sources of exactly the wanted build, best first; where there is none, why. `how` says what is the
    matter with the files that are there and not as RECORD says."""
    fitting = [candidate for candidate in candidates if tags.intersection(candidate.tags)]
    if wanted.build is not None:
        exact = [candidate for candidate in fitting if candidate.build == wanted.build]
    elif wanted.sha256:
        exact = [candidate for candidate in fitting if set(candidate.sha256) & set(wanted.sha256)]
        # A second unpacking of the same build needs no hash of its own.
        builds = {candidate.build for candidate in exact}
        exact = [candidate for candidate in fitting if candidate.build in builds]
    else:
        exact = [candidate for candidate in fitting if same_version(candidate.version, wanted.version)]
        builds = {candidate.build for candidate in exact}
        if len(builds) > 1:
            places = ", ".join(candidate.path for candidate in exact)
            return (), f"ambiguous: {len(builds)} different builds of {wanted.version} are here ({places})"
    if exact:
        return tuple(sorted(exact, key=_preference)), ""
    return (), _why_missing(wanted, candidates, fitting, now, how)


def _preference(candidate: Candidate) -> tuple[int, bool, str]:
    return PLACES.index(candidate.place), candidate.pointer is None, candidate.path


def _why_missing(
    wanted: Wanted, candidates: list[Candidate], fitting: list[Candidate], now: Package | None, how: str
) -> str:
    known = [f"build {wanted.build[:16]}"] if wanted.build else []
    if wanted.sha256:
        known.append(
            f"sha256 {wanted.sha256[0]}" if len(wanted.sha256) == 1 else f"one of {len(wanted.sha256)} wheels"
        )
    known += [f"from {url}" for url in wanted.urls[:1]] + [f"index {wanted.index}"] * bool(wanted.index)
    says = f"not on this machine ({', '.join(known) or 'by version'}; {wanted.witness})"
    if now is not None and now.departs and now.record is not None and now.record == wanted.build:
        are = "is" if len(now.departs) == 1 else "are"
        files = f"{len(now.departs)} of its files {are} {how} ({some_of(now.departs)})"
        says = f"it is installed, but {files}, and a sound copy is {says}"
    if wanted.version is None and wanted.sure:
        return f"{says}: {wanted.sure}"
    other = sorted({f"build {c.build[:16]} at {c.path}" for c in fitting if same_version(c.version, wanted.version)})
    if other:
        says += f"; another build of the same version is: {', '.join(other[:3])}"
    foreign = [
        candidate
        for candidate in candidates
        if candidate not in fitting
        and (candidate.build == wanted.build if wanted.build else same_version(candidate.version, wanted.version))
    ]
    if foreign:
        says += f"; {foreign[0].path} is for another interpreter or platform ({', '.join(foreign[0].tags)})"
    return says


def _editable_notes(wanted: Wanted, now: Package | None, live: Fingerprint) -> list[str]:
    gone = any((problem.kind, problem.subject) == ("source-gone", wanted.name) for problem in live.problems)
    if now is not None and now.editable == wanted.editable:
        if gone:
            return [f"{wanted.name} is an editable install of {now.editable}, which is not there"]
        if wanted.source is not None and now.source != wanted.source:
            code = "cannot be read" if now.source is None else "is other than it was"
            return [
                f"{wanted.name} is an editable install of {now.editable}, whose code {code}; no restore changes it"
            ]
        return []
    is_now = "it is not installed now" if now is None else f"it is {now.version} now"
    if now is not None and now.editable is not None:
        is_now = f"it is one of {now.editable} now"
    source = shlex.quote(wanted.editable or "")
    checkout = [f"git -C {source} checkout {wanted.commit}"] if wanted.commit else []
    commands = " && ".join([*checkout, f"uv pip install --no-deps -e {source}"])
    return [
        f"{wanted.name} was an editable install of {wanted.editable}, which no wheel brings back; {is_now}: "
        f"`{commands}`"
    ]


def _is_built_from(folder: str, wanted: Wanted, now: Package | None) -> tuple[bool, str]:
    """Whether the package is a whole build of `folder`, and what that leaves open; else what helps."""
    url = (now.direct_url or "") if now is not None else ""
    there = now is not None and now.editable is None and url.startswith("file:") and path_of_url(url) == folder
    if now is not None and there and not now.departs and wanted.version in (None, now.version):
        return True, f"it is built from {folder}; of which state of it cannot be told, since the lock gives no hash"
    is_now = "it is not installed now"
    if now is not None:
        is_now = f"{now.version} of {now.editable or url or 'an index'} is installed"
        is_now += f", and {some_of(now.departs)} is not as it was built" if now.departs else ""
    command = f"uv pip install --no-deps --reinstall {shlex.quote(folder)}"
    return False, f"the lock has it built from {folder}, which no wheel brings back; {is_now}: `{command}`"


def _step_notes(wanted: Wanted, found: tuple[Candidate, ...], how: str) -> list[str]:
    notes = []
    if wanted.departs:
        notes.append(
            f"{wanted.name}: when the stamp was taken {len(wanted.departs)} of its files were {how} "
            f"({some_of(wanted.departs, 5)}); the restore brings the installed build"
            f"{' with them' if how == _GONE else ', not those edits'}"
        )
    if wanted.sure:
        notes.append(f"{wanted.name} {wanted.shown}: {wanted.sure}")
    if wanted.version is not None and not same_version(found[0].version, wanted.version):
        notes.append(f"{wanted.name}: the build is the wanted one; its archive calls itself {found[0].version}")
    return notes


def source_of(candidate: Candidate) -> Source:
    """The name that the answer gives to a source."""
    if candidate.place == "uv-cache":
        return "pylock" if candidate.pointer is not None else "rebuilt-wheel"
    if candidate.place == "put-aside":
        return "rebuilt-wheel"
    return "find-links" if candidate.place == "pip-cache" else candidate.place


def plan_items(plan: Plan, chosen: dict[str, Candidate]) -> tuple[PlanItem, ...]:
    """The plan as the answer shows it; `chosen` are the sources that were proved, file by file."""
    items = []
    for step in plan.steps:
        candidate = chosen.get(step.name) or (step.candidates[0] if step.candidates else None)
        items.append(
            PlanItem(
                package=step.name,
                from_=step.was,
                to=(step.wanted.shown or (candidate.version if candidate else None)) if step.wanted else None,
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
    then = check_requirements(target.fingerprint).unmet if target.fingerprint is not None else ()
    as_then = {(unmet.package, unmet.line) for unmet in then}
    found = [unmet for unmet in after if (unmet.package, unmet.line) not in before]
    notes = [f"{WILL_BREAK}: {unmet.says}" for unmet in found if (unmet.package, unmet.line) not in as_then]
    same: dict[str, list[str]] = {}
    for unmet in found:
        if (unmet.package, unmet.line) in as_then:
            same.setdefault(unmet.package, []).append(unmet.needs)
    return notes + [
        f"{name} lacks what it requires, as it did at {target.reference}: {some_of(needs)}"
        for name, needs in same.items()
    ]


def _placeholder(wanted: Wanted) -> Package:
    return Package(name=wanted.name, version=wanted.version, build=wanted.build, installer=None, location="")
