"""What of a run is watched: its environment, the folders of its code, its configuration, data and compile caches."""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.launch.watch import Watched
from envguard.model.fingerprint import Fingerprint
from envguard.project import Project

_MOST_FOLDERS = 4000


def watched_of(host: Host, project: Project, env: Environment, live: Fingerprint, cache: Path | None) -> Watched:
    """Folders of code are those that hold tracked files: a whole tree may hold a million samples beside it."""
    tracked: set[str] = set()
    folders: set[str] = set()
    for tree in live.code or ():
        files = tracked_files(host, tree.path)
        tracked.update(files)
        folders.update(posixpath.dirname(path) for path in files)
    caches = [item.path for item in live.compile_cache or ()]
    if cache is not None:
        caches.append(str(cache))
    return Watched(
        env=env,
        code=tuple(sorted(folders)[:_MOST_FOLDERS]),
        tracked=frozenset(tracked),
        files=tuple(_configured(project)),
        caches=tuple(dict.fromkeys(caches)),
    )


def tracked_files(host: Host, tree: str) -> tuple[str, ...]:
    """Absolute paths of the files that git tracks in a tree; its Python files where git does not answer."""
    try:
        answer = host.query(("git", "ls-files", "-z", "--cached"), cwd=tree)
    except OSError:
        answer = None
    if answer is not None and answer.code == 0:
        return tuple(f"{tree}/{name}" for name in answer.out.split("\0") if name)
    try:
        names = host.listing(tree)
    except OSError:
        return ()
    return tuple(f"{tree}/{name}" for name, kind in names if kind == "file" and name.endswith(".py"))


def _configured(project: Project) -> Iterable[tuple[str, str]]:
    for facet, patterns in (("config", project.config.config), ("data", project.config.data)):
        for pattern in patterns:
            path = str(project.path(pattern))
            for found in glob.glob(path) if glob.has_magic(path) else [path]:
                yield facet, os.path.normpath(found)
