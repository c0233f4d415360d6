"""Shell patterns of paths, spelt out through the seam, so that a bundle answers them as the machine did."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable

from envguard.acquire.seam.host import Host

MARKS = "*?["


def is_pattern(path: str) -> bool:
    """Whether a path is a shell pattern."""
    return any(mark in path for mark in MARKS)


def matching(host: Host, pattern: str, unseen: Callable[[OSError], None]) -> list[str]:
    """The paths that an absolute pattern names, sorted; a part without a mark is taken as it is, there or not.

    A folder that cannot be listed is told to `unseen`.
    """
    folders = ["/"]
    for part in pattern.strip("/").split("/"):
        deeper = []
        for folder in folders:
            if not is_pattern(part):
                deeper.append(posixpath.join(folder, part))
                continue
            try:
                names = [name for name, _ in host.listing(folder)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                unseen(error)
                continue
            deeper += [posixpath.join(folder, name) for name in names if fnmatch.fnmatchcase(name, part)]
        folders = deeper
    return sorted(folders)
