"""References that know only some packages: a lock file, or what witnesses still say of an unstamped checkpoint.

Such a reference is laid over the fingerprint that it is compared with: what it does not speak of is taken as the
other side has it, and said to be so, so that one comparison serves all references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from packaging.version import InvalidVersion, Version

from envguard.fingerprint.lock import Lock, Locked
from envguard.fingerprint.package_changes import full_version, picked
from envguard.fingerprint.requirements import marker_environment
from envguard.fingerprint.rules import Change, is_torch_stack
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Package, Torch
from envguard.model.local_version import parse_local

Builds = Mapping[str, str]
"""sha256 of a wheel (hex) → build identity of what it unpacks to, as caches know it."""


@dataclass(frozen=True)
class Partial:
    """`fingerprint` is the other side's with the known packages in it; the rest says what that hides."""

    fingerprint: Fingerprint
    changes: tuple[Change, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class Known:
    """What a witness says of one package: its version, perhaps its build, or that it was not there.

    `exact` is False where `==` was meant as a requirement, which a local version meets. Without `absent`, a version
    of None says that the package was there and no witness knows which.
    """

    name: str
    version: str | None
    build: str | None = None
    exact: bool = True
    absent: bool = False
    doubt: str = "it was replaced, and no witness knows what was there"


@dataclass(frozen=True)
class Recalled:
    """What witnesses know of an unstamped checkpoint; `beyond` says why what they do not name is not known to be as
    it is now."""

    known: Sequence[Known]
    beyond: str | None = None


def of_lock(lock: Lock, other: Fingerprint, builds: Builds) -> Partial:
    """What a lock asks for on the interpreter and platform of `other`."""
    there = picked(other)
    selected = lock.select(marker_environment(other), installed_versions(other))
    known = [_known(item, builds, exact=lock.kind != "requirements") for item in selected.packages]
    taken, changes, unknown = _lay_over(other, known, keep_rest=False)
    undecided = {item.name for item in selected.several}
    unknown += [Unknown(f"packages: {item.name}", item.why) for item in selected.several]
    # Of these the other side is taken as it is, so that they are neither added nor removed.
    kept = [there[name] for name in sorted(undecided) if name in there]
    taken = msgspec.structs.replace(
        taken, packages=tuple(sorted((*taken.packages, *kept), key=lambda each: each.name))
    )
    scope = f"{lock.path} speaks of packages only: interpreter, driver, GPUs, code and data were not compared"
    changes.append(Change("unknown", "scope", "scope", detail=scope))
    changes += [Change("unknown", "lock", "scope", detail=note) for note in lock.notes]
    return Partial(taken, tuple(changes), tuple(unknown))


def installed_versions(fingerprint: Fingerprint) -> dict[str, tuple[str, ...]]:
    """What each package that import picks is installed as, for a lock to be selected by."""
    return {
        name: tuple(dict.fromkeys(each for each in (package.version, full_version(fingerprint, package)) if each))
        for name, package in picked(fingerprint).items()
    }


def _known(item: Locked, builds: Builds, exact: bool) -> Known:
    found = {builds[digest] for digest in item.sha256 if digest in builds}
    # Wheels of several platforms may lie in one cache; which of them was meant is then not told by the hash.
    return Known(item.name, item.version, found.pop() if len(found) == 1 else None, exact)


def of_witnesses(recalled: Recalled, other: Fingerprint, label: str, why: str | None) -> Partial:
    """What is still known of an environment that was never fingerprinted; the rest is undetermined."""
    taken, changes, unknown = _lay_over(other, list(recalled.known), keep_rest=True)
    if recalled.beyond is not None:
        unknown.append(Unknown("packages", recalled.beyond))
    unknown.append(Unknown(label, f"{why or 'it has no stamp'}; only what witnesses still know was compared"))
    return Partial(taken, tuple(changes), tuple(unknown))


def _lay_over(
    other: Fingerprint, known: list[Known], keep_rest: bool
) -> tuple[Fingerprint, list[Change], list[Unknown]]:
    there = picked(other)
    packages: dict[str, Package] = dict(there) if keep_rest else {}
    unproved: list[str] = []
    unknown: list[Unknown] = []
    torch = other.torch
    for item in known:
        installed = there.get(item.name)
        if item.absent:
            packages.pop(item.name, None)
            continue
        if item.version is None and item.build is None and keep_rest:
            unknown.append(Unknown(f"packages: {item.name}", item.doubt))
            continue
        same = installed is not None and _agrees(item, installed, full_version(other, installed))
        packages[item.name] = _package(item, installed if same else None)
        if same and item.build is None:
            if is_torch_stack(item.name):
                why = f"{item.version or 'the same version'}: a version alone does not tell which build was meant"
                unknown.append(Unknown(f"packages: build of {item.name}", why))
            else:
                unproved.append(item.name)
        if item.name == "torch" and not same:
            torch = _torch(item, other.torch)
    changes = []
    if unproved:
        detail = f"{len(unproved)} packages were compared by version only: no cache knows the wheels that were meant"
        changes.append(Change("packages", "builds", "locked", detail=detail))
    taken = msgspec.structs.replace(
        other, packages=tuple(packages[name] for name in sorted(packages)), torch=torch, shadowed=other.shadowed
    )
    return taken, changes, unknown


def _agrees(item: Known, installed: Package, full: str | None) -> bool:
    if item.version is None or item.version in (installed.version, full):
        return True
    try:
        wanted, has = Version(item.version), Version(installed.version or "")
    except InvalidVersion:
        return False
    return wanted == has or (not item.exact and wanted.local is None and str(wanted) == has.public)


def _package(item: Known, installed: Package | None) -> Package:
    if installed is not None:
        return installed if item.build is None else msgspec.structs.replace(installed, build=item.build, departs=())
    return Package(name=item.name, version=item.version, build=item.build, installer=None, location="")


def _torch(item: Known, other: Torch | None) -> Torch | None:
    """The torch section of another version: the accelerator as its local tag states it, the rest unknown."""
    if other is None or item.version is None:
        return other
    tag = parse_local(item.version)
    cuda, hip, xpu = other.cuda, other.hip, other.xpu
    if tag.accelerator is not None:
        cuda = ".".join(str(each) for each in tag.cuda if each is not None) if tag.cuda is not None else None
        # The tag names no version of ROCm or XPU as `version.py` does; the accelerator follows from the tag.
        hip, xpu = None, None
    return msgspec.structs.replace(
        other,
        version=item.version,
        metadata_version=item.version,
        cuda=cuda,
        hip=hip,
        xpu=xpu,
        git_version=None,
        libraries={},
    )
