"""What one install run did to an environment, as one sentence: two scans of its dist-infos, compared.

A scan lists folders and stats dist-infos: 150 packages cost two milliseconds, so that it can be made each time the
watch hears something, in a process that has a training run beside it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from envguard.acquire.seam.host import Host
from envguard.acquire.torch.torch_build import UnreadableVersion, read_version_file

_SUFFIXES = (".dist-info", ".egg-info")
_SHOWN = 4
_REQUIREMENT = re.compile(r"^Requires-Dist:\s*([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Installed:
    """A dist-info as a scan sees it. `mark` changes with each install; `requires` are the names that it asks for."""

    name: str
    version: str
    directory: str
    mark: tuple[int, int, int]
    installer: str | None
    requires: frozenset[str]


Scan = Mapping[str, Installed]


def scan(host: Host, site: Sequence[str], before: Scan | None = None) -> dict[str, Installed]:
    """Every distribution by name, the first on the path where two claim one; small files are read only where new."""
    found: dict[str, Installed] = {}
    for folder in site:
        try:
            names = host.listing(folder)
        except OSError:
            continue
        for name, _ in names:
            if name.endswith(_SUFFIXES) and not name.startswith("~"):
                _add(host, folder, name, found, before or {})
    return found


def _add(host: Host, folder: str, entry: str, found: dict[str, Installed], before: Scan) -> None:
    raw, _, version = posixpath.splitext(entry)[0].partition("-")
    name = canonicalize_name(raw)
    directory = f"{folder}/{entry}"
    if name in found:
        return
    try:
        stat = host.find(f"{directory}/RECORD") or host.find(directory)
    except OSError:
        return
    if stat is None:
        return  # it went between the listing and here; the next scan sees what came
    mark = (stat.inode, stat.mtime_ns, stat.size)
    known = before.get(name)
    if known is not None and known.directory == directory and known.mark == mark:
        found[name] = known
        return
    found[name] = Installed(
        name=name,
        version=_torch_version(host, folder) or version if name == "torch" else version,
        directory=directory,
        mark=mark,
        installer=_first_line(host, f"{directory}/INSTALLER"),
        requires=_requires(host, f"{directory}/METADATA"),
    )


def _torch_version(host: Host, folder: str) -> str | None:
    """PyPI's CUDA wheels keep the local version (+cu130) out of their metadata; version.py has it."""
    try:
        return read_version_file(host, f"{folder}/torch/version.py").version
    except (OSError, UnreadableVersion):
        return None


def _first_line(host: Host, path: str) -> str | None:
    try:
        return host.read(path, 256).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def _requires(host: Host, path: str) -> frozenset[str]:
    """Names of all requirements, whatever their markers: enough to tell what came for whose sake."""
    try:
        head = host.read(path, 1 << 18).split(b"\n\n", 1)[0].decode("utf-8", "replace")
    except OSError:
        return frozenset()
    return frozenset(canonicalize_name(name) for name in _REQUIREMENT.findall(head))


@dataclass(frozen=True)
class Swap:
    """One package of an install run; `before` None for a new one, `after` None for one that went."""

    name: str
    before: Installed | None
    after: Installed | None

    def __str__(self) -> str:
        if self.before is None:
            assert self.after is not None
            return f"{self.name} {self.after.version} new"
        if self.after is None:
            return f"{self.name} {self.before.version} gone"
        if self.before.version == self.after.version:
            return f"{self.name} {self.after.version} installed anew"
        return f"{self.name} {self.before.version} → {self.after.version}"


def swaps(before: Scan, after: Scan) -> tuple[Swap, ...]:
    """What differs, by name."""
    return tuple(
        Swap(name, before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if _mark(before.get(name)) != _mark(after.get(name))
    )


def _mark(item: Installed | None) -> tuple[str, tuple[int, int, int]] | None:
    return None if item is None else (item.directory, item.mark)


def roots(found: Sequence[Swap]) -> tuple[str, ...]:
    """What was asked for, as far as requirements tell: what no other package of the same run requires.

    REQUESTED does not tell: uv writes it for every package that it installs.
    """
    there = [swap for swap in found if swap.after is not None]
    required = {name for swap in there if swap.after is not None for name in swap.after.requires - {swap.name}}
    heads = [swap.name for swap in there if swap.name not in required]
    new = [swap.name for swap in there if swap.before is None]
    return tuple(heads or new or [swap.name for swap in found])


def sentence(found: Sequence[Swap], clock_time: str, by: str | None, stale: Sequence[str]) -> str:
    """One sentence about one install run; `stale`: packages whose old files the run still maps."""
    head = roots(found)
    gone = all(swap.after is None for swap in found)
    verb = "removed from" if gone else "installed into"
    says = f"{_listed(head)} {verb} this environment at {clock_time}{f' by {by}' if by else ''}"
    rest = sorted((swap for swap in found), key=lambda swap: (swap.before is None, swap.name not in stale, swap.name))
    details = [str(swap) for swap in rest if not (swap.name in head and swap.before is None) or len(found) == 1]
    if details and not (gone and len(found) == 1):
        says += f": {', '.join(details[:_SHOWN])}{_more(len(details) - _SHOWN)}"
    if stale:
        one = len(stale) == 1 and len(details) == 1
        says += f"; the running process still has the old {'one' if one else _listed(sorted(stale))}"
    return says


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:_SHOWN]) + _more(len(found) - _SHOWN)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
