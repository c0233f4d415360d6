"""Folders of code beside the installed packages that none of them lists: a first install that a kill cut short before
its dist-info was written leaves one, and so does whoever copies code into site-packages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from envguard.acquire.memo import Memo, remembered
from envguard.acquire.packages.contents import Contents
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.state.digests import is_racy

_CODE = (".py", ".so", ".pyd")
_TOLD_ELSEWHERE = ("sitecustomize", "usercustomize")


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


def modules_of(
    host: Host, dists: Iterable[Distribution], contents: Mapping[str, Contents], memo: Memo
) -> dict[str, tuple[str, ...]]:
    """Directory of the metadata → the modules that the distribution brings, at the top of its folder, and of a folder
    that packages share those below (`nvidia.cudnn`); remembered for as long as its RECORD stays the same."""
    found = {}
    for dist in dists:
        content = contents.get(dist.directory)
        key = content.record_key if content is not None else None
        ask = partial(_modules, host, dist)
        settled = key is not None and key[0] >= 0 and not is_racy(key, time.time_ns())
        stat = ":".join(map(str, key or ()))
        text = remembered(memo, f"all modules of {dist.directory}", stat, ask) if settled else ask()
        found[dist.directory] = tuple(text.split())
    return found


def _modules(host: Host, dist: Distribution) -> str:
    """Names parted by blanks, since an identifier holds none."""
    shared = _shared(dist)
    names = set()
    for top in _tops(host, dist):
        stem = top.partition(".")[0] if top.endswith((".py", ".so")) else top
        if stem.isidentifier() and stem != "__pycache__":
            names |= {f"{stem}.{part}" for part in shared[stem]} if stem in shared else {stem}
    return " ".join(sorted(names))


def _shared(dist: Distribution) -> dict[str, set[str]]:
    """Folders without an `__init__` of their own, as parts of a namespace are, with the folders below that a
    distribution brings."""
    found: dict[str, set[str]] = {}
    whole = set()
    for row in dist.record.rows if dist.record is not None else ():
        top, _, rest = row.path.partition("/")
        part, slash, _ = rest.partition("/")
        if part.startswith("__init__.") or (part and not slash and part.endswith(_CODE)):
            whole.add(top)
        elif slash and part.isidentifier() and part != "__pycache__":
            found.setdefault(top, set()).add(part)
    return {top: parts for top, parts in found.items() if top not in whole}


def unowned_modules(
    host: Host, env: Environment, modules: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str]]:
    """(module, path) of code in a venv's folders of packages that belongs to none of them; `modules` as `modules_of`
    has them. Raises OSError."""
    owned = {name for names in modules.values() for name in names}
    shared = {name.partition(".")[0] for name in owned if "." in name} - owned
    for site in env.site if env.kind == "venv" else ():
        if not site.startswith(f"{env.prefix}/"):
            continue
        for name, kind in host.listing(site):
            module = name.partition(".")[0] if name.endswith(_CODE) else name
            if not module.isidentifier() or module in owned or module.startswith("_") or module in _TOLD_ELSEWHERE:
                continue
            path = f"{site}/{name}"
            if module in shared:
                yield from _unowned_parts(host, path, module, owned) if kind == "directory" else ()
            elif name.endswith(_CODE) or (
                kind == "directory" and any(each.endswith(_CODE) for each, _ in host.listing(path))
            ):
                yield module, path


def _unowned_parts(host: Host, path: str, module: str, owned: set[str]) -> Iterator[tuple[str, str]]:
    """Folders of a shared folder that no package brings and that are not empty."""
    for part, kind in host.listing(path):
        if kind != "directory" or not part.isidentifier() or part == "__pycache__" or f"{module}.{part}" in owned:
            continue
        if any(name != "__pycache__" for name, _ in host.listing(f"{path}/{part}")):
            yield f"{module}.{part}", f"{path}/{part}"


def _tops(host: Host, dist: Distribution) -> Iterator[str]:
    """Folders that a distribution speaks for; of one without RECORD those that top_level.txt or its name tells."""
    if dist.record is not None and dist.record.rows:
        yield from {row.path.partition("/")[0] for row in dist.record.rows}
        return
    yield dist.name.replace("-", "_")
    yield dist.raw_name.replace("-", "_")
    try:
        yield from host.read(f"{dist.directory}/top_level.txt", 1 << 16).decode("utf-8", "replace").split()
    except (FileNotFoundError, NotADirectoryError):
        return
