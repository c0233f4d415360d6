"""Find: every place on this machine that may hold a wanted build."""

from __future__ import annotations

import posixpath

import msgspec

from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.packages.uv_cache_places import cache_directories, settings
from envguard.acquire.packages.wheel_files import WheelFile, find_pip_wheels, find_wheels, pip_cache_directory
from envguard.acquire.seam.host import Host
from envguard.model.evidence import Unknown
from envguard.project import Project
from envguard.restore.candidate import Candidate, from_caches, from_wheel
from envguard.restore.installed import aside_candidates
from envguard.restore.plan import same_version
from envguard.restore.vault import Vault
from envguard.restore.wanted import Target


def find_candidates(
    host: Host, env: Environment, project: Project, target: Target, names: frozenset[str], thorough: bool
) -> tuple[tuple[Candidate, ...], tuple[Unknown, ...]]:
    """Sources for `names`: uv's caches, what pip put aside, the vault, find-links folders, and with `thorough` pip's
    cache too."""
    caches = read_caches(host, cache_directories(host, env, project.config))
    unknown = [*caches.unknown]
    found = [candidate for candidate in from_caches(caches) if candidate.name in names]
    aside, unseen = aside_candidates(host, read_distributions(host, env), names)
    found, unknown = [*found, *aside], [*unknown, *unseen]
    found += [candidate for candidate in Vault(project.state).candidates() if candidate.name in names]
    named = [posixpath.dirname(path) for wanted in target.packages for path in wanted.files if wanted.name in names]
    wheels, unseen = find_wheels(host, [*find_links_folders(host, project), *named], names)
    unknown += unseen
    if thorough:
        more, unseen = find_pip_wheels(host, pip_cache_directory(host), names)
        wheels, unknown = (*wheels, *more), [*unknown, *unseen]
    found += [_with_hash(host, wheel, target, unknown) for wheel in wheels]
    return tuple(found), tuple(unknown)


def find_links_folders(host: Host, project: Project) -> tuple[str, ...]:
    """Configured folders, and those that uv's own variable and configuration name."""
    named = [posixpath.normpath(str(project.path(folder))) for folder in project.config.find_links]
    told = [(host.machine().cwd, part) for part in host.environ().get("UV_FIND_LINKS", "").replace(",", " ").split()]
    for folder, table in settings(host):
        links = table.get("find-links")
        told += [(folder, link) for link in (links if isinstance(links, list) else []) if isinstance(link, str)]
    for folder, link in told:
        path = link.removeprefix("file://")
        if "://" not in path:
            named.append(posixpath.normpath(posixpath.join(folder, path)))
    return tuple(dict.fromkeys(named))


def _with_hash(host: Host, wheel: WheelFile, target: Target, unknown: list[Unknown]) -> Candidate:
    """A wheel file's own sha256, worked out only where the goal is known by such hashes."""
    candidate = from_wheel(wheel)
    asked = any(
        wanted.sha256 and wanted.name == wheel.name and same_version(wanted.version, wheel.version)
        for wanted in target.packages
    )
    if not asked or not wheel.path.endswith((".whl", ".body")):
        return candidate
    try:
        return msgspec.structs.replace(candidate, sha256=(host.digest(wheel.path),))
    except OSError as error:
        unknown.append(Unknown.refused(wheel.path, error))
        return candidate
