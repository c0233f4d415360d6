"""The one seam between envguard and a machine.

A reader of a witness gets a `Host` and asks it for facts; it never opens a file, stats a path or runs a program
itself. `LiveHost` asks this machine, `RecordingHost` keeps what another host answered, and `BundleHost`
(`envguard.acquire.seam.bundle`) answers from such a record, so that one reader serves this machine, a far one and an
archived one alike.

Errors are `OSError`: `FileNotFoundError` says that the path is not there, which is a fact; any other says that it
could not be seen, which is not. `NotRecorded` is of the second kind.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from envguard.acquire.seam.collector.operations import OPERATIONS
from envguard.acquire.seam.collector.redaction import redact

Kind = Literal["file", "directory", "link", "other"]


def without_secrets(text: str) -> str:
    """Text with user info in URLs, secret-looking assignments and token-shaped strings taken out."""
    return redact(text)


class NotRecorded(OSError):
    """The bundle holds no answer to this question; the thing asked about may exist or not."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.ENODATA, "not recorded in this bundle", what)


class Stat(msgspec.Struct, frozen=True, array_like=True):
    """What the kernel says of one path itself; times in ns since the epoch, `btime_ns` None where unknown."""

    kind: Kind
    mode: int
    size: int
    nlink: int
    uid: int
    gid: int
    inode: int
    device: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int | None = None

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"

    @property
    def is_link(self) -> bool:
        return self.kind == "link"


class Walk(msgspec.Struct, frozen=True):
    """A tree: paths relative to its root with their stats, and the paths that could not be seen, with the reason."""

    root: str
    entries: tuple[tuple[str, Stat], ...]
    failed: tuple[tuple[str, str], ...]

    def refused(self) -> None:
        """Raises OSError for the first path that is there and could not be seen; one that went meanwhile is none."""
        for path, why in self.failed:
            if why != os.strerror(errno.ENOENT):
                raise PermissionError(errno.EACCES, why, f"{self.root}/{path}")


class Mapping(msgspec.Struct, frozen=True, array_like=True):
    """A file mapped into a process; `deleted` when its name is gone, which is how a swap underneath shows.

    `device` is the one that the kernel names in the map: on overlay and btrfs it is not the one that `stat` gives.
    """

    path: str
    inode: int
    deleted: bool
    device: int | None = None


class Process(msgspec.Struct, frozen=True):
    """A living process; `argv` is redacted, `environ` allow-listed; what the kernel refused is in `refused`."""

    pid: int
    parent: int
    state: str
    started: float
    uid: int
    argv: tuple[str, ...]
    exe: str | None
    cwd: str | None
    environ: dict[str, str]
    maps: tuple[Mapping, ...]
    refused: tuple[str, ...]


class Machine(msgspec.Struct, frozen=True):
    """Who is asking, and on what; times in seconds since the epoch, `utc_offset` in seconds."""

    uid: int
    user: str
    home: str
    host: str
    kernel: str
    system: str
    arch: str
    boot_time: int | None
    now: float
    utc_offset: int
    cwd: str
    cpus: int | None
    tmpdir: str


class Answer(msgspec.Struct, frozen=True):
    """What a query program printed, and its exit code."""

    code: int
    out: str
    err: str


class Space(msgspec.Struct, frozen=True):
    """Room on a file system, in bytes; `files_free` is None where it has no limit of files."""

    bytes: int
    free: int
    files_free: int | None


class Host:
    """Typed questions over one untyped `call`; an implementation supplies `call`."""

    label: str
    here = False
    """Whether it is this machine, of which files may be read that no bundle should hold."""

    def call(self, operation: str, *arguments: Any) -> Any:
        """Answers a collector operation with its raw value, or raises `OSError`."""
        raise NotImplementedError

    def stat(self, path: str) -> Stat:
        """The path itself; a link is not followed."""
        return Stat(*self.call("stat", path))

    def stat_target(self, path: str) -> Stat:
        """What the path leads to; no birth time."""
        return Stat(*self.call("stat_target", path))

    def find(self, path: str) -> Stat | None:
        """`stat`, or None where there is nothing; raises where it cannot be told."""
        try:
            return self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def listing(self, path: str) -> tuple[tuple[str, Kind], ...]:
        """Names and kinds in a directory, sorted by name."""
        return tuple((name, kind) for name, kind in self.call("listing", path))

    def walk(self, root: str, births: bool = False, skip: tuple[str, ...] = ()) -> Walk:
        """Every path below `root`; see `collector.files.walk`."""
        found, failed = self.call("walk", root, births, skip)
        entries = tuple((row[0], Stat(*row[1:])) for row in found)
        return Walk(root, entries, tuple((path, why) for path, why in failed))

    def stats(self, root: str, names: Sequence[str]) -> array[int]:
        """Size, mtime, ctime (ns) and inode of many files below `root`, four numbers a file, links followed.

        A file that cannot be seen has its negative errno for a size (-EISDIR where it is no regular file).
        """
        return array("q", self.call("stats", root, names))

    def order(self, path: str) -> tuple[str, ...]:
        """Names in a directory in the order in which the kernel gives them."""
        return tuple(self.call("order", path))

    def read(self, path: str, limit: int | None = None, offset: int = 0) -> bytes:
        """Bytes of a regular file; a negative `offset` counts from its end."""
        data = self.call("read", path, limit, offset)
        assert isinstance(data, bytes)
        return data

    def note_log(self, path: str, kind: str) -> None:
        """Notes that a file is a run's log, before it is read: a host that keeps answers keeps none of its texts."""

    def digest(self, path: str, algorithm: str = "sha256") -> str:
        """Digest of a regular file, hex."""
        if algorithm == "sha256":
            return str(self.call("digest", path))
        return str(self.call("hashed", path, algorithm))

    def lines(self, path: str) -> tuple[str, int]:
        """(sha256 in hex, lines that are not blank) of a text file."""
        digest, count = self.call("lines", path)
        return str(digest), int(count)

    def chain(self, parts: tuple[tuple[Literal["text", "file"], str], ...]) -> str:
        """sha256, hex, over texts and whole files in the given order."""
        return str(self.call("chain", parts))

    def scan(
        self, path: str, needles: tuple[str, ...], before: int, after: int, limit: int = 16 << 20, most: int = 8
    ) -> tuple[str, tuple[str, ...]]:
        """(sha256 in hex, texts around the needles) of a file; see `collector.contents.scan`."""
        digest, texts = self.call("scan", path, needles, before, after, limit, most)
        return str(digest), tuple(texts)

    def readlink(self, path: str) -> str:
        return str(self.call("readlink", path))

    def realpath(self, path: str) -> str:
        return str(self.call("realpath", path))

    def environ(self) -> dict[str, str]:
        """Allow-listed environment variables of whoever asks."""
        return dict(self.call("environ"))

    def withheld(self) -> tuple[str, ...]:
        """Names of allow-listed variables whose value looks like a secret; the values stay where they are."""
        return tuple(self.call("withheld"))

    def machine(self) -> Machine:
        return Machine(**self.call("machine"))

    def processes(self, under: tuple[str, ...] = ()) -> tuple[Process, ...]:
        """Living processes; mapped files are kept for those that touch a path below one of `under`."""
        return tuple(msgspec.convert(raw, Process) for raw in self.call("processes", under))

    def query(self, argv: tuple[str, ...], cwd: str | None = None, timeout: float = 20.0) -> Answer:
        """Asks a program that only answers (git, nvidia-smi, …); `FileNotFoundError` where it is not installed."""
        return Answer(**self.call("query", argv, cwd, timeout))

    def probe(self, executable: str, program: str, timeout: float = 180.0) -> Answer:
        """Runs `program` in an environment's interpreter, once; see `collector.programs.probe`."""
        return Answer(**self.call("probe", executable, program, timeout))

    def nvml(self) -> dict[str, Any]:
        """What NVIDIA's management library says, unjudged; see `collector.nvml.nvml`."""
        return dict(self.call("nvml"))

    def space(self, path: str) -> Space:
        """Room on the file system that holds `path`."""
        return Space(**self.call("space", path))


class LiveHost(Host):
    """This machine, now."""

    label = "this machine"
    here = True

    def call(self, operation: str, *arguments: Any) -> Any:
        return OPERATIONS[operation](*arguments)
