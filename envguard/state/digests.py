"""What was hashed before: contents of packages, and answers derived from files, each tied to a stat.

A digest holds while (path, size, mtime, ctime, inode) are what they were when it was taken. The store is one file
that is replaced whole, so that a kill leaves the old one; a store that cannot be read is an empty one, since all it
saves is work. What another process wrote meanwhile is taken over before it is replaced.

What nobody asked for in `KEPT_DAYS` is dropped when the store is written anyway, and of the rest what was asked for
longest ago, beyond `MOST_BYTES`. A file that is gone is no reason: what a package was may be asked for by a process
that still runs it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TypeVar

import msgspec

from envguard.state.files import open_state, read_file, write_atomically
from envguard.state.journal import host_part

FORMAT = 2
KEPT_DAYS = 60
MOST_BYTES = 256 << 20
"""Of what is kept of packages, and as much of answers: every command reads them all."""
TORCH_OF = "torch of "
"""Before a build identity of torch: the question under which a snapshot keeps what it read of that build. No work is
saved by it: a process that still runs the build is known by it when its files are gone. It is never dropped."""
_DAY = 86_400
T = TypeVar("T")
K = TypeVar("K")
_SURROGATE = re.compile("[\ud800-\udfff]")
# A file that changed this shortly before it was looked at may change again without its ctime moving: the kernel's
# clock for files ticks every 4 to 10 ms, and some file systems keep whole seconds only.
RACY_NS = 50_000_000
RACY_COARSE_NS = 2_000_000_000

Key = tuple[int, int, int, int]
"""(size, mtime, ctime, inode) of a file; times in ns since the epoch."""


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


class _Answer(msgspec.Struct, array_like=True):
    text: str
    used_at: int
    """Seconds since the epoch, to a day."""


class _Content(msgspec.Struct):
    format: int
    packages: dict[bytes, SeenPackage]
    memo: dict[str, _Answer]


class Digests:
    """The store of one host's state folder; `save` writes it if anything was learned."""

    def __init__(self, content: _Content | None = None, mark: Key | None = None) -> None:
        known = content or _Content(FORMAT, {}, {})
        self.mark = mark
        """The stat of the file that it was read from."""
        self._packages = known.packages
        self._learned: set[bytes] = set()
        self._memo = _Memo(known.memo)

    @property
    def memo(self) -> MutableMapping[str, str]:
        """Answers that readers derived from files, each under their mark (`envguard.acquire.memo`)."""
        return self._memo

    @property
    def changed(self) -> bool:
        """Whether anything was learned, or asked for the first time in a day, since it was read or written."""
        return bool(self._learned or self._memo.learned)

    def package(self, directory: str) -> SeenPackage | None:
        """What was last seen of the package whose dist-info is `directory`."""
        return self._packages.get(os.fsencode(directory))

    def learn_package(self, directory: str, seen: SeenPackage) -> None:
        self._packages[os.fsencode(directory)] = seen
        self._learned.add(os.fsencode(directory))

    def take_over(self, other: Digests) -> None:
        """Adds what another process wrote; on what this one learned itself, its own word stays."""
        mine = {name: self._packages[name] for name in self._learned}
        self._packages = {**self._packages, **other._packages, **mine}
        self._memo.take_over(other._memo)

    def encode(self) -> bytes:
        packages = _kept(self._packages, lambda seen: seen.seen_at, lambda seen: len(seen.paths) + len(seen.stats))
        return msgspec.msgpack.encode(_Content(FORMAT, packages, self._memo.kept()))

    def written(self, mark: Key | None) -> None:
        """All that was learned is in the file of that stat."""
        self.mark, self._learned, self._memo.learned = mark, set(), set()


class _Memo(MutableMapping[str, str]):
    def __init__(self, known: dict[str, _Answer]) -> None:
        self._known = known
        self.learned: set[str] = set()
        """Questions that were answered, given up, or asked for the first time in a day."""

    def __getitem__(self, question: str) -> str:
        answer = self._known[question]
        if time.time() - answer.used_at > _DAY:
            self[question] = answer.text
        return answer.text

    def __setitem__(self, question: str, text: str) -> None:
        self._known[question] = _Answer(text, int(time.time()))
        self.learned.add(question)

    def __delitem__(self, question: str) -> None:
        del self._known[question]
        self.learned.add(question)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def take_over(self, other: _Memo) -> None:
        theirs = {question: answer for question, answer in other._known.items() if question not in self.learned}
        self._known = {**self._known, **theirs}

    def kept(self) -> dict[str, _Answer]:
        """A path that is no text cannot stand in the store: its answer is found again, and not kept."""
        texts = {name: each for name, each in self._known.items() if not _SURROGATE.search(name + each.text)}
        lasting = {name: each for name, each in texts.items() if name.startswith(TORCH_OF)}
        return {**_kept(texts, lambda each: each.used_at, lambda each: len(each.text)), **lasting}


def _kept(known: Mapping[K, T], used_at: Callable[[T], int], size: Callable[[T], int]) -> dict[K, T]:
    """What was asked for lately, and of that as much as there is room for, the latest first; in the old order."""
    oldest = int(time.time()) - KEPT_DAYS * _DAY
    room, fit = MOST_BYTES, set()
    for name in sorted(known, key=lambda each: used_at(known[each]), reverse=True):
        if used_at(known[name]) > oldest and size(known[name]) <= room:
            room -= size(known[name])
            fit.add(name)
    return {name: each for name, each in known.items() if name in fit}


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
    mark = _mark(state)
    try:
        content = msgspec.msgpack.decode(read_file(store_file(state)), type=_Content)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return Digests(mark=mark)
    return Digests(content if content.format == FORMAT else None, mark)


def save(state: Path, digests: Digests) -> None:
    """Writes what was learned. Raises OSError where the state folder cannot be written.

    Without a lock, which a stopped process would hold against every trainer that stamps: of two that write in
    the same moment one may lose what it learned, and looks again.
    """
    if not digests.changed:
        return
    path = store_file(open_state(state))
    if _mark(state) != digests.mark:
        digests.take_over(load(state))
    write_atomically(path, digests.encode())
    digests.written(_mark(state))


def _mark(state: Path) -> Key | None:
    try:
        seen = os.stat(store_file(state))
    except OSError:
        return None
    return (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
