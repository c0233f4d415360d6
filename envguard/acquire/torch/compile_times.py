"""When a compile cache was made and last written, and by which builds, from stats and a few entries' plain text.

The full judgement (`envguard.acquire.torch.compile_cache`) hashes every entry; the past needs times, sizes and
writers. A hit changes no mtime, so that "last used" is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.packages.archive_uses import ArchiveUse
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.section import reason
from envguard.acquire.torch import compile_cache
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.cache_stamp import CacheStamp, is_passing, read_cache_stamp, stamp_of
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key
from envguard.model.evidence import Unknown

SAMPLES = 24
MOST_ARCHIVES = 4


@dataclass(frozen=True)
class CacheTimes:
    """One cache directory; times in ns since the epoch. `exists` is False where the place is empty of it."""

    path: str
    kind: str
    exists: bool
    born_ns: int | None = None
    """Birth of the directory itself: a cleared cache that was filled again is as old as its clearing."""
    oldest_ns: int | None = None
    newest_ns: int | None = None
    files: int = 0
    bytes: int = 0
    tags: tuple[tuple[str, int, int], ...] = ()
    """(writer tag, first and last mtime among the sampled entries) of each writer, oldest first."""
    stamp: CacheStamp | None = None
    """What a restore put into it, where one did."""
    emptied_ns: int | None = None
    """Where it does not exist, mtime of the nearest folder that would hold it; where it holds no file, the newest
    mtime of its folders: no later removal can have happened."""


def read_cache_times(host: Host, places: Iterable[Place], unknown: list[Unknown]) -> tuple[CacheTimes, ...]:
    """Times of every place; one that is not there is a fact, too."""
    found = []
    for place in places:
        try:
            found.append(_times(host, place, unknown))
        except (FileNotFoundError, NotADirectoryError):
            changed = _above_changed_ns(host, place.path)
            found.append(CacheTimes(place.path, place.kind, False, emptied_ns=changed))
        except OSError as error:
            unknown.append(Unknown.refused(f"compile cache {place.path}", error))
    return tuple(found)


def _above_changed_ns(host: Host, path: str) -> int | None:
    """mtime of the nearest folder above that is there; None where it cannot be seen."""
    above = path
    while above not in ("", "/"):
        above = above.rpartition("/")[0] or "/"
        try:
            found = host.find(above)
        except OSError:
            return None
        if found is not None:
            return found.mtime_ns
    return None


def _times(host: Host, place: Place, unknown: list[Unknown]) -> CacheTimes:
    top = host.stat(place.path)
    walked = host.walk(place.path)
    files = [(path, stat) for path, stat in walked.entries if stat.is_file and not is_passing(path)]
    times = [stat.mtime_ns for _, stat in files]
    return CacheTimes(
        path=place.path,
        kind=place.kind,
        exists=True,
        born_ns=top.btime_ns,
        oldest_ns=min(times, default=None),
        newest_ns=max(times, default=None),
        files=len(files),
        bytes=sum(stat.size for _, stat in files),
        tags=_tags(host, place, files),
        stamp=_stamp(host, place, unknown),
        emptied_ns=None if files else max([top.mtime_ns, *(s.mtime_ns for _, s in walked.entries if s.is_directory)]),
    )


def _stamp(host: Host, place: Place, unknown: list[Unknown]) -> CacheStamp | None:
    try:
        return read_cache_stamp(host, place.path)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        unknown.append(Unknown.refused(f"compile cache stamp {stamp_of(place.path)}", why))
        return None


def _tags(host: Host, place: Place, files: list[tuple[str, Stat]]) -> tuple[tuple[str, int, int], ...]:
    if place.kind != "inductor":
        return ()
    entries = sorted(
        ((stat.mtime_ns, path) for path, stat in files if path.startswith(compile_cache.ENTRY_FOLDERS)),
    )
    step = max(1, len(entries) // SAMPLES)
    seen: dict[str, list[int]] = {}
    for mtime, path in dict.fromkeys([*entries[::step], *entries[-1:]]):
        try:
            _, texts = host.scan(f"{place.path}/{path}", (compile_cache.TAG,), 52, 8)
        except OSError:
            continue  # an entry that a running compile replaced meanwhile tells nothing
        for text in texts:
            match = compile_cache.writer_tag(text)
            if match is not None:
                seen.setdefault(match, []).append(mtime)
    return tuple(sorted(((tag, min(at), max(at)) for tag, at in seen.items()), key=lambda item: item[1]))


def read_archive_tags(host: Host, uses: Iterable[ArchiveUse], python: str, unknown: list[Unknown]) -> dict[str, str]:
    """The writer tag of each torch archive in a uv cache, the latest few: each costs a hash of torch's sources."""
    torches = [use for use in uses if use.archive.name == "torch" and use.version is not None]
    torches.sort(key=lambda use: use.unpacked_ns or 0)
    found = {}
    for use in torches[-MOST_ARCHIVES:]:
        try:
            key = read_torch_key(host, f"{use.archive.path}/torch", use.full_version, python)
        except OSError as error:
            unknown.append(Unknown.refused(f"cache tag of {use.archive.path}", error))
            continue
        found[use.archive.path] = cache_tag(key, python)
    return found
