"""What can be said before anything is done: whose environment it is, and why the plan could not be carried out.

A dry run and the restore itself ask the same questions here, once the sources are proved, so that the one foresees
what the other does.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envguard.acquire.packages.distributions import Distribution, Distributions, read_distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.processes.live_processes import EnvironmentProcess
from envguard.acquire.runs.elsewhere import said_of_another
from envguard.acquire.seam.host import Host
from envguard.fingerprint.units import size
from envguard.model.action import Obstacle
from envguard.restore import footprint, point
from envguard.restore.footprint import Footprint, own_dists
from envguard.restore.installed import unfinished
from envguard.restore.locks import occupants, who_may
from envguard.restore.owners import settle_owners
from envguard.restore.plan import Plan
from envguard.restore.staging import Staging
from envguard.restore.wanted import Target


def of_another(host: Host, env: Environment, target: Target) -> str | None:
    """That the reference is of another environment, which is still there: this one would be made like it."""
    return said_of_another(host, target.reference, target.fingerprint, env.prefix, env.how)


def foresee(host: Host, env: Environment, target: Target, plan: Plan, staging: Staging) -> list[Obstacle]:
    """Works out what the plan touches (into `staging`), and returns why it cannot be carried out."""
    names = {step.name for step in plan.steps}
    coming = [item.incoming for item in staging.staged]
    dists = read_distributions(host, env)
    staging.print = footprint.footprint(env, dists, names, coming, unfinished(dists, names))
    going = own_dists(env, names, dists)
    staying = [dist for dist in dists.found if dist not in going]
    wanted = {each.name: each for each in target.packages}
    owners = settle_owners(env, staying, coming, wanted)
    left = footprint.left_over(env, going, staying, coming)
    staging.owners = replace(owners, notes=(*owners.notes, *left))
    return [
        *_closed(env),
        *_outside(env, staging.print),
        *_hidden(env, dists, going, [item.step.name for item in staging.staged]),
        *staging.owners.refused,
    ]


def _closed(env: Environment) -> Iterator[Obstacle]:
    for path in (env.prefix, *env.site):
        if os.path.isdir(path) and not os.access(path, os.W_OK) and _inside(env, path):
            yield Obstacle(package="", path=path, why=f"it cannot be written by this user: {who_may(Path(path))}")
            return


def _inside(env: Environment, path: str) -> bool:
    return f"{path}/".startswith(f"{env.prefix.rstrip('/')}/")


def _outside(env: Environment, touched: Footprint) -> Iterator[Obstacle]:
    """Folders of packages that are links to somewhere else: what is written there is another environment's, or a
    person's. The environment's own folders may be links: what is behind them is the environment."""
    own = (env.prefix, f"{env.prefix}/bin", f"{env.prefix}/lib", *env.site)
    roots = {f"{os.path.realpath(path).rstrip('/')}/" for path in own}
    for folder in sorted({posixpath.dirname(path) for path in touched.touched | touched.leaving}):
        real = os.path.realpath(folder)
        if _inside(env, folder) and not any(f"{real}/".startswith(root) for root in roots):
            says = f"it leads out of the environment, to {real}, where a restore would write"
            yield Obstacle(package="", path=folder, why=says)
            return


def _hidden(
    env: Environment, dists: Distributions, going: tuple[Distribution, ...], names: list[str]
) -> Iterator[Obstacle]:
    """Packages that an import would still find in a folder before the environment's own."""
    order = {entry.path: number for number, entry in enumerate(env.sys_path)}
    ours = order.get(env.site[0], 0)
    for dist in dists.found:
        if dist.name in names and dist not in going and order.get(dist.location, ours) < ours:
            says = (
                f"{dist.location} comes first on sys.path: an import would go on finding {dist.version or 'it'} there"
            )
            yield Obstacle(package=dist.name, path=dist.directory, why=says)


def no_room(env: Environment, staging: Staging, folder: Path) -> Obstacle | None:
    """Where the disk cannot hold it, said before the first change: uv would find out in the middle. `folder` is where
    the roll-back point will be, or the nearest folder above it that is there."""
    assert staging.print is not None
    copies = point.to_copy(staging.print.touched, staging.print.leaving, folder)
    saving = sum(copies.values())
    installing = sum(item.candidate.bytes or 0 for item in staging.staged)
    needs: dict[int, tuple[str, int]] = {}
    for path, more in ((str(folder), saving + installing), (env.prefix, installing)):
        device = os.stat(path).st_dev
        place, before = needs.get(device, (path, 0))
        needs[device] = (place, before + more)
    for path, needed in needs.values():
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
        if free < needed:
            says = f"{path} has {size(free)} free and the restore needs {size(needed)}"
            return Obstacle(package="", path=path, why=says)
    return None


def in_use(host: Host, env: Environment) -> Obstacle | None:
    """That processes run from the environment."""
    living = occupants(host, env)
    return Obstacle(package="", path=None, why=says_in_use(env, living)) if living else None


def says_in_use(env: Environment, living: tuple[EnvironmentProcess, ...]) -> str:
    """Who runs from the environment."""
    listed = "; ".join(f"PID {process.pid} ({process.command[:60]})" for process in living[:5])
    return f"{len(living)} process(es) run from {env.prefix}: {listed}"
