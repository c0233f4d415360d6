"""Modules that this process imported from outside the packages that are installed under their names.

`sys.path.insert(0, …)` before an import is enough: metadata then tells of one package, and the process runs another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envguard.acquire.packages.distributions import Distribution, path_of_url
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.packages.shadowing import Listing, modules_of
from envguard.acquire.seam.host import Host


@dataclass(frozen=True)
class Elsewhere:
    """A module that was not imported from where its package (normalised name) is installed."""

    package: str
    module: str
    path: str
    """Where it was imported from."""


def imported_elsewhere(
    host: Host, env: Environment, found: Iterable[Distribution], modules: Mapping[str, object] | None = None
) -> tuple[Elsewhere, ...]:
    """Every module of an installed package that this process imported from another place than that package's.

    Asked of are top-level modules and, below namespaces, which several packages share, their parts. Modules without
    a place of their own, and what lies below site-packages, even if vendored there, are passed over.
    """
    return tuple(_Search(host, env, tuple(found)).run(sys.modules if modules is None else modules))


class _Search:
    def __init__(self, host: Host, env: Environment, found: tuple[Distribution, ...]) -> None:
        self.host = host
        self.env = env
        self.found = found
        self.entries = tuple(entry.path for entry in env.sys_path if entry.origin != "stdlib")
        known = tuple(entry.path for entry in env.sys_path)
        # Both as they are named and where they lead: a process may have come to a module by either.
        self.folders = frozenset((*known, *map(host.realpath, known)))
        self.sites = tuple({f"{each}/" for site in env.site for each in (site, host.realpath(site))})
        self.listed: dict[str, dict[str, str]] = {}

    def run(self, modules: Mapping[str, object]) -> Iterator[Elsewhere]:
        modules = dict(modules)  # in one step: other threads import on
        names = [name for name in modules if "." not in name]
        while names:
            namespaces: set[str] = set()
            for name in sorted(set(names) - sys.stdlib_module_names - {"__main__", "__mp_main__"}):
                path = _origin(modules[name])
                if path is None:
                    namespaces.update([name] if _is_namespace(modules[name]) else [])
                elif not self._is_known(name, path):
                    package = self._instead_of(name, path)
                    if package is not None:
                        yield Elsewhere(package, name, path)
            # Thousands of modules lie below packages, and few below namespaces: those alone are looked at.
            below = tuple(f"{name}." for name in namespaces)
            names = [name for name in modules if name.startswith(below) and name.rpartition(".")[0] in namespaces]

    def _is_known(self, name: str, path: str) -> bool:
        """Whether it lies below site-packages, or right in a folder that the environment's path names."""
        if path.startswith(self.sites):
            return True
        folder = path
        for _ in range(name.count(".") + 1 + os.path.basename(path).startswith("__init__.")):
            folder = os.path.dirname(folder)
        return folder in self.folders or self.host.realpath(path).startswith(self.sites)

    def _instead_of(self, name: str, path: str) -> str | None:
        """The package whose module of that name was passed over; None where none is installed that has one."""
        real = self.host.realpath(path)
        parent, _, last = name.rpartition(".")
        for entry in self.entries:
            place = self._modules(os.path.join(entry, *parent.split("."))).get(last)
            if place is None:
                continue
            files = self._files(place)
            if real in map(self.host.realpath, files):
                return None  # linked into the environment, and imported from where the link leads
            for dist in sorted(self.found, key=lambda each: each.name != canonical(last)):
                if _has(dist, entry, last, files):
                    own = self._is_source(dist, real) or (not parent and _is_aside(dist, last))
                    return None if own else dist.name
        for finder in self.env.finders:
            source = finder.mapping.get(name)
            if source is not None:
                folder, file = os.path.split(finder.file)
                dists = (each for each in self.found if each.location == folder and each.lists(file))
                return next((each.name for each in dists if not self._is_source(each, real)), None)
        return None

    def _modules(self, folder: str) -> dict[str, str]:
        folder = folder.rstrip("/")
        if folder not in self.listed:
            listing: Listing = ()
            # A zip, or a folder that is gone: what it holds is looked for in the other folders of the path.
            with contextlib.suppress(OSError):
                listing = self.host.listing(folder)
            self.listed[folder] = modules_of(folder, listing)
        return self.listed[folder]

    def _files(self, place: str) -> tuple[str, ...]:
        """What is imported of a module: its file, or that of its folder; of a folder without one nothing."""
        if place.endswith((".py", ".so")):
            return (place,)
        files = (f"{place}/__init__{ending}" for ending in (".py", ".so", ".pyc"))
        return tuple(file for file in files if self._is_there(file))

    def _is_there(self, file: str) -> bool:
        try:
            return self.host.find(file) is not None
        except OSError:
            return True  # it cannot be looked at, which is no word against it

    def _is_source(self, dist: Distribution, real: str) -> bool:
        """Whether a file is of the source tree that a package was installed from."""
        url = dist.direct_url
        trees = [dist.editable, path_of_url(url.url) if url is not None and url.url.startswith("file:") else None]
        return any(real.startswith(self.host.realpath(tree).rstrip("/") + "/") for tree in trees if tree)


def _has(dist: Distribution, entry: str, module: str, places: tuple[str, ...]) -> bool:
    """Whether a module below a folder of the path is of a distribution: by source, by RECORD, or by name."""
    if dist.editable is not None and any(each.startswith(dist.editable.rstrip("/") + "/") for each in places):
        return True
    if dist.location != entry:
        return False
    if dist.name == canonical(module) and dist.record is None:
        return True
    return any(dist.lists(os.path.relpath(place, entry)) for place in places)


def _is_aside(dist: Distribution, module: str) -> bool:
    """Whether a package has its say elsewhere: many install a `tests` or `utils` beside what they are about, and a
    project's own module of that name is no other version of them."""
    if canonical(module) == dist.name or dist.record is None:
        return False
    tops = {row.path.partition("/")[0].partition(".")[0] for row in dist.record.rows if ".dist-info/" not in row.path}
    return any(top != module and top.isidentifier() and not top.startswith("_") for top in tops)


def _origin(module: object) -> str | None:
    """The file of a module; None where it has none, as namespaces and what is made in memory."""
    # Nothing is asked of the module itself: somebody's `__getattr__` may import, or raise whatever it likes.
    kept = getattr(module, "__dict__", {})
    for path in (getattr(kept.get("__spec__"), "origin", None), kept.get("__file__")):
        if isinstance(path, str) and path.startswith("/"):
            return path
    return None


def _is_namespace(module: object) -> bool:
    return "__path__" in getattr(module, "__dict__", {})
