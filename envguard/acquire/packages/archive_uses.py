"""What the inodes in a uv cache say about who used an archive, and until when.

In hard-link mode an installed file and its archive's file are one inode, so removing it from an environment moves the
inode's ctime: the old archive's payload ctime, while nothing else links it, is the moment of the removal, some
milliseconds before the new INSTALLER. RECORD in an archive is never linked and keeps the time of unpacking.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from envguard.acquire.packages.record_file import Row, parse_record
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.torch.torch_build import UnreadableVersion, VersionFile, read_version_file
from envguard.model.evidence import Unknown

if TYPE_CHECKING:
    from envguard.acquire.packages.uv_cache import Archive, UvCaches
    from envguard.acquire.processes.live_processes import EnvironmentProcess

SAMPLE = 6
"""Payload files looked at in each archive: an install links or unlinks them all within moments."""
UNPACKING_NS = 50_000_000
"""A ctime this close to the unpacking is the unpacking itself, and not a later link or removal."""


class ArchiveUse(msgspec.Struct, frozen=True, kw_only=True):
    """One archive with what its inodes tell (ns since the epoch)."""

    archive: Archive
    unpacked_ns: int | None
    """mtime of the archive's RECORD."""
    last_link_change_ns: int | None
    """Latest ctime among the payload samples, None where they were never linked."""
    sample: str | None
    """The file that has this ctime."""
    nlink: int | None
    """Its link count: 1 means that nothing but the cache holds it now."""
    version: VersionFile | None
    """Of a torch-like package, `version.py` as text; else None."""
    mapped_by: tuple[tuple[int, str], ...] = ()
    """(PID, file): processes that still map this archive's inode although its name in the environment is gone."""

    @property
    def full_version(self) -> str:
        """The version with its local part, from `version.py` where METADATA leaves it out."""
        return self.version.version if self.version is not None else self.archive.version


def read_archive_uses(
    host: Host, caches: UvCaches, processes: tuple[EnvironmentProcess, ...], site: tuple[str, ...]
) -> tuple[tuple[ArchiveUse, ...], tuple[Unknown, ...]]:
    """What each archive's inodes tell, and which processes still map them."""
    found: list[ArchiveUse] = []
    unknown: list[Unknown] = []
    stale = _stale_files(processes, site)
    for archive in caches.archives:
        try:
            found.append(_use(host, archive, stale))
        except OSError as error:
            unknown.append(Unknown.refused(f"use of {archive.path}", error))
    return tuple(found), tuple(unknown)


def _stale_files(
    processes: tuple[EnvironmentProcess, ...], site: tuple[str, ...]
) -> dict[str, list[tuple[int, int]]]:
    """Path relative to site-packages → (inode, PID) of files that a process maps and that are no longer there."""
    found: dict[str, list[tuple[int, int]]] = {}
    for process in processes:
        for file in process.stale:
            for folder in site:
                if file.path.startswith(f"{folder}/"):
                    found.setdefault(file.path[len(folder) + 1 :], []).append((file.inode, process.pid))
    return found


def _use(host: Host, archive: Archive, stale: dict[str, list[tuple[int, int]]]) -> ArchiveUse:
    record_path = f"{archive.path}/{archive.dist_info}/RECORD"
    record_stat = host.stat(record_path)
    rows = parse_record(host.read(record_path)).rows
    names = _payload(rows, archive.dist_info)
    known = set(names) if stale else set()
    changed: tuple[int, str, int] | None = None
    for name in dict.fromkeys([*sample_names(rows, archive.dist_info), *(name for name in stale if name in known)]):
        stat = host.find(f"{archive.path}/{name}")
        if stat is None or not stat.is_file:
            continue
        if stat.ctime_ns > record_stat.mtime_ns + UNPACKING_NS and (changed is None or stat.ctime_ns > changed[0]):
            changed = (stat.ctime_ns, name, stat.nlink)
    version = None
    top = archive.name.replace("-", "_")
    if f"{top}/version.py" in names:
        try:
            version = read_version_file(host, f"{archive.path}/{top}/version.py")
        except (OSError, UnreadableVersion):
            version = None  # the archive's METADATA still gives a version
    return ArchiveUse(
        archive=archive,
        unpacked_ns=record_stat.mtime_ns,
        last_link_change_ns=changed[0] if changed else None,
        sample=f"{archive.path}/{changed[1]}" if changed else None,
        nlink=changed[2] if changed else _links(host.find(f"{archive.path}/{names[0]}") if names else None),
        version=version,
        mapped_by=_mapped(host, archive, names, stale),
    )


def _payload(rows: Iterable[Row], dist_info: str) -> list[str]:
    own = dist_info + "/"
    return [row.path for row in rows if row.hash and not row.path.startswith((own, "../", "/"))]


def sample_names(rows: Iterable[Row], dist_info: str) -> list[str]:
    """A few payload files of an archive, spread over its RECORD."""
    names = _payload(rows, dist_info)
    return names[:: max(1, len(names) // SAMPLE)][:SAMPLE]


def _links(stat: Stat | None) -> int | None:
    return stat.nlink if stat is not None else None


def _mapped(
    host: Host, archive: Archive, names: list[str], stale: dict[str, list[tuple[int, int]]]
) -> tuple[tuple[int, str], ...]:
    if not stale:
        return ()
    known = set(names)
    found = []
    for name, holders in stale.items():
        if name not in known:
            continue
        stat = host.find(f"{archive.path}/{name}")
        if stat is not None:
            found += [(pid, name) for inode, pid in holders if inode == stat.inode]
    return tuple(sorted(found))
