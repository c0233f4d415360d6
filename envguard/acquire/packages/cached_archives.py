"""The archives of uv caches as folders, and which of them holds a file that a process has mapped.

Imported by `envguard.stamp` in training processes: no more than the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envguard.acquire.seam.host import Host

ARCHIVE_BUCKET = re.compile(r"archive-v\d+")


def archive_folders(host: Host, caches: Iterable[str]) -> Iterator[str]:
    """Every folder of every archive bucket; what cannot be listed holds no archive that could be named as the one."""
    for cache in caches:
        for bucket in _folders(host, cache):
            if ARCHIVE_BUCKET.fullmatch(bucket):
                for name in _folders(host, f"{cache}/{bucket}"):
                    yield f"{cache}/{bucket}/{name}"


def _folders(host: Host, path: str) -> list[str]:
    try:
        return [name for name, kind in host.listing(path) if kind == "directory"]
    except OSError:
        return []


def holds(host: Host, archive: str, relative: str, inode: int, device: int | None) -> bool:
    """Whether the file below an archive is the mapped one, which hard links make it; `device` None where unknown.

    Raises OSError where there is no such file to be seen.
    """
    there = host.stat_target(f"{archive}/{relative}")
    # Overlay and btrfs give a map another device than stat: an equal inode number proves nothing there.
    return there.inode == inode and device in (None, there.device)
