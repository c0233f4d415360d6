"""Which paths an install may touch: what uv removes with the old packages, and what the new wheels bring.

This decides what the restore point keeps, so it errs on the side of more.
"""

from __future__ import annotations

import configparser
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.record_file import Row
from envguard.fingerprint.units import some_of
from envguard.restore.point import walk_paths

# What an installer writes into a dist-info beyond the wheel's own files.
GENERATED = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json")


class Incoming:
    """A wheel that will be installed: its RECORD rows, its dist-info, the text of its entry_points.txt."""

    def __init__(self, name: str, dist_info: str, rows: tuple[Row, ...], entry_points: str | None) -> None:
        self.name = name
        self.dist_info = dist_info
        self.rows = rows
        self.entry_points = entry_points

    def scripts(self) -> tuple[str, ...]:
        """Names of the scripts that an installer makes from entry points."""
        parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string(self.entry_points or "")
        except configparser.Error:
            return ()
        groups = [group for group in ("console_scripts", "gui_scripts") if parser.has_section(group)]
        return tuple(name.strip() for group in groups for name in parser.options(group))


def own_dists(env: Environment, names: Collection[str], dists: Distributions) -> tuple[Distribution, ...]:
    """The distributions of `names` inside the environment: one that a base Python lends it is not ours to touch."""
    inside = f"{env.prefix.rstrip('/')}/"
    return tuple(dist for dist in dists.found if dist.name in names and f"{dist.location}/".startswith(inside))


@dataclass(frozen=True)
class Footprint:
    """Paths inside the environment. `leaving` are the old packages' own files, which go; `touched` is everything
    whose state is to be kept, the folders above among them."""

    leaving: frozenset[str]
    touched: frozenset[str]


def footprint(
    env: Environment,
    dists: Distributions,
    names: Collection[str],
    incoming: Iterable[Incoming],
    unfinished: Iterable[str] = (),
) -> Footprint:
    """What replacing the packages `names` by `incoming` takes away, and what it may touch.

    `unfinished` are files, and folders with all that is in them, which an install left that was cut short.
    """
    going = own_dists(env, names, dists)
    shared = {path for dist in dists.found if dist not in going for path in listed_files(dist)}
    leaving = {path for dist in going for path in _own_files(dist)}
    leaving |= {path for folder in unfinished for path in walk_paths(folder) if not is_folder(path)}
    leaving -= shared
    touched = {path for wheel in incoming for path in destinations(env, wheel)}
    touched |= {f"{env.site[0]}/{wheel.dist_info}" for wheel in incoming}
    for dist in going:
        touched |= set(walk_paths(dist.directory))
        if dist.record is None or not dist.directory.endswith(".dist-info"):
            touched |= set(_top_level(dist))
    # What an installer rewrites where an editable install of old was made.
    for site in env.site:
        touched |= {path for path in (f"{site}/easy-install.pth", *_egg_links(site)) if os.path.lexists(path)}
    inside = f"{env.prefix.rstrip('/')}/"
    leaving = {path for path in leaving if path.startswith(inside)}
    return Footprint(frozenset(leaving), frozenset(with_folders(env, leaving | touched)))


def _egg_links(site: str) -> list[str]:
    return (
        [f"{site}/{name}" for name in os.listdir(site) if name.endswith(".egg-link")] if os.path.isdir(site) else []
    )


def _own_files(dist: Distribution) -> Iterator[str]:
    """What goes when a distribution goes: its dist-info, the files that RECORD lists, and their bytecode.

    Of one without RECORD only the dist-info: which files are its own is not known, and the new build is laid over
    them. An egg-info is left to uv, which knows its forms.
    """
    if not dist.directory.endswith(".dist-info"):
        return
    yield from (path for path in walk_paths(dist.directory) if not is_folder(path))
    modules: dict[str, set[str]] = {}
    for path in listed_files(dist):
        if os.path.lexists(path) and not is_folder(path):
            yield path
        if path.endswith(".py"):
            folder, _, name = path.rpartition("/")
            modules.setdefault(folder, set()).add(name.removesuffix(".py"))
    for folder, stems in modules.items():
        cache = f"{folder}/__pycache__"
        for name in os.listdir(cache) if is_folder(cache) else ():
            if name.split(".")[0] in stems:
                yield f"{cache}/{name}"


def is_folder(path: str) -> bool:
    """Whether the path is a directory itself, and no link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def listed_files(dist: Distribution) -> Iterator[str]:
    """Where RECORD says that the files lie."""
    for row in dist.record.rows if dist.record else ():
        yield posixpath.normpath(posixpath.join(dist.location, row.path))


def _top_level(dist: Distribution) -> Iterator[str]:
    """Whole packages that top_level.txt names: all that is known of an install without RECORD."""
    path = Path(dist.directory) / "top_level.txt"
    names = path.read_text("utf-8", "replace").split() if path.is_file() else [dist.name.replace("-", "_")]
    for name in names:
        if "/" not in name and name not in ("..", "."):
            yield from walk_paths(f"{dist.location}/{name}")
            yield from walk_paths(f"{dist.location}/{name}.py")


def left_over(
    env: Environment,
    going: Iterable[Distribution],
    staying: Iterable[Distribution],
    incoming: Iterable[Incoming],
) -> Iterator[str]:
    """What a restore leaves of installs without RECORD: whose the files in their folders are is not known, so that
    those that neither the restored build nor another package lists stay, and are named."""
    coming = {wheel.name: wheel for wheel in incoming}
    listed = {path for wheel in coming.values() for path in destinations(env, wheel)}
    listed |= {path for dist in staying for path in listed_files(dist)}
    for dist in going:
        if (dist.record is not None and dist.record.rows) or not dist.directory.endswith(".dist-info"):
            continue
        wheel = coming.get(dist.name)
        tops = {row.path.partition("/")[0] for row in wheel.rows if "/" in row.path} if wheel is not None else set()
        folders = [f"{dist.location}/{top}" for top in sorted(tops) if not top.endswith((".dist-info", ".data"))]
        found = {path for folder in folders for path in walk_paths(folder)} | set(_top_level(dist))
        left = sorted(path for path in found - listed if not is_folder(path) and "/__pycache__/" not in path)
        if left:
            names = some_of([posixpath.relpath(path, dist.location) for path in left])
            yield f"{dist.name}: its install had no RECORD, and files that no package lists stay: {names}"


def destinations(env: Environment, incoming: Incoming) -> Iterator[str]:
    """Where each file of a wheel will lie, its generated files and scripts among them."""
    site = env.site[0]
    yield from filter(None, (place_of(env, incoming, row.path) for row in incoming.rows))
    yield from (f"{site}/{incoming.dist_info}/{name}" for name in GENERATED)
    yield from (f"{env.prefix}/bin/{name}" for name in incoming.scripts())


def place_of(env: Environment, incoming: Incoming, path: str) -> str | None:
    """Where a file that a wheel lists will lie; None for one that no installer takes."""
    site = env.site[0]
    version = posixpath.basename(posixpath.dirname(site))
    schemes = {
        "purelib": site,
        "platlib": site,
        "scripts": f"{env.prefix}/bin",
        "data": env.prefix,
        "headers": f"{env.prefix}/include/site/{version}/{incoming.name}",
    }
    data = f"{incoming.dist_info.removesuffix('.dist-info')}.data/"
    if not path.startswith(data):
        return f"{site}/{path}"
    scheme, _, path = path.removeprefix(data).partition("/")
    return f"{schemes[scheme]}/{path}" if scheme in schemes else None


def with_folders(env: Environment, paths: Iterable[str]) -> set[str]:
    """The paths and every folder between them and the prefix: their being there and their times are state too."""
    out: set[str] = set()
    prefix = env.prefix.rstrip("/")
    for path in paths:
        while path not in out and path != prefix and path.startswith(f"{prefix}/"):
            out.add(path)
            path = posixpath.dirname(path)
    out.add(prefix)
    return out
