"""What was hashed before: contents of packages, and of single files, each tied to a stat.

A digest holds while (path, size, mtime, ctime, inode) are what they were when it was taken. The store is one file
that is replaced whole, so that a kill leaves the old one; a store that cannot be read is an empty one, since all it
saves is work.
"""

from __future__ import annotations

import os
import re
import time
from collections import UserDict
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from envguard.state.files import open_state, write_atomically
from envguard.state.journal import host_part

FORMAT = 1
KEPT_DAYS = 60
_SURROGATE = re.compile("[\ud800-\udfff]")
# A file that changed this shortly before it was looked at may change again without its ctime moving: the kernel's
# clock for files ticks every 4 to 10 ms, and some file systems keep whole seconds only.
RACY_NS = 50_000_000
RACY_COARSE_NS = 2_000_000_000

Key = tuple[int, int, int, int]
"""(size, mtime, ctime, inode) of a file; times in ns since the epoch."""


class SeenFile(msgspec.Struct, array_like=True):
    """A single file's sha256 (hex), and what it is tied to."""

    key: Key
    digest: str


class SeenPackage(msgspec.Struct, array_like=True):
    """A package's files as they were last looked at, in the order of its normalised RECORD."""

    record: Key
    identity: str
    """sha256 (hex) of the normalised RECORD."""
    rows: int
    size: int
    paths: bytes
    """Joined by NUL; as the file system has them, since not every name is text."""
    stats: bytes
    """Four signed 64-bit numbers a file, as `Host.stats` gives them; zeros: look at it again."""
    hashed: bool
    """Whether each file's content was held against RECORD, and not its size alone."""
    departs: bytes
    """`path NUL sha256=…` or `path NUL missing` of each file that is not what RECORD says, joined by NUL."""
    seen_at: int
    """Seconds since the epoch, to a day: packages that were not there for long are dropped."""


class _Content(msgspec.Struct):
    format: int
    packages: dict[bytes, SeenPackage]
    files: dict[bytes, SeenFile]
    memo: dict[str, str]


class Digests:
    """The store of one host's state folder; `save` writes it if anything was learned."""

    def __init__(self, content: _Content | None = None) -> None:
        known = content or _Content(FORMAT, {}, {}, {})
        self._packages = known.packages
        self._files = known.files
        self.memo: MutableMapping[str, str] = _Memo(self, known.memo)
        self.changed = False

    def file(self, path: str, key: Key) -> str | None:
        """The sha256 (hex) of a file whose stat is still `key`, or None."""
        seen = self._files.get(os.fsencode(path))
        return seen.digest if seen is not None and seen.key == key else None

    def learn_file(self, path: str, key: Key, digest: str, looked_at_ns: int) -> None:
        """Keeps a digest unless the file may still move; `key` was taken before hashing, at `looked_at_ns`."""
        if not is_racy(key, looked_at_ns):
            self._files[os.fsencode(path)] = SeenFile(key, digest)
            self.changed = True

    def package(self, directory: str) -> SeenPackage | None:
        """What was last seen of the package whose dist-info is `directory`."""
        return self._packages.get(os.fsencode(directory))

    def learn_package(self, directory: str, seen: SeenPackage) -> None:
        self._packages[os.fsencode(directory)] = seen
        self.changed = True

    def encode(self) -> bytes:
        oldest = int(time.time()) - KEPT_DAYS * 86_400
        kept = {name: seen for name, seen in self._packages.items() if seen.seen_at > oldest}
        return msgspec.msgpack.encode(_Content(FORMAT, kept, self._files, _encodable(self.memo)))


class _Memo(UserDict[str, str]):
    """Answers that readers derived from files, each under the mark that they put on it (`envguard.acquire.memo`)."""

    def __init__(self, owner: Digests, known: dict[str, str]) -> None:
        self._owner = owner
        super().__init__()
        self.data = known

    def __setitem__(self, key: str, item: str) -> None:
        super().__setitem__(key, item)
        self._owner.changed = True


def _encodable(memo: MutableMapping[str, str]) -> dict[str, str]:
    """A path that is no text cannot stand in the store: its answer is found again, and not kept."""
    return {key: value for key, value in memo.items() if not _SURROGATE.search(key + value)}


def is_racy(key: Key, looked_at_ns: int) -> bool:
    """Whether a file changed so shortly before `looked_at_ns` that its stat cannot vouch for its content."""
    newest = max(key[1], key[2]) if key[1] <= looked_at_ns else key[2]
    margin = RACY_COARSE_NS if key[2] % 1_000_000_000 == 0 else RACY_NS
    return newest > looked_at_ns - margin


def store_file(state: Path) -> Path:
    """A store is a host's own: inode numbers and clocks of another host mean nothing here."""
    return state / f"digests-{host_part()}.msgpack"


def load(state: Path) -> Digests:
    """The store, or an empty one where there is none that can be read."""
    try:
        content = msgspec.msgpack.decode(store_file(state).read_bytes(), type=_Content)
    except (OSError, msgspec.MsgspecError):
        return Digests()
    return Digests(content if content.format == FORMAT else None)


def save(state: Path, digests: Digests) -> None:
    """Writes what was learned. Raises OSError where the state folder cannot be written."""
    if digests.changed:
        write_atomically(store_file(open_state(state)), digests.encode())
        digests.changed = False
