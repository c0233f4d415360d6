"""Where a run's compile cache lay, by what fingerprints say: a trainer sets its own folder, and no variable of the
shell names it afterwards.

Only what was taken on this machine counts, and of that the caches of this user: the same path elsewhere is another
folder, and one that is not there would look like a cache that was cleared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from envguard.acquire.seam.host import Host, Machine
from envguard.acquire.torch.cache_places import Place, filled_launch_place
from envguard.model.fingerprint import CompileCache, Fingerprint, Gpu

NAMELESS = frozenset({"", "localhost", "localhost.localdomain"})
"""Names that any machine may have."""


def same_machine(host: str, gpus: tuple[Gpu, ...] | None, other: str, others: tuple[Gpu, ...] | None) -> bool:
    """Whether two machines are one: by the name of the host and, where both sides know their GPUs, by one in common.

    A name alone may be used twice, and clones of one image bear the same.
    """
    if host != other:
        return False
    ours, theirs = ({gpu.uuid_digest for gpu in each or () if gpu.uuid_digest} for each in (gpus, others))
    if ours and theirs:
        return bool(ours & theirs)
    return host not in NAMELESS


def taken_here(taken: Fingerprint, machine: Machine, gpus: tuple[Gpu, ...] | None = None) -> bool:
    """Whether a fingerprint was taken on this machine; `gpus` are those of now, None where nobody asked."""
    return taken.system is not None and same_machine(taken.system.host, taken.gpus, machine.host, gpus)


def why_not_ours(
    taken: Fingerprint, cache: CompileCache, machine: Machine, gpus: tuple[Gpu, ...] | None
) -> str | None:
    """Why the path that a fingerprint gives a cache says nothing about this machine and user; None where it does."""
    if not taken_here(taken, machine, gpus):
        return f"on another machine ({taken.system.host if taken.system is not None else 'not recorded'})"
    if cache.owner != machine.user:
        return f"as a folder of another user ({cache.owner or 'not recorded'})"
    if not cache.path.startswith("/") or ".." in cache.path.split("/"):
        return "under a path that is no plain absolute one"
    return None


def seen_here(taken: Fingerprint, machine: Machine, gpus: tuple[Gpu, ...] | None = None) -> tuple[CompileCache, ...]:
    """This user's caches on this machine that a fingerprint saw something in."""
    return tuple(
        cache
        for cache in taken.compile_cache or ()
        if cache.verdict != "EMPTY" and why_not_ours(taken, cache, machine, gpus) is None
    )


def evident_places(
    taken: Iterable[Fingerprint], machine: Machine, gpus: tuple[Gpu, ...] | None = None
) -> tuple[Place, ...]:
    """Places where this user's caches lay on this machine and held something, each once."""
    found: dict[str, Place] = {}
    for each in taken:
        for cache in seen_here(each, machine, gpus):
            found.setdefault(cache.path, Place(cache.kind, cache.path, f"fingerprint {each.id}"))
    return tuple(found.values())


def with_evident_places(
    host: Host,
    named: Iterable[Place],
    site: Sequence[str],
    abi: str,
    taken: Iterable[Fingerprint],
    gpus: tuple[Gpu, ...] | None = None,
) -> tuple[Place, ...]:
    """The places that variables and the configuration name, each once, then those that only `launch` and the
    fingerprints `taken` know of. What held entries once is no default that nobody uses, whoever else names it."""
    places = {place.path: place for place in named}
    private = filled_launch_place(host, host.environ(), site, abi)
    for place in (*((private,) if private is not None else ()), *evident_places(taken, host.machine(), gpus)):
        places[place.path] = replace(places.get(place.path, place), default=False)
    return tuple(places.values())
