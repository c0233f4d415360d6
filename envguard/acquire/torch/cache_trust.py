"""Who else could write into a compile cache: its entries are pickles, and inductor loads them with full trust."""

from __future__ import annotations

import posixpath

from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.section import reason

STICKY = 0o1000


class Trust:
    """Judges folders and files for one user (and root, who can do anything anyway)."""

    def __init__(self, host: Host, uid: int) -> None:
        self.host, self.uid = host, uid
        self._private: dict[tuple[int, int], bool] = {}

    def of_place(self, path: str, stat: Stat) -> str | None:
        """Why the cache at `path` cannot be trusted, or None; `stat` is of the path itself, link or not."""
        above = posixpath.dirname(path)
        try:
            parent = self.host.stat_target(above)
        except OSError:
            parent = None  # the folder itself still tells its own
        if parent is not None and self._writable(parent) and not parent.mode & STICKY:
            return f"{above} lets others replace it (mode {parent.mode:o})"
        return self.of(stat, path)

    def of_new(self, path: str) -> str | None:
        """Why a folder that would be made at `path`, which is not there, could not be trusted, or None."""
        above = posixpath.dirname(path)
        while True:
            try:
                stat = self.host.stat_target(above)
                break
            except FileNotFoundError:
                above = posixpath.dirname(above)
            except OSError as error:
                return f"{above} cannot be seen: {reason(error)}"
        if not stat.is_directory:
            return f"{above} is no folder"
        if stat.uid not in (self.uid, 0):
            return f"{above} belongs to another user (uid {stat.uid})"
        if self._writable(stat) and not stat.mode & STICKY:
            return f"{above} can be written by others (mode {stat.mode:o})"
        return None

    def of(self, stat: Stat, path: str) -> str | None:
        """Why what `stat` describes cannot be trusted, or None."""
        if stat.uid not in (self.uid, 0):
            return f"{path} belongs to another user (uid {stat.uid})"
        if not stat.is_link and self._writable(stat):
            return f"{path} can be written by others (mode {stat.mode:o})"
        return None

    def _writable(self, stat: Stat) -> bool:
        return bool(stat.mode & 0o002) or (bool(stat.mode & 0o020) and not self._is_private(stat.gid, stat.uid))

    def _is_private(self, gid: int, uid: int) -> bool:
        """A group that holds its owner alone, as Debian's and Red Hat's user groups do: writable by it is private."""
        if (gid, uid) not in self._private:
            self._private[(gid, uid)] = gid == 0 == uid or self._holds_only(gid, uid)
        return self._private[(gid, uid)]

    def _holds_only(self, gid: int, uid: int) -> bool:
        try:
            groups = self.host.read("/etc/group", 4 << 20).decode("utf-8", "replace").splitlines()
            users = self.host.read("/etc/passwd", 4 << 20).decode("utf-8", "replace").splitlines()
        except OSError:
            return False
        accounts = [fields for line in users if len(fields := line.split(":")) >= 4]
        owner = {fields[0] for fields in accounts if fields[2] == str(uid)}
        members = {fields[0] for fields in accounts if fields[3] == str(gid)}
        named = [fields[3] for line in groups if len(fields := line.split(":")) >= 4 and fields[2] == str(gid)]
        members |= {name for names in named for name in names.strip().split(",") if name}
        # A group that these files do not name comes from a directory service: who is in it is not known here.
        return bool(named) and bool(members) and members <= owner
