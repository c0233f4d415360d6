"""Folders of code beside the installed packages that none of them lists: a first install that a kill cut short before
its dist-info was written leaves one, and so does whoever copies code into site-packages."""

from __future__ import annotations

from collections.abc import Iterator

from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host

_CODE = (".py", ".so", ".pyd")


def unowned_folders(host: Host, env: Environment, distributions: Distributions) -> tuple[str, ...]:
    """Their paths. Only in a venv: conda and a distribution's own Python have packages that no dist-info tells of.

    A folder that another version was put aside for is told as half installed, and is none of these. Raises OSError.
    """
    found: list[str] = []
    for site in env.site if env.kind == "venv" else ():
        here = [dist for dist in distributions.found if dist.location == site]
        if any(managed_by(dist) for dist in here):
            continue
        owned = {top for dist in here for top in _tops(host, dist)}
        owned |= {top for aside in distributions.aside if aside.location == site for top in aside.tops}
        for name, kind in host.listing(site):
            if kind == "directory" and name.isidentifier() and name != "__pycache__" and name not in owned:
                path = f"{site}/{name}"
                found += [path] if any(each.endswith(_CODE) for each, _ in host.listing(path)) else []
    return tuple(found)


def _tops(host: Host, dist: Distribution) -> Iterator[str]:
    """Folders that a distribution speaks for; of one without RECORD those that top_level.txt or its name tells."""
    if dist.record is not None and dist.record.rows:
        yield from {row.path.partition("/")[0] for row in dist.record.rows}
        return
    yield dist.name.replace("-", "_")
    yield dist.raw_name.replace("-", "_")
    try:
        yield from host.read(f"{dist.directory}/top_level.txt", 1 << 16).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return
