"""Every witness asked once: what `timeline` understands and what `collect` puts into a bundle.

The order does not matter to the answer; a witness that is missing or refuses is noted and never ends the survey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from envguard.acquire import environment, installs, live_processes, uv_cache
from envguard.acquire.archive_uses import ArchiveUse, read_archive_uses
from envguard.acquire.checkpoints import Checkpoints, find_checkpoints
from envguard.acquire.distributions import Distributions, read_distributions
from envguard.acquire.environment import Environment
from envguard.acquire.host import Host, Machine
from envguard.acquire.installs import Install
from envguard.acquire.live_processes import EnvironmentProcess
from envguard.config import Config
from envguard.model.action import Unavailable
from envguard.model.evidence import Unknown

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """Whose past is asked for: paths as they are on the host (absolute)."""

    start: str
    python: str | None
    root: str | None
    state: str | None
    checkpoint_roots: tuple[str, ...]
    config: Config = field(default_factory=Config)
    own_pids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Survey:
    """What the witnesses said; a witness that was not there is in `unavailable`, with the reason."""

    machine: Machine
    env: Environment
    distributions: Distributions
    installs: tuple[Install, ...]
    archive_uses: tuple[ArchiveUse, ...]
    uv_cache_directories: tuple[str, ...]
    processes: tuple[EnvironmentProcess, ...]
    checkpoints: Checkpoints
    unavailable: tuple[Unavailable, ...] = ()
    unknown: tuple[Unknown, ...] = ()


def survey(host: Host, request: Request, progress: Progress = lambda step: None) -> Survey:
    """Asks every witness. Raises `InputError` where there is no environment to examine."""
    machine = host.machine()
    env = environment.locate(host, request.python, request.start)
    notes: list[Unknown] = [*env.unknown]
    missing: list[Unavailable] = []
    progress("installed distributions")
    distributions = read_distributions(host, env)
    dated = installs.read_installs(host, distributions)
    notes += [*distributions.unknown, *dated.unknown]
    progress("running processes")
    processes = live_processes.read_processes(host, env, request.own_pids)
    notes += processes.unknown
    progress("uv cache")
    caches = uv_cache.read_caches(host, uv_cache.cache_directories(host, env, request.config))
    notes += caches.unknown
    if not caches.directories:
        missing.append(Unavailable(witness="uv-cache", why="there is none in the usual places"))
    uses, unseen = read_archive_uses(host, caches, processes.value, env.site)
    notes += unseen
    progress("checkpoints")
    checkpoints = find_checkpoints(host, request.checkpoint_roots)
    notes += checkpoints.unknown
    if not checkpoints.roots:
        missing.append(Unavailable(witness="checkpoint", why="none of the places to look in exists"))
    return Survey(
        machine=machine,
        env=env,
        distributions=distributions,
        installs=dated.found,
        archive_uses=uses,
        uv_cache_directories=caches.directories,
        processes=processes.value,
        checkpoints=checkpoints,
        unavailable=tuple(missing),
        unknown=tuple(dict.fromkeys(notes)),
    )
