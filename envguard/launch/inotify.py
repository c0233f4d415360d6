"""inotify with a mask of modifications alone, through libc.

General watchers ask for every open of a file too, so that each read of a package by any process wakes the launch:
up to 2 % of a core was seen beside a process that reads. Here the kernel tells of what changes and of nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import time
from collections.abc import Iterable, Iterator

# include/uapi/linux/inotify.h. IN_MODIFY is left out: it comes with every write(2), so that a log beside the code
# would wake us at each step, and IN_CLOSE_WRITE says the same once, when its writer is done.
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x8, 0x40, 0x80, 0x100, 0x200, 0x400
_Q_OVERFLOW, _IGNORED, _ONLYDIR, _EXCL_UNLINK, _ISDIR = 0x4000, 0x8000, 0x01000000, 0x04000000, 0x40000000
_MASK = (
    _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _ONLYDIR | _EXCL_UNLINK
)  # fmt: skip
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, length of the name
_READ = 1 << 18
# What follows a change within STEP_S belongs to it; word is passed on after LONGEST_S at the latest.
STEP_S, LONGEST_S = 0.5, 1.0


class Inotify:
    """Watches `roots`, with all below them where `recursive`. Raises OSError where the kernel refuses.

    `unseen` are folders that may not be looked into; `overflowed` says that the kernel dropped events.
    """

    def __init__(self, roots: Iterable[str], recursive: bool) -> None:
        self.unseen: list[str] = []
        self.overflowed = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._recursive = recursive
        self._roots = frozenset(os.fsencode(root) for root in roots)
        self._folders: dict[int, bytes] = {}
        self._descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise _error("inotify")  # EMFILE: fs.inotify.max_user_instances
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._add_roots()
        except OSError:
            self.close()
            raise

    def wait(self, seconds: float) -> set[str] | None:
        """Paths that changed, gathered until it is quiet for a moment; empty after `seconds`; None once stopped."""
        found: set[str] = set()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._descriptor, self._wake], [], [], min(left, STEP_S) if found else left)
            if self._wake in ready:
                return None
            if not ready and found:
                break
            if ready:
                if not found:
                    deadline = time.monotonic() + LONGEST_S
                self._take(found)
        return found

    def stop(self) -> None:
        """Ends a `wait` of another thread."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def close(self) -> None:
        for descriptor in (self._descriptor, self._wake, self._waker):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _take(self, found: set[str]) -> None:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            start = offset + _EVENT.size
            offset = start + length
            if mask & _Q_OVERFLOW:
                self._overflow(found)
            else:
                self._event(watch, mask, data[start:offset].rstrip(b"\0"), found)

    def _event(self, watch: int, mask: int, name: bytes, found: set[str]) -> None:
        folder = self._folders.get(watch)
        if folder is None:
            return
        if mask & (_IGNORED | _DELETE_SELF):
            del self._folders[watch]
            if folder in self._roots:
                found.add(os.fsdecode(folder))
            return
        path = folder + b"/" + name if name else folder
        found.add(os.fsdecode(path))
        if mask & _ISDIR and mask & (_MOVED_FROM | _DELETE):
            self._forget_below(path)
        # A folder that comes by a link is as much on the path of an import as one that is made here.
        elif mask & (_CREATE | _MOVED_TO) and (self._recursive or path in self._roots):
            # What was put into it before it was watched has told nobody.
            found |= self._add_below(path, set())

    def _overflow(self, found: set[str]) -> None:
        self.overflowed = True
        found.update(os.fsdecode(root) for root in self._roots)
        self._add_roots()  # the word of a new folder may be among what was dropped

    def _add_roots(self) -> None:
        met: set[int] = set()
        for root in self._roots:
            self._add_below(root, met)

    def _add_below(self, top: bytes, met: set[int]) -> set[str]:
        """Watches `top`, in a tree with all below it; returns what lies in there. `met` ends a circle of links."""
        found: set[str] = set()
        stack = [top]
        while stack:
            folder = stack.pop()
            watch = self._add(folder)
            if watch is None or watch in met:
                continue
            met.add(watch)
            for path, is_folder in self._entries(folder):
                found.add(os.fsdecode(path))
                if is_folder and self._recursive and not path.endswith(b"/__pycache__"):
                    stack.append(path)
        return found

    def _add(self, folder: bytes) -> int | None:
        """The watch, which is one for all links to a folder; None where there is none, or it is not ours to see."""
        watch = int(self._libc.inotify_add_watch(self._descriptor, folder, ctypes.c_uint32(_MASK)))
        if watch >= 0:
            self._folders.setdefault(watch, folder)
            return watch
        error = _error(os.fsdecode(folder))
        if error.errno == errno.EACCES:
            self._hidden(folder)
        elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise error  # ENOSPC: the user's watches are used up (fs.inotify.max_user_watches)
        return None

    def _hidden(self, folder: bytes) -> None:
        name = os.fsdecode(folder)
        if name not in self.unseen:
            self.unseen.append(name)

    def _entries(self, folder: bytes) -> Iterator[tuple[bytes, bool]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry.path, _is_folder(entry)
        except PermissionError:
            self._hidden(folder)
        except OSError:
            return  # it went meanwhile, of which its parent tells

    def _forget_below(self, top: bytes) -> None:
        """A folder that was moved keeps its watch, which would go on to tell of it under the old path."""
        below = top + b"/"
        for watch, folder in list(self._folders.items()):
            if folder == top or folder.startswith(below):
                self._libc.inotify_rm_watch(self._descriptor, watch)
                del self._folders[watch]


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
