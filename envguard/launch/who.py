"""Who changed a file: the kernel's word where it gives one (fanotify, root), else who could have (`/proc`), said so.

fanotify tells the process of each event and, with FAN_REPORT_DFID_NAME (Linux 5.9), the name of the file. Only
directories are marked, so that nothing is opened on a training machine's data, and events of other file systems'
traffic cost nothing. inotify, which finds the changes, cannot tell who made them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envguard.acquire.seam.collector.redaction import redact_argv
from envguard.acquire.seam.host import Host, LiveHost, Process

# include/uapi/linux/fanotify.h
_FAN_CLOEXEC, _FAN_CLASS_NOTIF, _FAN_REPORT_DFID_NAME = 0x1, 0x0, 0xC00
_FAN_MARK_ADD = 0x1
_FAN_CLOSE_WRITE, _FAN_MOVED_FROM, _FAN_MOVED_TO, _FAN_CREATE, _FAN_DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_FAN_EVENT_ON_CHILD, _FAN_ONDIR = 0x08000000, 0x40000000
_MASK = (
    _FAN_CLOSE_WRITE | _FAN_MOVED_FROM | _FAN_MOVED_TO | _FAN_CREATE | _FAN_DELETE | _FAN_EVENT_ON_CHILD | _FAN_ONDIR
)
_INFO_DFID_NAME = 2
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # event_len, vers, reserved, metadata_len, mask, fd, pid
_MOST_PATHS = 8192
_MOST_MARKS = 20_000
_KEPT_S = 120.0

# Programs that write into environments and code, by the name of the executable or of the module after `-m`.
WRITERS = frozenset({
    "uv", "uvx", "pip", "pip3", "conda", "mamba", "micromamba", "poetry", "pdm", "pipenv", "rye", "pixi", "hatch",
    "apt", "apt-get", "dpkg", "git", "rsync", "cp", "mv", "rm", "sed", "patch", "tar", "unzip", "vim", "vi", "nvim",
    "nano", "emacs", "code", "ansible-playbook", "salt-minion", "puppet", "tmpwatch", "tmpreaper", "systemd-tmpfiles",
})  # fmt: skip


@dataclass(frozen=True)
class Actor:
    """A process that did something, or may have: `certain` is the kernel's word."""

    pid: int
    program: str
    command: str
    certain: bool

    def __str__(self) -> str:
        what = f"{self.program} (PID {self.pid})"
        return what if self.certain else f"perhaps {what}, which ran at that moment and was not seen writing"

    @property
    def in_full(self) -> str:
        """With the command line, for the record."""
        return f"{self}: {self.command}" if self.command else str(self)


def actor_of(pid: int, argv: Sequence[str], certain: bool) -> Actor:
    """How a process is named: by its program, and what it was called with (without secrets)."""
    command = " ".join(argv[:6]) + (" …" if len(argv) > 6 else "")
    return Actor(pid, program_of(argv), command, certain)


def program_of(argv: Sequence[str]) -> str:
    """`uv` for /usr/bin/uv, `pip` for `python -m pip`, `train.py` for `python train.py`."""
    if not argv:
        return "a kernel thread"
    name = os.path.basename(argv[0])
    if name.startswith(("python", "pypy")):
        words = [word for word in argv[1:] if word not in ("-P", "-B", "-u", "-I", "-s", "-E")]
        if words[:1] == ["-m"] and len(words) > 1:
            return words[1]
        if words and not words[0].startswith("-"):
            return os.path.basename(words[0])
    return name


def candidates(host: Host, roots: Sequence[str], leave_out: frozenset[int], most: int = 2) -> tuple[Actor, ...]:
    """Living processes of the kind that writes into environments and that have to do with one of `roots`.

    The youngest first. A machine has many installers at work; one that neither runs from there, nor in there, nor
    names it, is no candidate.
    """
    found = [
        process
        for process in host.processes()
        if process.pid not in leave_out
        and process.state != "Z"
        and program_of(process.argv) in WRITERS
        and _concerns(process, roots)
    ]
    found.sort(key=lambda process: -process.started)
    return tuple(actor_of(process.pid, process.argv, certain=False) for process in found[:most])


def _concerns(process: Process, roots: Sequence[str]) -> bool:
    if process.environ.get("VIRTUAL_ENV") in roots or process.environ.get("CONDA_PREFIX") in roots:
        return True
    if any(root in word for word in process.argv for root in roots):
        return True
    # `uv pip install` without a word more works on the `.venv` of the folder that it is called in.
    places = [f"{root}/" for root in roots] + [f"{os.path.dirname(root)}/" for root in roots]
    return any(f"{path}/".startswith(tuple(places)) for path in (process.cwd, process.exe) if path is not None)


class _FileHandle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("kind", ctypes.c_int32), ("data", ctypes.c_uint8 * 128))


class KernelWitness:
    """Listens to fanotify on a set of directories and remembers who touched which path in the last two minutes.

    An event names its directory by a file handle, so that the handle of each marked directory is kept with its path.
    """

    def __init__(self, descriptor: int, libc: ctypes.CDLL) -> None:
        self._descriptor = descriptor
        self._libc = libc
        self._host = LiveHost()
        self._lock = threading.Lock()
        self._folders: dict[bytes, str] = {}
        self._seen: OrderedDict[str, tuple[float, Actor]] = OrderedDict()
        self._actors: dict[int, tuple[float, Actor]] = {}
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="fanotify", daemon=True)

    @classmethod
    def open(cls) -> KernelWitness | None:
        """None where the kernel does not tell: no root, an old kernel, a container without the capability."""
        libc = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() != 0 or not hasattr(libc, "fanotify_init"):
            return None
        flags = _FAN_CLOEXEC | _FAN_CLASS_NOTIF | _FAN_REPORT_DFID_NAME
        descriptor = libc.fanotify_init(ctypes.c_uint(flags), ctypes.c_uint(os.O_RDONLY | os.O_CLOEXEC))
        return cls(descriptor, libc) if descriptor >= 0 else None

    def watch(self, directories: Iterable[str]) -> int:
        """Marks directories; returns how many could be. Those that are gone or refuse are left to inotify alone."""
        marked = 0
        for directory in directories:
            if len(self._folders) >= _MOST_MARKS:
                break
            path = os.fsencode(directory)
            handle = self._handle(path)
            if handle is None:
                continue
            result = self._libc.fanotify_mark(
                self._descriptor, ctypes.c_uint(_FAN_MARK_ADD), ctypes.c_uint64(_MASK), _AT_FDCWD, path
            )
            if result == 0:
                self._folders[handle] = directory
                marked += 1
        return marked

    def _handle(self, path: bytes) -> bytes | None:
        handle, mount = _FileHandle(size=128), ctypes.c_int()
        if self._libc.name_to_handle_at(_AT_FDCWD, path, ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
            return None  # a file system without handles, or the directory has gone
        return struct.pack("=i", handle.kind) + bytes(handle.data[: handle.size])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        os.write(self._waker, b"x")
        self._thread.join(timeout=2)
        for descriptor in (self._descriptor, self._wake, self._waker):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def who(self, paths: Iterable[str], since: float) -> tuple[Actor, ...]:
        """The processes that touched these paths since then (s since the epoch), the busiest first."""
        counts: dict[Actor, int] = {}
        with self._lock:
            for path in paths:
                entry = self._seen.get(path)
                if entry is not None and entry[0] >= since:
                    counts[entry[1]] = counts.get(entry[1], 0) + 1
        return tuple(sorted(counts, key=lambda actor: -counts[actor]))

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([self._descriptor, self._wake], [], [])
            if self._wake in ready:
                return
            self._take(os.read(self._descriptor, 1 << 16))

    def _take(self, data: bytes) -> None:
        now = time.time()
        offset = 0
        while offset + _EVENT.size <= len(data):
            length, _, _, header, _, _, pid = _EVENT.unpack_from(data, offset)
            place = _place_in(data[offset + header : offset + length])
            offset += length
            if place is None or pid <= 0 or pid == os.getpid() or is_noise(place[1]):
                continue
            folder = self._folders.get(place[0])
            if folder is not None:
                self._remember(f"{folder}/{place[1]}", now, self._actor(pid, now))

    def _remember(self, path: str, now: float, actor: Actor) -> None:
        with self._lock:
            self._seen[path] = (now, actor)
            self._seen.move_to_end(path)
            while len(self._seen) > _MOST_PATHS or next(iter(self._seen.values()))[0] < now - _KEPT_S:
                self._seen.popitem(last=False)

    def _actor(self, pid: int, now: float) -> Actor:
        # A number may be another process's a few seconds later; within one it is not.
        known = self._actors.get(pid)
        if known is not None and now - known[0] < 1.0:
            return known[1]
        if len(self._actors) > 256:
            self._actors.clear()
        actor = self._actors[pid] = (now, self._read(pid))
        return actor[1]

    def _read(self, pid: int) -> Actor:
        try:
            words = os.fsdecode(self._host.read(f"/proc/{pid}/cmdline", 1 << 16)).split("\0")[:-1]
        except OSError:
            words = []
        if not words:  # it ended before it could be asked: the kernel's word for its number is all there is
            return Actor(pid, "a process that has ended", "", certain=True)
        return actor_of(pid, redact_argv(words), certain=True)


def _place_in(info: bytes) -> tuple[bytes, str] | None:
    """(handle of the directory, name in it) in an event's information records."""
    offset = 0
    while offset + 4 <= len(info):
        kind, _, length = struct.unpack_from("=BBH", info, offset)
        if kind == _INFO_DFID_NAME and length >= 20:
            size, handle_kind = struct.unpack_from("=Ii", info, offset + 12)
            start = offset + 20
            name = info[start + size : offset + length].split(b"\0", 1)[0]
            return struct.pack("=i", handle_kind) + info[start : start + size], os.fsdecode(name)
        if length == 0:
            break
        offset += length
    return None


def is_noise(name: str) -> bool:
    """Names that interpreters, editors and installers make in passing, and that change nothing by themselves."""
    return (
        name == "__pycache__"
        or name.endswith((".pyc", ".pyo", "~", ".swp", ".swx", ".swo", ".lock", ".tmp"))
        or ".pyc." in name
        or name.startswith((".tmp", "~", ".#", "4913", ".nfs"))
    )
