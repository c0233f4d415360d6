"""What is on the machine to restore from: archives and wheels by build, wherever they lie."""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.acquire.uv_cache import Archive, UvCaches

Place = Literal["uv-cache", "vault", "find-links", "pip-cache", "fetched"]
# The order in which equal builds are tried: the nearest to an install first.
PLACES: tuple[Place, ...] = ("uv-cache", "vault", "find-links", "pip-cache", "fetched")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One source of one build. `archive` is set for an unpacked wheel; else `path` is a wheel file."""

    place: Place
    name: str
    version: str
    build: str
    path: str
    tags: tuple[str, ...]
    bytes: int | None
    sha256: tuple[str, ...] = ()
    archive: Archive | None = None

    @property
    def pylock(self) -> tuple[str, str, str] | None:
        """(url, sha256, pointer path) where the archive can be installed by a lock without being rebuilt."""
        for pointer in self.archive.pointers if self.archive else ():
            if pointer.kind == "http" and pointer.url and pointer.sha256:
                return pointer.url, pointer.sha256, pointer.path
        return None


def from_caches(caches: UvCaches) -> tuple[Candidate, ...]:
    """Every archive whose build is known."""
    return tuple(
        Candidate(
            place="uv-cache",
            name=archive.name,
            version=archive.version,
            build=archive.build,
            path=archive.path,
            tags=archive.tags,
            bytes=archive.bytes,
            sha256=tuple(sorted({p.sha256 for p in archive.pointers if p.sha256})),
            archive=archive,
        )
        for archive in caches.archives
        if archive.build is not None
    )
