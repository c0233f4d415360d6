"""Files of two packages: one path that two RECORDs list, as opencv-python and opencv-python-headless do.

Nobody edited such a file: who was installed last has it, and the other has lost it. Where both bring one content, as
parts of a namespace bring their `__init__.py`, neither has lost anything.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from envguard.acquire.packages.contents import MISSING, hash_as
from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.seam.host import Host


def overwriters(
    host: Host, dist: Distribution, departs: Mapping[str, str], distributions: Distributions
) -> dict[str, Distribution]:
    """Path of RECORD → the package whose own file lies there. `departs` are the files that are not as RECORD says,
    each with the hash that it has now."""
    left = {path: got for path, got in departs.items() if got != MISSING}
    found: dict[str, Distribution] = {}
    for other in distributions.found if left else ():
        if other.name == dist.name or other.location != dist.location:
            continue
        listed = _listed(host, other, left)
        for path, wanted in listed.items():
            if _is(host, f"{dist.location}/{path}", left[path], wanted):
                found[path] = other
                del left[path]
    return found


def _listed(host: Host, other: Distribution, paths: Collection[str]) -> dict[str, str]:
    """Those of `paths` that a RECORD lists, with its hashes; few RECORDs are parsed for it."""
    try:
        data = host.read(f"{other.directory}/RECORD")
    except OSError:
        return {}  # what cannot be read names nothing; its own package says that it cannot be
    if b'"' not in data and not any(os.fsencode(path) in data for path in paths):
        return {}
    rows = other.record.rows if other.record is not None else ()
    return {row.path: row.hash for row in rows if row.path in paths and row.hash is not None}


def _is(host: Host, path: str, got: str, wanted: str) -> bool:
    """Whether a file of hash `got` has the hash `wanted`, which may be by another algorithm."""
    if got.partition("=")[0] == wanted.partition("=")[0]:
        return got == wanted
    try:
        return hash_as(host, path, wanted) == wanted
    except OSError:
        return False
