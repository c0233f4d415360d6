"""What this very process holds of a package: versions from `sys.modules`, build-ids from its own memory.

Nothing is imported: a module that the trainer did not load is not there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from envguard.acquire.packages.distributions import Distribution
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.packages.pip_stash import before_pip
from envguard.acquire.packages.record_file import parse_record
from envguard.acquire.processes import loading
from envguard.acquire.processes.loading import (
    Capture,
    CapturedDistribution,
    MappedLibrary,
    mapped_libraries,
    stale_libraries,
)
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.elf import CorruptElf, read_build_id
from envguard.acquire.torch.torch_build import VersionFile

CAPTURING = loading.__name__
"""The module whose import is the look at what lay on disk."""


@dataclass(frozen=True)
class MappedFile:
    """A library as a process has it: its path below site-packages, and what identifies it."""

    relative: str
    inode: int
    build_id: str | None
    device: int | None = None


@dataclass(frozen=True)
class Held:
    """What a process holds of one package."""

    imported: bool
    version: str | None = None
    """`__version__` of its module; of torch, `torch.version.__version__`."""
    stale: tuple[MappedFile, ...] = ()
    """Mapped libraries whose path now leads to another build's file, or nowhere."""
    stale_at_import: bool = False
    """Some were so already when envguard was imported."""
    fresh: bool = False
    """A mapped library is the very file on disk."""
    imported_since: bool = False
    """All of its modules were imported after envguard was, by their order among the modules of the process."""


class OwnProcess:
    """This process, asked about packages. `site` are its site-packages folders, links resolved.

    A library that was replaced by the same build (a reinstall) is not stale: its build-id on disk is the mapped one.
    """

    def __init__(self, host: Host, site: Iterable[str], capture: Capture, found: Iterable[Distribution]) -> None:
        self.host = host
        self.site = tuple(dict.fromkeys(host.realpath(folder) for folder in site))
        self.capture = capture
        self.captured: dict[str, list[CapturedDistribution]] = {}
        for directory, each in capture.distributions.items():
            stem = directory.rpartition("/")[2].removesuffix(".egg-info").partition("-")[0]
            self.captured.setdefault(canonical(stem), []).append(each)
        self.on_disk = {each.name: each for each in reversed(tuple(found))}
        self.torch = loaded_torch()

    @cached_property
    def started_ns(self) -> int:
        return started_ns()

    @cached_property
    def _libraries(self) -> tuple[MappedLibrary, ...]:
        """What is mapped, asked once: with torch the kernel takes tens of milliseconds to write that list."""
        return tuple(mapped_libraries())

    @cached_property
    def _stale(self) -> tuple[tuple[MappedFile, str], ...]:
        """Stale libraries of the environment, each with its path."""
        found = []
        for library in stale_libraries(self._libraries):
            relative = self._relative(library.path)
            if relative is None:
                continue
            build_id = memory_build_id(library)
            if build_id is None or build_id != self._disk_build_id(library.path):
                found.append((MappedFile(relative, library.inode, build_id, library.device), library.path))
        return tuple(found)

    @cached_property
    def suspects(self) -> frozenset[str]:
        """Packages of which a mapped library is stale."""
        return frozenset(name for file, _ in self._stale if (name := self._owner(file.relative)) is not None)

    @cached_property
    def mapped(self) -> tuple[str, ...]:
        """Paths below site-packages of the libraries that this process maps and that are still there."""
        paths = (self._relative(library.path) for library in self._libraries if not library.deleted)
        return tuple(path for path in paths if path is not None)

    def libraries_below(self, folder: str) -> dict[str, str | None]:
        """File name → build-id of mapped libraries whose path below site-packages begins with `folder`."""
        found = {}
        for library in self._libraries:
            relative = self._relative(library.path)
            if relative is not None and relative.startswith(folder):
                found[relative.rpartition("/")[2]] = memory_build_id(library)
        return dict(sorted(found.items()))

    def held(self, name: str) -> Held:
        """What the process holds of a distribution (normalised name)."""
        paths = self._paths(name)
        modules = loaded_modules(sorted(top_modules(paths)))
        stale = [
            (file, path) for file, path in self._stale if file.relative in paths or self._owner(file.relative) == name
        ]
        fresh = False
        if not stale:
            fresh = any(relative in paths for relative in self.mapped)
        version = self.torch.version if name == "torch" and self.torch is not None else None
        return Held(
            imported=bool(modules),
            version=version or next((v for module in modules if (v := loaded_version(module))), None),
            stale=tuple(file for file, _ in stale),
            stale_at_import=any(path in self.capture.stale for _, path in stale),
            fresh=fresh,
            imported_since=bool(modules) and imported_after(modules),
        )

    def _relative(self, path: str) -> str | None:
        """Below site-packages, as it was when it was mapped: pip renames a folder (`~orch`) before it deletes it."""
        for folder in self.site:
            if path.startswith(folder + "/"):
                relative = path[len(folder) + 1 :]
                return before_pip(relative, self._tops) if relative.startswith("~") else relative
        return None

    @cached_property
    def _tops(self) -> frozenset[str]:
        """Top-level folders of all distributions, then and now."""
        found: set[str] = set()
        for states in self.captured.values():
            for each in states:
                found.update(os.fsdecode(row.partition(b"/")[0]) for row in each.record.splitlines() if b"/" in row)
        return frozenset(name for name in found if not name.endswith(".dist-info"))

    def _disk_build_id(self, path: str) -> str | None:
        try:
            return read_build_id(self.host, path)
        except (OSError, CorruptElf):
            return None

    def _paths(self, name: str) -> frozenset[str]:
        """Every path that a state of the distribution, then or now, lists in its RECORD."""
        paths = {row.path for each in self.captured.get(name, ()) for row in parse_record(each.record).rows}
        now = self.on_disk.get(name)
        if now is not None and now.record is not None:
            paths.update(row.path for row in now.record.rows)
        return frozenset(paths)

    def _owner(self, relative: str) -> str | None:
        """Whose library that was: by RECORD as it was at import, by RECORD now, by the name of its top folder."""
        needle = os.fsencode(relative) + b","
        for name, states in self.captured.items():
            if any(needle in each.record for each in states):
                return name
        for name, now in self.on_disk.items():
            if now.lists(relative):
                return name
        top = canonical(relative.partition("/")[0])
        return top if top in self.on_disk or top in self.captured else None


class _Memory(Host):
    """Answers reads of one mapped library from memory: its headers and notes lie in the first mapped segment."""

    label = "this process"

    def __init__(self, address: int) -> None:
        self.address = address

    def call(self, operation: str, *arguments: object) -> object:
        if operation != "read":
            raise NotImplementedError(operation)
        _, limit, offset = arguments
        assert isinstance(limit, int)
        assert isinstance(offset, int)
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, limit, self.address + offset)
        finally:
            os.close(descriptor)


def memory_build_id(library: MappedLibrary) -> str | None:
    """The build-id of a library as it is mapped here, hex; None where it has none or it cannot be followed."""
    try:
        return read_build_id(_Memory(library.address), library.path)
    except (OSError, CorruptElf):
        return None


def loaded_torch() -> VersionFile | None:
    """The fields of the `torch.version` that this process imported; None where it imported none."""
    module = sys.modules.get("torch.version")
    version = getattr(module, "__version__", None)
    if version is None:
        return None

    def text(name: str) -> str | None:
        value = getattr(module, name, None)
        return None if value is None else str(value)

    debug = getattr(module, "debug", None)
    return VersionFile(
        str(version),
        cuda=text("cuda"),
        hip=text("hip"),
        git_version=text("git_version"),
        debug=debug if isinstance(debug, bool) else None,
        xpu=text("xpu"),
    )


def loaded_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Which of these top-level modules this process imported."""
    return tuple(name for name in names if name in sys.modules)


def imported_after(modules: Iterable[str]) -> bool:
    """Whether this process imported all of these modules after envguard had looked at what lay on disk.

    `sys.modules` keeps the order of imports.
    """
    order = {name: place for place, name in enumerate(sys.modules)}
    looked = order.get(CAPTURING)
    return looked is not None and all(order.get(name, -1) > looked for name in modules)


def loaded_version(module: str) -> str | None:
    """`__version__` of an imported module, where it has one that is text.

    A function `__getattr__` of the module is not asked: it answers with what lies on disk now (click's), imports, or
    warns, and where warnings are errors that costs the whole stamp. Nor does one of the module's class cost it,
    whatever it raises.
    """
    found = sys.modules.get(module)
    kept = getattr(found, "__dict__", {})
    lacks = "__version__" not in kept and "__getattr__" in kept
    try:
        value = None if lacks else getattr(found, "__version__", None)
    except Exception:
        return None  # somebody else's code, which has no version to tell: an extra that is not installed, a warning
    return str(value) if isinstance(value, str) else None


def started_ns() -> int:
    """When this process started, in ns since the epoch, to a hundredth of a second. Raises OSError."""
    with open("/proc/self/stat", "rb") as stream:
        ticks = int(stream.read().rpartition(b")")[2].split()[19])
    with open("/proc/uptime", "rb") as stream:
        up = float(stream.read().split()[0])
    return int((time.time() - up + ticks / os.sysconf("SC_CLK_TCK")) * 1e9)


def top_modules(paths: Iterable[str]) -> frozenset[str]:
    """The names under which the files of a distribution (as RECORD lists them) are imported."""
    found = set()
    for path in paths:
        first, slash, _ = path.partition("/")
        if not slash:
            first = first.partition(".")[0] if path.endswith((".py", ".so")) else ""
        if first.isidentifier():
            found.add(first)
    return frozenset(found)
