"""The whole tree of an environment by stat: taken before a restore, compared after it.

"As it was before" and "restored" rest on this comparison, and not on the list of what a restore means to touch: what
uv leaves when it is killed, and what somebody else changes meanwhile, is on no such list. Content is compared by size
and time here; what a restore replaces is read file by file elsewhere.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.restore_register import REGISTER
from envguard.restore.locks import LOCK_FILE
from envguard.restore.point import Saved
from envguard.state.files import write_atomically

TREE = "tree.msgpack"
_OURS = frozenset({".lock", LOCK_FILE, REGISTER})
"""Files in a prefix that locks and records are kept in, and no part of the environment."""
_UV_WRITES = re.compile(r"\.tmp[A-Za-z0-9]{6}")
_FORMAT = 1


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One path. `mode` with its type bits; size and mtime of files alone: a folder's and a link's say nothing."""

    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime_ns: int = 0
    target: bytes | None = None

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True)
class Listing:
    """`roots` are the folders that were walked; `of` has every path below them."""

    roots: tuple[str, ...]
    of: dict[str, Entry]


class _Stored(msgspec.Struct, array_like=True):
    format: int
    roots: list[bytes]
    of: dict[bytes, Entry]


def roots_of(env: Environment) -> tuple[str, ...]:
    """What is walked: the prefix; of a system's, which holds far more than Python's, the folders that an install
    writes to."""
    if env.kind != "system":
        return (env.prefix,)
    inside = [site for site in env.site if f"{site}/".startswith(f"{env.prefix.rstrip('/')}/")]
    return tuple(dict.fromkeys([*inside, f"{env.prefix.rstrip('/')}/bin"]))


def list_tree(roots: Iterable[str]) -> Listing:
    """Every path below `roots` as it is now; links are not followed, and environments in an environment (conda's
    `envs`) are left out, as conda's packages are. Raises OSError for a folder that cannot be listed."""
    roots, found = tuple(roots), {}
    for root in roots:
        pending = [root]
        while pending:
            folder = pending.pop()
            for item in _listed(folder):
                if folder == root and item.name in _OURS:
                    continue
                entry = _entry(item)
                if entry is None or (entry.is_folder and _is_anothers(item, root, folder)):
                    continue
                found[item.path] = entry
                if entry.is_folder:
                    pending.append(item.path)
    return Listing(roots, found)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _entry(item: os.DirEntry[str]) -> Entry | None:
    try:
        seen = item.stat(follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode):
            return Entry(seen.st_mode, seen.st_uid, seen.st_gid, seen.st_size, seen.st_mtime_ns)
        target = os.fsencode(os.readlink(item.path)) if stat.S_ISLNK(seen.st_mode) else None
    except FileNotFoundError:
        return None
    return Entry(seen.st_mode, seen.st_uid, seen.st_gid, target=target)


def _is_anothers(item: os.DirEntry[str], root: str, folder: str) -> bool:
    if folder != root:
        return folder == f"{root}/envs" and os.path.isdir(f"{item.path}/conda-meta")
    return item.name == "pkgs" and os.path.isdir(f"{root}/conda-meta")


def save(listing: Listing, folder: Path) -> None:
    """Keeps a listing with a restore point. Raises OSError."""
    of = {os.fsencode(path): entry for path, entry in listing.of.items()}
    stored = _Stored(_FORMAT, [os.fsencode(root) for root in listing.roots], of)
    write_atomically(folder / TREE, msgspec.msgpack.encode(stored))


def load(folder: Path) -> Listing | None:
    """The listing of a restore point; None where it was made without one. Raises OSError."""
    try:
        stored = msgspec.msgpack.decode((folder / TREE).read_bytes(), type=_Stored)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    of = {os.fsdecode(path): entry for path, entry in stored.of.items()}
    return Listing(tuple(os.fsdecode(root) for root in stored.roots), of)


def not_put_back(before: Listing, now: Listing, saved: Iterable[Saved]) -> list[str]:
    """What a roll-back had to put back and is not as it was, in words. A folder that the install made and somebody
    has put a file into since is nothing that a roll-back may take away."""
    wrong = []
    for entry in saved:
        was, found = before.of.get(entry.path), now.of.get(entry.path)
        if was == found or (was is None and found is not None and found.is_folder):
            continue
        is_now = "is there, and was not" if was is None else "is gone" if found is None else "is not as it was"
        wrong.append(f"{entry.path} {is_now}")
    return wrong


def changed_meanwhile(before: Listing, now: Listing, touched: Collection[str]) -> tuple[str, ...]:
    """Paths that came, went or changed and that the restore had no part in; without bytecode, which any process that
    imports a module writes."""
    paths = (path for path in {**before.of, **now.of} if before.of.get(path) != now.of.get(path))
    return tuple(sorted(path for path in paths if path not in touched and not _is_bytecode(path)))


def _is_bytecode(path: str) -> bool:
    return path.endswith((".pyc", "/__pycache__"))


def remove_litter(before: Listing, saved: Iterable[Saved]) -> None:
    """Removes what a uv that was cut short has left since `before`: files under a name of its own, which it renames
    when they are whole, and the folder that it unpacks a wheel's `.data` into. Raises OSError."""
    unpacked = {
        f"{entry.path.removesuffix('.dist-info')}.data" for entry in saved if entry.path.endswith(".dist-info")
    }
    for path in _litter(before, list_tree(before.roots), unpacked):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def _litter(before: Listing, now: Listing, unpacked: Collection[str]) -> Iterator[str]:
    for path in now.of:
        if path not in before.of and (path in unpacked or _UV_WRITES.fullmatch(posixpath.basename(path))):
            yield path
