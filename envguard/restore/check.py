"""After the install: is what lies in the environment now exactly the build that was wanted, file by file?"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path

from envguard.acquire.packages.contents import Policy, read_contents
from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.record_file import Row
from envguard.acquire.seam.host import Host
from envguard.restore.footprint import own_dists
from envguard.restore.progress import Progress
from envguard.state.digests import Digests


def check_installed(
    host: Host,
    env: Environment,
    dists: Distributions,
    builds: Mapping[str, tuple[str, ...]],
    digests: Digests,
    progress: Progress,
) -> list[str]:
    """What is wrong with the installed packages: another build than `builds` says, or files that are not what their
    RECORD says. Every file is read."""
    wrong: list[str] = []
    single: dict[str, Distribution] = {}
    for name in builds:
        found = own_dists(env, (name,), dists)
        if len(found) != 1:
            places = ", ".join(dist.directory for dist in found)
            wrong.append(f"{name} has {len(found)} dist-infos: {places}" if found else f"{name} is not installed")
        elif (picked := dists.of(name)) != found[0]:
            wrong.append(f"{name}: import picks another one, in {picked.location if picked else '?'}")
        else:
            single[name] = found[0]
    contents = read_contents(host, single.values(), Policy(deep=True), digests, progress.advance)
    wrong += [f"{item.what}: {item.why}" for item in contents.unknown]
    for name, dist in single.items():
        seen = contents.of[dist.directory]
        wrong += _scripts(dist, dist.record.rows if dist.record else ())
        if seen.build in builds[name]:
            continue
        if seen.identity not in builds[name]:
            wrong.append(f"{name}: the installed build is {str(seen.identity)[:16]}, not {builds[name][0][:16]}")
        wrong += [f"{name}: {dist.location}/{path}: {got}" for path, got in sorted(seen.departs.items())]
    return wrong


def _scripts(dist: Distribution, rows: Iterable[Row]) -> list[str]:
    """Files outside site-packages (scripts, data): their content is the installer's own, their being there is not."""
    outside = [posixpath.normpath(f"{dist.location}/{row.path}") for row in rows if row.path.startswith("../")]
    return [f"{dist.name}: {path} is missing" for path in outside if not Path(path).is_file()]


def check_removed(env: Environment, dists: Distributions, name: str) -> list[str]:
    """What is left of a package that was to be removed."""
    return [f"{name}: {dist.directory} is still there" for dist in own_dists(env, (name,), dists)]
