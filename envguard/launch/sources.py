"""Where word of changes comes from: inotify, and polling where inotify can't see or can't be had.

Both put batches of paths into one queue. Nothing is opened or read here; what a change means is decided by the watch.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from envguard.acquire.seam.host import Host, Stat
from envguard.launch.inotify import Inotify
from envguard.launch.who import is_noise

# Changes of other machines never reach this one's inotify.
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "9p", "afs", "glusterfs"})
POLL_S = 10.0
# How often a folder is looked at for being another: its parent, which would tell, is not watched.
_REPLACED_S = 5.0

_Identities = dict[str, tuple[int, int] | None]


@dataclass(frozen=True)
class Batch:
    """Paths that changed, seen at `time` (s since the epoch)."""

    time: float
    paths: frozenset[str]


@dataclass
class Sources:
    """The threads that listen, and the queue that they fill; `notes` says what is seen late or not at all."""

    queue: queue.SimpleQueue[Batch] = field(default_factory=queue.SimpleQueue)
    notes: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _notifiers: list[Inotify] = field(default_factory=list)

    def listen(self, host: Host, trees: Sequence[str], folders: Sequence[str]) -> None:
        """Watches `trees` with all below them, and `folders` without; falls back to polling, and says so."""
        mounts = read_mounts(host)
        for paths, recursive in ((tuple(trees), True), (tuple(folders), False)):
            remote = [path for path in paths if fs_type(mounts, path) in REMOTE]
            if remote:
                self.notes.append(f"{remote[0]} lies on {fs_type(mounts, remote[0])}: looked at every {POLL_S:.0f} s")
                self._poll(host, remote)
            local = [path for path in paths if path not in remote]
            if local:
                self._inotify(host, local, recursive)

    def _inotify(self, host: Host, paths: list[str], recursive: bool) -> None:
        roots = paths if recursive else paths[:8]  # a code tree has a thousand folders, and none is replaced whole
        watched = _identities(host, roots)
        try:
            notify = Inotify(paths, recursive)
        except OSError as error:
            # ENOSPC: the user's inotify watches are used up (fs.inotify.max_user_watches).
            self._fall_back(host, paths, error)
            return
        self._notifiers.append(notify)
        if self._stop.is_set():  # `close` came while the watches were being set
            notify.stop()
        self._start("inotify", lambda: self._forward(host, notify, watched, paths, recursive))

    def _fall_back(self, host: Host, paths: list[str], error: OSError) -> None:
        why = error.strerror or error
        self.notes.append(f"inotify cannot watch {paths[0]} ({why}): looked at every {POLL_S:.0f} s instead")
        self._poll(host, paths)

    def _forward(self, host: Host, notify: Inotify, watched: _Identities, paths: list[str], recursive: bool) -> None:
        roots = list(watched)
        try:
            while (found := notify.wait(_REPLACED_S)) is not None:
                self.put(found)
                self._note_gaps(notify)
                now = _identities(host, roots)
                if now != watched:
                    # The folder itself was replaced (`uv venv --clear`): the watch is on one that is gone.
                    self.put(set(roots))
                    self._listen_again(host, paths, roots, recursive)
                    return
        except OSError as error:  # a folder that came found no watch left
            self.put(set(paths))
            self._fall_back(host, paths, error)
        finally:
            self._notifiers.remove(notify)
            notify.close()

    def _note_gaps(self, notify: Inotify) -> None:
        if notify.unseen:
            more = f" and {len(notify.unseen) - 1} more folders" if len(notify.unseen) > 1 else ""
            self._once(f"{notify.unseen[0]}{more} may not be looked into: what changes there is not seen")
        if notify.overflowed:
            self._once("more changed at once than the kernel keeps word of: files may be missing in what was said")

    def _once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _listen_again(self, host: Host, paths: list[str], roots: list[str], recursive: bool) -> None:
        while not self._stop.wait(1.0):
            if all(_identities(host, roots).values()):
                self.put(set(roots))  # what has come into it before we listened again
                self._inotify(host, paths, recursive)
                return

    def _poll(self, host: Host, paths: Iterable[str]) -> None:
        roots = tuple(paths)

        def look() -> None:
            before = {path: shallow(host, path) for path in roots}
            while not self._stop.wait(POLL_S):
                for path in roots:
                    now = shallow(host, path)
                    changed = {name for name in {*now, *before[path]} if now.get(name) != before[path].get(name)}
                    self.put(changed)
                    before[path] = now

        self._start("polling", look)

    def put(self, paths: set[str]) -> None:
        """Hands on paths that are no noise."""
        kept = frozenset(
            path for path in paths if not is_noise(os.path.basename(path)) and "/__pycache__/" not in path
        )
        if kept:
            self.queue.put(Batch(time.time(), kept))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._stop.set()
        for notify in tuple(self._notifiers):
            notify.stop()
        for thread in self._threads:
            thread.join(timeout=2)


def shallow(host: Host, root: str) -> dict[str, tuple[int, int, int]]:
    """What polling sees of a folder: each entry, and each file of a dist-info, by (mtime, size, inode).

    A look at every one of 50,000 files every ten seconds would cost more than the watch is worth: an edit deep in a
    package, on a file system that reports none, is found by `envguard verify` and at the next launch.
    """
    found: dict[str, tuple[int, int, int]] = {}
    try:
        names = host.listing(root)
    except OSError:
        return found
    for name, kind in names:
        path = f"{root}/{name}"
        _note(host, path, found)
        if kind == "directory" and name.endswith((".dist-info", ".egg-info")):
            _note(host, f"{path}/RECORD", found)
        elif kind == "directory" and name == "torch":
            _note(host, f"{path}/version.py", found)
    return found


def _note(host: Host, path: str, found: dict[str, tuple[int, int, int]]) -> None:
    try:
        stat = host.find(path)
    except OSError:
        return
    if stat is not None:
        found[path] = (stat.mtime_ns, stat.size, stat.inode)


def _identities(host: Host, paths: Iterable[str]) -> _Identities:
    found: _Identities = {}
    for path in paths:
        try:
            stat: Stat | None = host.find(path)
        except OSError:
            stat = None
        found[path] = (stat.device, stat.inode) if stat is not None else None
    return found


def read_mounts(host: Host) -> tuple[tuple[str, str], ...]:
    """(mount point, file system type), longest mount point first; empty where it cannot be read."""
    try:
        text = os.fsdecode(host.read("/proc/self/mountinfo"))
    except OSError:
        return ()
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        found.append((left.split()[4].replace("\\040", " "), right.split()[0]))
    return tuple(sorted(found, key=lambda mount: -len(mount[0])))


def fs_type(mounts: Sequence[tuple[str, str]], path: str) -> str | None:
    """The type of the file system that holds `path`."""
    for point, kind in mounts:
        if path == point or path.startswith(point.rstrip("/") + "/"):
            return kind
    return None
