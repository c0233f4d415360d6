"""The stamp in a compile cache that `restore` filled: when, from what, and for which build.

Times and names of the entries tell nothing of it, since a copy keeps them, and the birth of a folder that a restore
made would look like a cold start.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.runs.checkpoints import STAMP_NAME
from envguard.acquire.seam.host import Host
from envguard.model.fingerprint import CacheKind

MAX_STAMP = 1 << 16


class CacheStamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore put into the cache at `path`; `began` and `restored_at` are ISO times around the copying."""

    format: Literal["envguard.compile-cache"] = "envguard.compile-cache"
    version: Literal[1] = 1
    path: str
    kind: CacheKind
    began: str
    restored_at: str
    source: str
    files: int
    bytes: int
    writer: str | None
    """The tag of the torch build, or the triton, whose entries these are."""


def stamp_of(cache: str) -> str:
    """Where the stamp of a cache lies."""
    return f"{cache}/{STAMP_NAME}"


def is_passing(path: str) -> bool:
    """Whether a path in a cache is no part of it: locks and half-written files, which come and go, and the stamp."""
    return path.startswith("locks/") or path.endswith((".lock", ".tmp")) or path == STAMP_NAME


def read_cache_stamp(host: Host, cache: str) -> CacheStamp | None:
    """The stamp of a cache; None where there is none, or one that came along with a copy of another cache.

    Raises OSError where it cannot be read, and ValueError where it is none.
    """
    try:
        data = host.read(stamp_of(cache), MAX_STAMP)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        stamp = msgspec.json.decode(data, type=CacheStamp)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is no stamp: {error}") from error
    for time in (stamp.began, stamp.restored_at):
        clock.seconds(time)
    return stamp if stamp.path == cache else None
