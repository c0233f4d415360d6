"""Which compile caches a restore brings back, and where to: those that the reference names, each to its own path,
and those in use here.

A trainer that sets its own cache looks for it nowhere else. A path that is another machine's or another user's, that
cannot be made, or that others may write, is no place for entries that are loaded with full trust: what is kept of it
then goes into the cache in use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_evidence import why_not_ours
from envguard.acquire.torch.cache_places import Place, cache_places
from envguard.acquire.torch.cache_trust import Trust
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.model.fingerprint import CompileCache, Fingerprint, Gpu
from envguard.project import Project


@dataclass(frozen=True)
class Named:
    """A reference, by its label, and the GPUs of this machine, which tell whether it was taken here."""

    label: str
    fingerprint: Fingerprint | None
    gpus: tuple[Gpu, ...] | None


@dataclass(frozen=True)
class Target:
    """A place to bring back, how it is, what the reference says of it, and which other paths' copies belong there."""

    place: Place
    seen: CompileCache
    named: CompileCache | None = None
    instead_of: tuple[str, ...] = ()
    closed: str | None = None
    """Why nothing may be put there; None where it may."""


@dataclass(frozen=True)
class Targets:
    """The places, the reference's own first, and why one of its caches does not go to its own path."""

    places: tuple[Target, ...]
    notes: tuple[str, ...] = ()


def in_use(host: Host, project: Project) -> tuple[Place, ...]:
    """The caches that a trainer started from here would use: inductor's, and triton's where it is named."""
    base = str(project.root or project.start)
    found = cache_places(host, (), (), base)
    return tuple(
        place for place in found if place.kind == "inductor" or (place.kind == "triton" and not place.default)
    )


def targets(host: Host, project: Project, reference: Named, build: Build) -> Targets:
    """Every place that a restore to `reference` fills, as `build` finds it."""
    used = {place.path: _target(host, place, build) for place in in_use(host, project)}
    first = next(path for path, target in used.items() if target.place.kind == "inductor")
    own: dict[str, Target] = {}
    notes = []
    for cache in warm_caches(reference.fingerprint):
        assert reference.fingerprint is not None
        why = why_not_ours(reference.fingerprint, cache, host.machine(), reference.gpus)
        if why is None:
            target = used.get(cache.path) or _target(host, Place("inductor", cache.path, "reference"), build)
            if target.closed is None or cache.path in used:
                own[cache.path] = replace(target, named=cache)
                continue
            why = f"where nothing is put: {target.closed}"
        if cache.path not in used:
            goes = f"; what is kept of it goes to {first}" if used[first].closed is None else ""
            notes.append(f"{reference.label} had its inductor cache {cache.path} {why}{goes}")
            used[first] = replace(used[first], instead_of=(*used[first].instead_of, cache.path))
    first_instead = used[first].instead_of
    return Targets(
        (
            *(replace(each, instead_of=first_instead) if path == first else each for path, each in own.items()),
            *(each for path, each in used.items() if path not in own),
        ),
        tuple(notes),
    )


def warm_caches(taken: Fingerprint | None) -> tuple[CompileCache, ...]:
    """The inductor caches that held entries of the fingerprint's own build."""
    caches = taken.compile_cache if taken is not None else None
    return tuple(
        each for each in caches or () if each.kind == "inductor" and each.verdict == "VALID" and each.entries
    )


def _target(host: Host, place: Place, build: Build) -> Target:
    seen = read_cache(host, place, build, {}, Notes())
    if seen.verdict == "UNSAFE":
        return Target(place, seen, closed=seen.why)
    return Target(place, seen, closed=None if os.path.lexists(place.path) else _why_not_made(host, place.path))


def _why_not_made(host: Host, path: str) -> str | None:
    """Why no folder can be made at `path`, or none that only this user writes to; None where one can."""
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{above} cannot be written"
    return Trust(host, host.machine().uid).of_new(path)
