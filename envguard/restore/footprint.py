"""Which paths an install may touch: what uv removes with the old packages, and what the new wheels bring.

This decides what the restore point keeps, so it errs on the side of more.
"""

from __future__ import annotations

import configparser
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from envguard.acquire.distributions import Distribution, Distributions
from envguard.acquire.environment import Environment
from envguard.acquire.record_file import Row
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


def outgoing_paths(env: Environment, dists: Iterable[Distribution]) -> Iterator[str]:
    """Everything that removing `dists` may remove: files of RECORD, dist-infos whole, bytecode beside the files."""
    for dist in dists:
        yield from walk_paths(dist.directory)
        folders = set()
        for path in listed_files(dist):
            if os.path.lexists(path):
                yield path
            folders.add(posixpath.dirname(path))
        if dist.record is None or dist.directory.endswith(".egg-info"):
            yield from _top_level(dist)
        # uv removes the __pycache__ of every folder that it took a file from.
        for folder in folders:
            yield from walk_paths(f"{folder}/__pycache__")


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


def destinations(env: Environment, incoming: Incoming) -> Iterator[str]:
    """Where each file of a wheel will lie, its generated files and scripts among them."""
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
    for row in incoming.rows:
        base, path = site, row.path
        if path.startswith(data):
            scheme, _, path = path.removeprefix(data).partition("/")
            if scheme not in schemes:
                continue
            base = schemes[scheme]
        yield f"{base}/{path}"
    yield from (f"{site}/{incoming.dist_info}/{name}" for name in GENERATED)
    yield from (f"{env.prefix}/bin/{name}" for name in incoming.scripts())


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


def incoming_bytecode(env: Environment, paths: Iterable[str]) -> Iterator[str]:
    """Bytecode caches beside files that are to be overwritten."""
    for folder in {posixpath.dirname(path) for path in paths if path.endswith(".py")}:
        yield from walk_paths(f"{folder}/__pycache__")
