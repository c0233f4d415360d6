"""`snapshot --keep`: the installed builds and the compile caches, put into the vault while they are still here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from envguard import clock
from envguard.acquire.packages.distributions import Distribution, Distributions, read_distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.cache_stamp import is_passing
from envguard.fingerprint.units import size as in_units
from envguard.model.fingerprint import CompileCache, Fingerprint
from envguard.project import Project
from envguard.restore.archive import RecordUnusable
from envguard.restore.candidate import Candidate, from_caches
from envguard.restore.installed import Installed
from envguard.restore.opening import opened
from envguard.restore.progress import Progress
from envguard.restore.vault import CacheManifest, Item, Vault, WheelManifest, items_of, wheel_manifest


@dataclass
class Kept:
    """What went into the vault, what was there before, and what could not be kept and why."""

    wheels: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def keep_live(host: Host, project: Project, env: Environment, taken: Fingerprint, progress: Progress) -> Kept:
    """Keeps the environment's builds and its compile caches. Raises OSError where the vault cannot be written."""
    vault = Vault(project.state)
    caches = read_caches(host, cache_directories(host, env, project.config))
    kept = keep_packages(vault, read_distributions(host, env), taken, from_caches(caches), progress)
    kept.caches += keep_caches(vault, host, taken)
    return kept


def keep_caches(vault: Vault, host: Host, taken: Fingerprint) -> list[str]:
    """Stores every compile cache that the fingerprint saw something in, each under its own path, and one that two
    paths lead to once; in words what was done. Raises OSError."""
    torch = taken.torch.version if taken.torch is not None else None
    says, kept = [], set[str]()
    for cache in taken.compile_cache or ():
        if cache.verdict == "EMPTY" or (real := host.realpath(cache.path)) in kept:
            continue
        kept.add(real)
        says.append(keep_cache(vault, host, Place(cache.kind, cache.path, "fingerprint"), cache, torch))
    return says


def keep_packages(
    vault: Vault, dists: Distributions, taken: Fingerprint, candidates: Iterable[Candidate], progress: Progress
) -> Kept:
    """Stores every installed build that the vault lacks: out of a sound archive, else out of the install itself.

    Raises OSError where the vault cannot be written.
    """
    kept = Kept()
    sources: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        sources.setdefault(candidate.build, []).append(candidate)
    known = {manifest.build for _, manifest in vault.manifests() if isinstance(manifest, WheelManifest)}
    wanted = [package for package in taken.packages if package.editable is None]
    progress.begin("keep", sum(package.bytes or 0 for package in wanted))
    with vault.writing():
        for package in wanted:
            build, dist = package.record or package.build, dists.of(package.name)
            if build is None or dist is None:
                kept.notes.append(f"{package.name} {package.version}: it has no RECORD, so its files are not known")
            elif build in known:
                kept.known.append(package.name)
            elif (why := _keep(vault, dist, build, sources.get(build, []))) is None:
                kept.wheels.append(package.name)
            else:
                kept.notes.append(f"{package.name} {package.version} was not kept: {why}")
            progress.advance(package.bytes or 0)
    progress.end()
    return kept


def _keep(vault: Vault, dist: Distribution, build: str, sources: list[Candidate]) -> str | None:
    """Stores one build; in words why it could not be."""
    why = "no source of it could be read"
    for candidate in sources:
        try:
            with opened(candidate) as files:
                items = items_of(vault, files, candidate.dist_info)
        except (RecordUnusable, FileNotFoundError) as error:
            why = str(error)
            continue
        if not isinstance(items, str):
            vault.write(wheel_manifest(candidate, items))
            return None
        why = items
    try:
        installed = Installed(dist)
        items = items_of(vault, installed, installed.dist_info)
        if isinstance(items, str):
            return items
        vault.write(wheel_manifest(installed.candidate(build), items))
    except (RecordUnusable, FileNotFoundError, KeyError) as error:
        return f"{why}; {error}"
    return None


def keep_cache(vault: Vault, host: Host, place: Place, seen: CompileCache, torch: str | None) -> str:
    """Stores a compile cache that this build wrote; in words what was done. Raises OSError.

    One of another build, or that others could write to, is not kept: it would be loaded with full trust.
    """
    if seen.verdict != "VALID":
        return f"the {place.kind} cache {place.path} was not kept: {seen.verdict}" + (
            f" ({seen.why})" if seen.why else ""
        )
    root = host.realpath(place.path)
    items = []
    with vault.writing():
        for path, stat in host.walk(root).entries:
            if not stat.is_file or is_passing(path):
                continue
            try:
                sha256 = host.digest(f"{root}/{path}")
                if not vault.keep_path(f"{root}/{path}", sha256):
                    continue  # written over by a compile that is running: not an entry of this moment
            except FileNotFoundError:
                continue
            items.append(Item(path, sha256, stat.size, stat.mode, stat.mtime_ns))
        listed = "".join(f"{item.path}\0{item.sha256}\n" for item in items)
        vault.write(
            CacheManifest(
                cache=place.kind,
                digest=seen.digest or hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest(),
                path=place.path,
                torch=torch,
                tags=tuple(sorted(seen.writers)),
                gpus=seen.gpus,
                tritons=seen.tritons,
                stored=clock.now(),
                files=tuple(items),
            )
        )
    size = sum(item.size for item in items)
    return f"kept the {place.kind} cache {place.path}: {len(items)} files, {in_units(size)}"
