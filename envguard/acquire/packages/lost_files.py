"""Files that RECORD lists and that are gone, or hold nothing where RECORD gives a size: which, and what their folders
say of when.

Taking an entry out of a folder moves the folder's mtime and leaves no other trace, so what is looked at is the
nearest folder that is still there, and whether something that came into it explains its time as well.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envguard.acquire.packages.cut_short import SAME_CHANGE_NS, never_ended
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.record_file import Row, normalised
from envguard.acquire.packages.restore_register import REGISTER
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.processes.live_processes import roots_of
from envguard.acquire.seam.host import Host, NotRecorded, Process, Stat
from envguard.model.evidence import Unknown

_GONE = (errno.ENOENT, errno.ENOTDIR)
_PIP = re.compile(r"pip[0-9.]*$")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?$")
_OF_UV = ("pip", "sync", "add", "remove")
_OF_PIP = ("install", "uninstall")
RESTORES = "restore"
_FINISHED = ("done", "rolled-back")


@dataclass(frozen=True)
class Folder:
    """The nearest folder that is still there, and the files that are gone from it or from below it.

    `changed_ns` is its mtime, None where it could not be seen; `explained` is an entry that came into it at that very
    moment, so that the time need not be the deletion's.
    """

    path: str
    gone: tuple[str, ...]
    """Paths as RECORD has them."""
    changed_ns: int | None
    touched_ns: int | None
    """ctime: later than the mtime where the folder was copied, or its times were set."""
    explained: str | None = None


@dataclass(frozen=True)
class Emptied:
    """A file of no bytes for which RECORD gives more; times in ns."""

    path: str
    size: int
    """What it had by RECORD."""
    mtime_ns: int
    links: int


@dataclass(frozen=True)
class Lost:
    """What one distribution has lost. Paths are as RECORD has them, sorted."""

    package: str
    directory: str
    """The dist-info."""
    location: str
    listed: tuple[str, ...]
    """All files that the wheel brought."""
    folders: tuple[Folder, ...] = ()
    dangling: tuple[str, ...] = ()
    """Links that lead to nothing: what is gone is what they led to."""
    emptied: tuple[Emptied, ...] = ()
    gone_folders: tuple[str, ...] = ()
    """The topmost folders that are gone with all that was in them."""

    @property
    def gone(self) -> tuple[str, ...]:
        return tuple(sorted(path for folder in self.folders for path in folder.gone))


def read_lost(
    host: Host,
    distributions: Distributions,
    trees: SiteTrees,
    busy: str | None,
    unknown: list[Unknown],
) -> tuple[Lost, ...]:
    """What each distribution has lost; nothing while an installer or a restore is at work (`busy`), which is said.

    Not asked of are packages of a manager that strips files and has lists of its own, editable installs, two
    dist-infos of one name (the older one's files went when the newer came), and a dist-info without an INSTALLER that
    its RECORD lists none of either: that install never ended.
    """
    doubled = {dist.directory for claimants in distributions.duplicates().values() for dist in claimants}
    found = []
    for dist in distributions.found:
        if dist.directory in doubled or dist.editable or dist.record is None or managed_by(dist) is not None:
            continue
        tree = trees.of(dist.location)
        absent, empty = _suspects(dist.record.rows, tree) if tree else ([], [])
        if not (absent or empty) or never_ended(dist):
            continue
        lost = _examine(host, dist, trees, absent, empty, unknown)
        if lost is not None:
            found.append(lost)
    if not found:
        return ()
    if busy is not None:
        unknown += [Unknown(f"deleted files of {lost.package}", busy) for lost in found]
        return ()
    return tuple(found)


def _suspects(rows: Iterable[Row], tree: Mapping[str, Stat]) -> tuple[list[Row], list[Row]]:
    """Rows of which the tree shows no file (or a link, whose target may be gone), and rows whose file is empty."""
    absent, empty = [], []
    for row in rows:
        stat = tree.get(row.path)
        if stat is None or stat.kind == "link":
            absent.append(row)
        elif row.size and not stat.size and stat.kind == "file":
            empty.append(row)
    return list(normalised(absent)), list(normalised(empty))


def _examine(
    host: Host,
    dist: Distribution,
    trees: SiteTrees,
    absent: list[Row],
    empty: list[Row],
    unknown: list[Unknown],
) -> Lost | None:
    """Asks the host for each suspect by name: a linked folder is not walked, and what could not be seen is not
    gone."""
    tree = trees.of(dist.location)
    stats = host.stats(dist.location, [row.path for row in absent])
    gone: list[str] = []
    dangling: list[str] = []
    unseen: list[str] = []
    for index, row in enumerate(absent):
        size = stats[4 * index]
        if -size in _GONE:
            (gone if row.path not in tree else dangling).append(row.path)
        elif size < 0 and -size != errno.EISDIR:
            why = NotRecorded(row.path).strerror if -size == errno.ENODATA else os.strerror(-size)
            unseen.append(f"{row.path}: {why}")
    if unseen:
        unknown.append(Unknown(f"whether all files of {dist.name} are there", unseen[0]))
    emptied = tuple(Emptied(row.path, row.size or 0, tree[row.path].mtime_ns, tree[row.path].nlink) for row in empty)
    if not (gone or dangling or emptied):
        return None
    assert dist.record is not None
    rows = normalised(dist.record.rows)
    lost = {*gone, *dangling}
    return Lost(
        package=dist.name,
        directory=dist.directory,
        location=dist.location,
        listed=tuple(row.path for row in rows),
        folders=_folders(host, dist.location, trees, gone),
        dangling=tuple(dangling),
        emptied=emptied,
        gone_folders=tuple(sorted({top for path in lost if (top := _topmost_gone(path, tree)) is not None})),
    )


def _topmost_gone(path: str, tree: Mapping[str, Stat]) -> str | None:
    parts = path.split("/")[:-1]
    folders = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return next((folder for folder in folders if folder not in tree), None)


def _folders(host: Host, location: str, trees: SiteTrees, gone: Iterable[str]) -> tuple[Folder, ...]:
    tree = trees.of(location)
    from_folder: dict[str, list[str]] = {}
    for path in gone:
        folder = posixpath.dirname(path)
        while folder and folder not in tree:
            folder = posixpath.dirname(folder)
        from_folder.setdefault(folder, []).append(path)
    return tuple(
        _folder(host, location, trees, folder, tuple(paths)) for folder, paths in sorted(from_folder.items())
    )


def _folder(host: Host, location: str, trees: SiteTrees, folder: str, gone: tuple[str, ...]) -> Folder:
    path = f"{location}/{folder}" if folder else location
    try:
        stat = host.stat_target(path)
    except OSError:
        return Folder(path, gone, None, None)  # only now bounds the deletion then
    return Folder(path, gone, stat.mtime_ns, stat.ctime_ns, _explained(host, location, trees, folder, stat.mtime_ns))


def _explained(host: Host, location: str, trees: SiteTrees, folder: str, changed: int) -> str | None:
    """An entry that came into the folder when it last changed."""
    tree = trees.of(location)
    for name in trees.held(location).get(folder, ()):
        path, stat = f"{location}/{name}", tree[name]
        # What comes into a folder is born, linked or renamed then; each sets its ctime, which only moves on.
        if stat.ctime_ns >= changed - SAME_CHANGE_NS and _came(host, path, stat, changed):
            return path
    return None


def _came(host: Host, path: str, stat: Stat, changed: int) -> bool:
    try:
        born = host.stat(path).btime_ns
    except OSError:
        born = None
    if born is not None and abs(born - changed) <= SAME_CHANGE_NS:
        return True
    at_once = stat.ctime_ns <= changed + SAME_CHANGE_NS
    if stat.is_directory:
        # Its ctime is that of what happened in it. One of unknown birth may have been made then: better only a bound
        # than a date.
        return born is None
    written = abs(stat.mtime_ns - stat.ctime_ns) <= SAME_CHANGE_NS and stat.nlink == 1 and born is not None
    return at_once and not written


def site_changes(host: Host, env: Environment) -> dict[str, int]:
    """Site-packages folder → its mtime in ns; one that cannot be seen is left out."""
    found = {}
    for folder in env.site:
        with contextlib.suppress(OSError):
            found[folder] = host.stat_target(folder).mtime_ns
    return found


def at_work(host: Host, env: Environment, state: str | None) -> str | None:
    """Who is changing the environment at this moment, or has left it half changed; None where nobody is known to."""
    try:
        for process in host.processes(roots_of(env)):
            if _installs_into(process, env):
                return f"process {process.pid} ({' '.join(process.argv)[:80]}) is at work on the environment"
    except OSError:
        pass  # that the processes could not be asked was said by whoever asked for them first
    folder = _unfinished(host, env, state)
    return f"the restore of {folder} has not ended: `envguard restore --rollback` takes it back" if folder else None


def _installs_into(process: Process, env: Environment) -> bool:
    argv = process.argv
    words = [posixpath.basename(word) for word in argv[:3]]
    if words[:1] == ["uv"]:
        # Not `uv run`: it stays as the parent of what it started, for as long as a training lasts.
        acts = next((word for word in argv[1:] if not word.startswith("-")), "") in _OF_UV
    else:
        by_module = len(argv) > 2 and bool(_PYTHON.match(words[0])) and argv[1:3] == ("-m", "pip")
        script = any(_PIP.match(word) for word in words[:2])
        acts = (by_module or script) and any(word in _OF_PIP for word in argv[1:])
    if not acts:
        return False
    here = posixpath.dirname(env.prefix)
    inside = process.cwd is not None and f"{process.cwd}/".startswith(f"{here}/")
    named = any(env.prefix in word for word in argv) or (process.exe or "").startswith(f"{env.prefix}/")
    return named or process.environ.get("VIRTUAL_ENV") == env.prefix or inside


def _unfinished(host: Host, env: Environment, state: str | None) -> str | None:
    """The folder of a restore that neither ended nor was taken back."""
    for folder in (*_registered(host, env), *_kept(host, state)):
        try:
            lines = host.read(f"{folder}/journal.jsonl", 16 << 20).splitlines()
        except OSError:
            continue
        if _last_step(lines) not in _FINISHED:
            return folder
    return None


def _registered(host: Host, env: Environment) -> list[str]:
    """The restores that the environment itself names."""
    try:
        lines = host.read(f"{host.realpath(env.prefix)}/{REGISTER}", 1 << 20).splitlines()
    except OSError:
        return []  # of a restore that only it names nothing is known
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            found.append(str(json.loads(line)["folder"]))
    return found


def _kept(host: Host, state: str | None) -> list[str]:
    """The folders of the restores that a project keeps."""
    try:
        names = host.listing(f"{state}/{RESTORES}") if state is not None else []
    except OSError:
        return []
    return [f"{state}/{RESTORES}/{name}" for name, kind in names if kind == "directory"]


def _last_step(lines: list[bytes]) -> str | None:
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a kill tore it
        if isinstance(entry, dict) and isinstance(entry.get("step"), str):
            return str(entry["step"])
    return None
