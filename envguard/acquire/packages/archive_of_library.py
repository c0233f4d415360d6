"""Which archive of a uv cache a mapped library came from, when nothing but the mapping is left of its package.

In hard-link mode the mapped inode still lies in the archive; in the other modes the library's build-id does. Imported
by `envguard.stamp` in training processes: no more than the standard library and msgspec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envguard.acquire.packages.cached_archives import archive_folders, holds
from envguard.acquire.packages.metadata import MAX_METADATA, canonical, parse_headers
from envguard.acquire.packages.record_file import build_identity, parse_record
from envguard.acquire.processes.own_process import MappedFile
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.elf import CorruptElf, read_build_id


@dataclass(frozen=True)
class FoundBuild:
    """The build that is loaded; `path` is the archive that holds it, `by` says which fact names it."""

    path: str
    version: str
    build: str
    by: str
    requires: tuple[str, ...]
    requires_python: str | None


def archive_of(host: Host, caches: Iterable[str], name: str, libraries: tuple[MappedFile, ...]) -> FoundBuild | None:
    """The archive of distribution `name` that holds every one of `libraries`; None where none does, or several do
    that are different builds."""
    found = [
        archive for path, folder in _archives(host, caches, name) if (archive := _fits(host, path, folder, libraries))
    ]
    inodes = [archive for archive in found if archive.by == "inode"]
    builds = {archive.build: archive for archive in inodes or found}
    return next(iter(builds.values())) if len(builds) == 1 else None


def _archives(host: Host, caches: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """(archive, name of its dist-info) of every archive of a distribution."""
    for path in archive_folders(host, caches):
        try:
            entries = host.listing(path)
        except OSError:
            continue  # what cannot be seen holds no archive that could be named as the one
        for entry, _ in entries:
            if entry.endswith(".dist-info") and canonical(entry.partition("-")[0]) == name:
                yield path, entry


def _fits(host: Host, path: str, folder: str, libraries: tuple[MappedFile, ...]) -> FoundBuild | None:
    by = _match(host, path, libraries)
    if by is None:
        return None
    try:
        build = build_identity(parse_record(host.read(f"{path}/{folder}/RECORD")).rows)
        headers = parse_headers(
            host.read(f"{path}/{folder}/METADATA", MAX_METADATA).decode("utf-8", "surrogateescape")
        )
    except OSError:
        return None
    version = next(iter(headers.get("version", ())), folder.removesuffix(".dist-info").partition("-")[2])
    requires_python = next(iter(headers.get("requires-python", ())), None)
    return FoundBuild(path, version, build, by, tuple(headers.get("requires-dist", ())), requires_python)


def _match(host: Host, path: str, libraries: tuple[MappedFile, ...]) -> str | None:
    """ "inode" or "build-id": how every library is known again in an archive; None where one is not."""
    by = "inode"
    for library in libraries:
        try:
            if holds(host, path, library.relative, library.inode, library.device):
                continue
            by = "build-id"
            if library.build_id is None or read_build_id(host, f"{path}/{library.relative}") != library.build_id:
                return None
        except (OSError, CorruptElf):
            return None
    return by if libraries else None
