"""What was hashed before: contents of packages, and of single files, each tied to a stat.

A digest holds while (path, size, mtime, ctime, inode) are what they were when it was taken. The store is one file
that is replaced whole, so that a kill leaves the old one; a store that cannot be read is an empty one, since all it
saves is work.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from envguard.state.files import open_state, write_atomically

FORMAT = 1
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
    bytes: int
    paths: str
    """Joined by NUL."""
    stats: bytes
    """Four signed 64-bit numbers a file, as `Host.stats` gives them; zeros for a file that is to be looked at again."""
    hashed: bool
    """Whether each file's content was held against RECORD, and not its size alone."""
    departs: dict[str, str]
    """Path → `sha256=…` of what is there, or "missing"."""


class _Content(msgspec.Struct):
    format: int
    packages: dict[str, SeenPackage]
    files: dict[str, SeenFile]
    values: dict[str, bytes]


class Digests:
    """The store of one host's state folder; `save` writes it if anything was learned."""

    def __init__(self, content: _Content | None = None) -> None:
        known = content or _Content(FORMAT, {}, {}, {})
        self.packages = known.packages
        self._files = known.files
        self._values = known.values
        self.changed = False

    def file(self, path: str, key: Key) -> str | None:
        """The sha256 (hex) of a file whose stat is still `key`, or None."""
        seen = self._files.get(path)
        return seen.digest if seen is not None and seen.key == key else None

    def learn_file(self, path: str, key: Key, digest: str, looked_at_ns: int) -> None:
        """Keeps a digest; `key` was taken before hashing, at `looked_at_ns`. A file that may still move is not kept."""
        if not is_racy(key, looked_at_ns):
            self._files[path] = SeenFile(key, digest)
            self.changed = True

    def learn_package(self, directory: str, seen: SeenPackage) -> None:
        self.packages[directory] = seen
        self.changed = True

    def value(self, name: str) -> bytes | None:
        """Something costly that was derived from contents; its name carries what it was derived from."""
        return self._values.get(name)

    def learn_value(self, name: str, value: bytes, kind: str) -> None:
        """Keeps a derived value as the only one of its `kind` and subject (the name's part before the last colon)."""
        stale = name.rpartition(":")[0] + ":"
        for old in [known for known in self._values if known.startswith(stale) and known != name]:
            del self._values[old]
        self._values[name] = value
        self.changed = True

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(_Content(FORMAT, self.packages, self._files, self._values))


def is_racy(key: Key, looked_at_ns: int) -> bool:
    """Whether a file changed so shortly before `looked_at_ns` that its stat cannot vouch for its content."""
    newest = max(key[1], key[2]) if key[1] <= looked_at_ns else key[2]
    margin = RACY_COARSE_NS if key[2] % 1_000_000_000 == 0 else RACY_NS
    return newest > looked_at_ns - margin


def store_file(state: Path, host: str) -> Path:
    """A store is a host's own: inode numbers and clocks of another host mean nothing here."""
    return state / f"digests-{host}.msgpack"


def load(state: Path, host: str) -> Digests:
    """The store, or an empty one where there is none that can be read."""
    try:
        return Digests(msgspec.msgpack.decode(store_file(state, host).read_bytes(), type=_Content))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Digests()


def save(state: Path, host: str, digests: Digests) -> None:
    """Writes what was learned. Raises OSError where the state folder cannot be written."""
    if digests.changed:
        write_atomically(store_file(open_state(state), host), digests.encode())
        digests.changed = False


def now_ns() -> int:
    """The clock that file times are held against."""
    return time.time_ns()


def host_name() -> str:
    return os.uname().nodename or "host"
