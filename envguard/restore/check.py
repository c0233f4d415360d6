"""After the install: is what lies in the environment now exactly the build that was wanted, file by file?"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

from envguard.acquire.distributions import Distribution, Distributions
from envguard.acquire.environment import Environment
from envguard.acquire.record_file import Row, build_identity, normalised
from envguard.restore.archive import Folder, check_rows
from envguard.restore.footprint import own_dists
from envguard.restore.progress import Progress


def check_installed(env: Environment, dists: Distributions, name: str, build: str, progress: Progress) -> list[str]:
    """What is wrong with the installed package: another build, or files that are not what its RECORD says."""
    found = own_dists(env, (name,), dists)
    if not found:
        return [f"{name} is not installed"]
    if len(found) > 1:
        places = ", ".join(dist.directory for dist in found)
        return [f"{name} has {len(found)} dist-infos: {places}"]
    if dists.of(name) != found[0]:
        return [f"{name}: import picks another one, in {(dists.of(name) or found[0]).location}"]
    record = found[0].record
    if record is None:
        return [f"{name}: {found[0].directory}/RECORD cannot be read"]
    got = build_identity(record.rows)
    if got != build:
        return [f"{name}: the installed build is {got[:16]}, not {build[:16]}"]
    root = Path(found[0].location)
    faults = check_rows(Folder(root), normalised(record.rows), progress)
    return [f"{name}: {root}/{fault}" for fault in faults] + _scripts(found[0], record.rows)


def _scripts(dist: Distribution, rows: Iterable[Row]) -> list[str]:
    """Files outside site-packages (scripts, data): their content is the installer's own, their being there is not."""
    outside = [posixpath.normpath(f"{dist.location}/{row.path}") for row in rows if row.path.startswith("../")]
    return [f"{dist.name}: {path} is missing" for path in outside if not Path(path).is_file()]


def check_removed(env: Environment, dists: Distributions, name: str) -> list[str]:
    """What is left of a package that was to be removed."""
    return [f"{name}: {dist.directory} is still there" for dist in own_dists(env, (name,), dists)]
