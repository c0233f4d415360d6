"""Requirements that the packages of an environment have on each other, and which of them are not met."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envguard.acquire.packages.markers import marker_values
from envguard.model.fingerprint import Fingerprint


@dataclass(frozen=True)
class Unmet:
    """A Requires-Dist line, as it stands, that what is installed does not meet (`installed` None: not there)."""

    package: str
    version: str | None
    line: str
    needs: str
    installed: str | None

    @property
    def says(self) -> str:
        there = f"{self.needs} {self.installed} is installed" if self.installed else f"{self.needs} is not installed"
        return f"{self.package} {self.version or ''} requires `{self.line}`, but {there}".replace("  ", " ")


@dataclass(frozen=True)
class Requirements:
    """What is unmet, and (package, line) of what could not be read as a requirement."""

    unmet: tuple[Unmet, ...]
    unparsed: tuple[tuple[str, str], ...]


def marker_environment(fingerprint: Fingerprint) -> dict[str, str]:
    """Marker values of the fingerprinted environment, no extra asked for; this machine where none is recorded."""
    python, system = fingerprint.python, fingerprint.system
    arch, kernel = (system.arch, system.kernel) if system else (platform.machine(), platform.release())
    return {**marker_values(python.implementation, python.version, arch, kernel), "extra": ""}


def check_requirements(fingerprint: Fingerprint) -> Requirements:
    """Holds every Requires-Dist line against the distribution that import picks; extras are not asked for.

    A local version meets a requirement without one (`torch==2.11.0` is met by 2.11.0+cu130), a pre-release that is
    installed was chosen by someone; a version that is no version (`0+unknown` is one, `unsupported` is not) meets
    only a requirement without bounds.
    """
    environment = marker_environment(fingerprint)
    installed: dict[str, str | None] = {}
    for package in fingerprint.packages:
        installed.setdefault(package.name, package.version)
    unmet: list[Unmet] = []
    unparsed: list[tuple[str, str]] = []
    picked: set[str] = set()
    for package in fingerprint.packages:
        if package.name in picked:
            continue
        picked.add(package.name)
        for line in package.requires:
            try:
                requirement = Requirement(line)
                applies = requirement.marker is None or requirement.marker.evaluate(environment)
            except (InvalidRequirement, ValueError, KeyError):
                unparsed.append((package.name, line))
                continue
            needs = str(canonicalize_name(requirement.name))
            if applies and not _meets(requirement, needs in installed, installed.get(needs)):
                unmet.append(Unmet(package.name, package.version, line, needs, installed.get(needs)))
    return Requirements(tuple(unmet), tuple(unparsed))


def _meets(requirement: Requirement, there: bool, version: str | None) -> bool:
    if not there:
        return False
    if not requirement.specifier:
        return True
    try:
        return version is not None and requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
