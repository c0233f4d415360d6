"""What is on the machine to restore from: archives and wheels by build, wherever they lie."""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.acquire.packages.pip_stash import Aside
from envguard.acquire.packages.uv_cache import Archive, Pointer, UvCaches
from envguard.acquire.packages.wheel_files import WheelFile

Place = Literal["uv-cache", "vault", "find-links", "pip-cache", "put-aside", "fetched"]
# The order in which equal builds are tried: the nearest to an install first.
PLACES: tuple[Place, ...] = ("uv-cache", "vault", "find-links", "pip-cache", "put-aside", "fetched")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One source of one build: `path` is an unpacked archive, a wheel file, or a manifest of the vault."""

    place: Place
    name: str
    version: str
    build: str
    path: str
    dist_info: str
    tags: tuple[str, ...]
    wheel_build: str | None
    bytes: int | None
    sha256: tuple[str, ...] = ()
    pointer: Pointer | None = None
    """Of an archive: a pointer with URL and sha256, by which uv installs it without a wheel being rebuilt."""
    aside: Aside | None = None
    """What pip put aside in this environment, where that is the source."""


def from_archive(archive: Archive) -> Candidate | None:
    """An archive as a source; None where its build is unknown."""
    if archive.build is None:
        return None
    usable = [p for p in archive.pointers if p.kind == "http" and p.url and p.sha256 and p.filename]
    return Candidate(
        place="uv-cache",
        name=archive.name,
        version=archive.version,
        build=archive.build,
        path=archive.path,
        dist_info=archive.dist_info,
        tags=archive.tags,
        wheel_build=archive.wheel_build,
        bytes=archive.bytes,
        sha256=tuple(sorted({p.sha256 for p in archive.pointers if p.sha256})),
        # An older uv's bucket is not read by a newer one: the newest pointer is the one to try.
        pointer=max(usable, key=lambda pointer: int(pointer.bucket.rpartition("-v")[2]), default=None),
    )


def from_caches(caches: UvCaches) -> tuple[Candidate, ...]:
    """Every archive whose build is known."""
    found = (from_archive(archive) for archive in caches.archives)
    return tuple(candidate for candidate in found if candidate is not None)


def from_wheel(wheel: WheelFile, place: Place | None = None, sha256: tuple[str, ...] = ()) -> Candidate:
    """A wheel file as a source."""
    return Candidate(
        place=place or wheel.place,
        name=wheel.name,
        version=wheel.version,
        build=wheel.build,
        path=wheel.path,
        dist_info=wheel.dist_info,
        tags=wheel.tags,
        wheel_build=wheel.wheel_build,
        bytes=wheel.bytes,
        sha256=sha256,
    )
