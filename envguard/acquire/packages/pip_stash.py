"""What pip calls a folder while it takes it away: a process that mapped a library sees this name until it ends.

pip renames `torch` to `~orch` (then `~-rch`, `~.rch`, …) beside it, installs, and deletes the renamed folder. The
kernel follows the rename, so that `/proc/PID/maps` says `…/~orch/lib/libtorch_cpu.so (deleted)`. A pip that is killed
leaves it: then the old version lies there whole, and when it was renamed is when pip began to take it out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envguard.acquire.packages.metadata import canonical, parse_headers
from envguard.acquire.packages.record_file import build_identity, parse_record

if TYPE_CHECKING:
    from envguard.acquire.seam.host import Host, Stat

# The characters that `pip._internal.utils.temp_dir.AdjacentTempDirectory` puts in place of a name's beginning.
_LEADING = "~-.=%0123456789"
COPIED_NS = 2_000_000_000
"""What pip renames was installed longer ago; a folder that was last changed when it was born is a copy of it."""


def before_pip(relative: str, names: Iterable[str]) -> str:
    """`torch/lib/x.so` for `~orch/lib/x.so`, where exactly one of the top-level `names` may have been so renamed.

    >>> before_pip("~orch/lib/x.so", ["torch", "torchgen", "numpy"])
    'torch/lib/x.so'
    """
    top, slash, rest = relative.partition("/")
    if not top.startswith("~"):
        return relative
    end = top.lstrip(_LEADING) or top[-1]
    fitting = [name for name in names if len(name) == len(top) and name.endswith(end)]
    return f"{fitting[0]}{slash}{rest}" if len(fitting) == 1 else relative


@dataclass(frozen=True)
class Aside:
    """An old version that pip put aside and never took away: its dist-info under a name with `~`."""

    name: str
    """Normalised (PEP 503)."""
    version: str | None
    location: str
    folder: str
    """What its dist-info is called now, as `~orch-2.11.0.dist-info`."""
    was: str
    """What it was called."""
    moved: tuple[tuple[str, str], ...]
    """(name now, name before) of its own folders that lie there under a name with `~`, too."""
    empty: tuple[str, ...]
    """Names that pip had made for the next of its folders, which was never renamed."""
    moved_ns: int | None
    """When it was renamed (ns since the epoch): its ctime, which a rename sets and nothing has moved since."""
    doubt: str | None = None
    """Why that moment is worth less than it looks."""
    installed_ns: int | None = None
    """When it had been installed: the mtime of its RECORD, which a rename keeps."""
    tops: frozenset[str] = frozenset()
    """Its own names beside other packages, as they were."""
    build: str | None = None
    """Build identity by its RECORD; None without one."""

    @property
    def directory(self) -> str:
        return f"{self.location}/{self.folder}"

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that pip left of it, as it is called now."""
        return (self.folder, *(now for now, _ in self.moved), *self.empty)

    @property
    def removal(self) -> str:
        """The command that takes away what pip left."""
        return f"cd {shlex.quote(self.location)} && rm -r {' '.join(shlex.quote(name) for name in self.names)}"

    def now(self, path: str) -> str:
        """Where a file lies now that its RECORD lists as `path`, if pip had come so far as to move its folder."""
        top, slash, rest = path.partition("/")
        places = {was: now for now, was in ((self.folder, self.was), *self.moved)}
        return f"{places.get(top, top)}{slash}{rest}"


def read_aside(host: Host, location: str, names: Iterable[str]) -> tuple[Aside, ...]:
    """What pip left under names with `~` in a folder of packages that holds `names`.

    One whose METADATA and RECORD tell no name is called as it stands, without its first letter.
    """
    ours = sorted(name for name in names if name.startswith("~"))
    return tuple(_aside(host, location, folder, ours) for folder in ours if folder.endswith(".dist-info"))


def _aside(host: Host, location: str, folder: str, ours: list[str]) -> Aside:
    headers = parse_headers(_text(host, f"{location}/{folder}/METADATA").decode("utf-8", "surrogateescape"))
    rows = parse_record(_text(host, f"{location}/{folder}/RECORD")).rows
    stem, _, version = folder.removesuffix(".dist-info").partition("-")
    name = next(iter(headers.get("name", ())), stem.lstrip(_LEADING) or stem)
    tops = {row.path.partition("/")[0] for row in rows if not row.path.startswith(("../", "/"))}
    was = next((top for top in sorted(tops) if top.endswith(".dist-info")), folder.lstrip(_LEADING))
    found = {now: before_pip(now, tops) for now in ours if now != folder and before_pip(now, tops) != now}
    empty = {now for now in found if not _listing(host, f"{location}/{now}")}
    moved = {}
    for now, before in found.items():
        # Where pip was killed twice, each time the folders were renamed in one go with their dist-info.
        rivals = [each for each, of in found.items() if of == before and each not in empty]
        if rivals and now == min(rivals, key=lambda each: _apart(host, location, each, folder)):
            moved[now] = before
    stat, record = _stat(host, f"{location}/{folder}"), _stat(host, f"{location}/{folder}/RECORD")
    young = stat is not None and stat.btime_ns is not None and stat.ctime_ns - stat.btime_ns < COPIED_NS
    return Aside(
        name=canonical(name),
        version=next(iter(headers.get("version", ())), version or None),
        location=location,
        folder=folder,
        was=was,
        moved=tuple(moved.items()),
        empty=tuple(sorted(empty)),
        moved_ns=stat.ctime_ns if stat is not None else None,
        doubt=f"{folder} was born at its last change, as a copy of the tree is" if young else None,
        installed_ns=record.mtime_ns if record is not None else None,
        tops=frozenset(tops),
        build=build_identity(rows) if rows else None,
    )


def _apart(host: Host, location: str, one: str, other: str) -> int:
    """How long apart two entries were last changed, in ns; 0 where one cannot be seen."""
    first, second = _stat(host, f"{location}/{one}"), _stat(host, f"{location}/{other}")
    return abs(first.ctime_ns - second.ctime_ns) if first is not None and second is not None else 0


def _stat(host: Host, path: str) -> Stat | None:
    try:
        return host.find(path)
    except OSError:
        return None


def _listing(host: Host, path: str) -> tuple[tuple[str, str], ...]:
    try:
        return host.listing(path)
    except OSError:
        return ()


def _text(host: Host, path: str) -> bytes:
    """What pip was about to delete may be gone in part, and tells as much as is left of it."""
    try:
        return host.read(path)
    except OSError:
        return b""
