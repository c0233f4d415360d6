"""Which build of each package a process runs, where that need not be the one on disk. Pure: values in, values out.

Each package has at most three candidates: as `launch` recorded it before the process started, as it lay when envguard
was imported, and as it lies now. What the process itself shows decides between them: libraries that are mapped and
gone, libraries that are mapped and still there, versions of imported modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from envguard import clock
from envguard.acquire.packages.archive_of_library import FoundBuild
from envguard.acquire.processes.own_process import Held
from envguard.acquire.torch.torch_build import VersionFile
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Divergence, Package, Torch

# A process's start is known in ticks of a hundredth of a second, cut off, and a file's time by the kernel's coarse
# clock: without this much grace, what was installed just before the start is taken for a later arrival.
START_ERROR_NS = 50_000_000


@dataclass(frozen=True)
class Process:
    """The process, and how to ask it about a package. `recover` finds the build that only memory still has."""

    started_ns: int
    suspects: frozenset[str]
    """Packages of which a mapped library is no longer on disk."""
    held: Callable[[str], Held]
    recover: Callable[[str, Held], FoundBuild | None]
    torch: VersionFile | None = None
    torch_libraries: Callable[[], Mapping[str, str | None]] = dict
    """Library file name → build-id, of torch's as mapped."""


@dataclass(frozen=True)
class Before:
    """Earlier states of the packages, oldest first: by `launch`, and when envguard was imported."""

    states: tuple[Mapping[str, Package], ...]
    launched: bool = False
    """The first state is launch's: what was installed after the process started is not in it."""
    torch: Torch | None = None
    """The torch section that `launch` recorded."""


@dataclass
class Outcome:
    """The packages as loaded, by name, and what lies on disk otherwise."""

    packages: dict[str, Package] = field(default_factory=dict)
    diverged: list[Divergence] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


def reconcile(disk: Mapping[str, Package], torch_on_disk: Torch | None, before: Before, process: Process) -> Outcome:
    """Decides for every package that is on disk, or was."""
    outcome = Outcome()
    for name in sorted({*disk, *(name for state in before.states for name in state)}):
        older = [state[name] for state in before.states if name in state]
        loaded = _loaded(name, disk.get(name), older, before, torch_on_disk, process, outcome.unknown)
        if loaded is not None:
            outcome.packages[name] = loaded
        now = disk.get(name)
        if _build(loaded) != _build(now):
            outcome.diverged.append(_divergence(name, loaded, now, process))
    return outcome


def _loaded(
    name: str,
    disk: Package | None,
    older: list[Package],
    before: Before,
    torch_on_disk: Torch | None,
    process: Process,
    unknown: list[Unknown],
) -> Package | None:
    moved = [package for package in older if _build(package) != _build(disk)]
    # envguard may have been imported only to stamp: what it saw then was perhaps not there when the process started.
    came_later = disk is not None and (
        not older or (not before.launched and _installed_ns(older[0]) > process.started_ns + START_ERROR_NS)
    )
    contradicts = name == "torch" and _other_torch(process.torch, torch_on_disk)
    if not (moved or came_later or contradicts or name in process.suspects):
        return disk
    held = process.held(name)
    if not held.imported and not held.stale:
        return moved[0] if moved else (None if came_later else disk)
    if held.stale or contradicts:
        return _from_before(name, disk, older, held, before, process, unknown)
    if held.fresh or not (moved or came_later):
        return disk
    if not moved and older:
        # envguard saw this very build before the package was imported; else nothing tells the two moments apart.
        return disk if held.imported_since else _imported_before(disk, held, unknown)
    return _by_version(name, disk, moved, held, unknown)


def _from_before(
    name: str,
    disk: Package | None,
    older: list[Package],
    held: Held,
    before: Before,
    process: Process,
    unknown: list[Unknown],
) -> Package | None:
    """What is in memory is no longer on disk: an earlier state, an archive of it, or its version and no build."""
    version = process.torch.version if name == "torch" and process.torch is not None else held.version
    states = []
    # Where it was gone already when envguard was imported, what lay on disk by then had replaced it.
    if not held.stale_at_import or before.launched:
        states = [package for package in older if _build(package) != _build(disk)]
        # The same wheel was installed anew, or another one and then this again. A library whose build-id is another
        # than that of its file is of no such build.
        if len(states) < len(older) and disk is not None and not any(file.build_id for file in held.stale):
            states.append(disk)
    fitting = [package for package in states if same_version(package.version, version)]
    if fitting:
        return fitting[0]
    found = process.recover(name, held)
    like = disk or (older[0] if older else None)
    if like is None:
        return None
    if found is not None:
        return msgspec.structs.replace(
            _bare(like),
            version=found.version,
            build=found.build,
            requires=found.requires,
            requires_python=found.requires_python,
        )
    when = "before envguard was imported" if held.stale_at_import else "while this process ran"
    unknown.append(
        Unknown(
            f"build of {name} as loaded",
            f"its files were replaced {when}; no uv cache holds the library that is mapped, and no earlier "
            "fingerprint knows it",
        )
    )
    return msgspec.structs.replace(_bare(like), version=version, build=None, requires=(), requires_python=None)


def _imported_before(disk: Package | None, held: Held, unknown: list[Unknown]) -> Package | None:
    """It was installed while the process ran, before envguard was imported, and nothing tells whether the process had
    imported it by then: a version may be that of both builds, and another one is of a build that nobody saw."""
    if disk is None:
        return None
    unknown.append(
        Unknown(
            f"build of {disk.name} as loaded",
            "it was installed while this process ran and before envguard was imported, and nothing shows whether the "
            "process had imported it by then",
        )
    )
    return msgspec.structs.replace(
        _bare(disk), version=held.version or disk.version, build=None, requires=(), requires_python=None
    )


def _by_version(
    name: str, disk: Package | None, moved: list[Package], held: Held, unknown: list[Unknown]
) -> Package | None:
    """Pure Python: nothing is mapped, and a version is all that memory shows."""
    candidates = [*moved, *([disk] if disk is not None else [])]
    fitting = [package for package in candidates if held.version and same_version(package.version, held.version)]
    if len({package.build for package in fitting}) == 1:
        return fitting[0]
    unknown.append(
        Unknown(
            f"build of {name} as loaded",
            "it was installed while this process ran, and the process shows nothing that tells the builds apart",
        )
    )
    return (fitting or candidates)[0]


def _bare(package: Package) -> Package:
    """A package of which only the name and the place are sure."""
    return msgspec.structs.replace(
        package, installer=None, departs=(), files=None, bytes=None, depth="stat", installed_at=None, dirty=None
    )


def _build(package: Package | None) -> str | None:
    return None if package is None else (package.build or f"version {package.version}")


def _installed_ns(package: Package) -> int:
    return int(clock.seconds(package.installed_at) * clock.NS) if package.installed_at else 0


def _other_torch(loaded: VersionFile | None, disk: Torch | None) -> bool:
    if loaded is None or disk is None:
        return False
    return (loaded.version, loaded.git_version) != (disk.version, disk.git_version)


def same_version(metadata: str | None, module: str | None) -> bool:
    """Whether a distribution's version and a module's `__version__` may be of one build.

    METADATA of PyPI's CUDA wheels leaves out the local part (`2.11.0`) that `version.py` has (`2.11.0+cu130`).
    """
    if metadata is None or module is None:
        return False
    return metadata == module or ("+" not in metadata and metadata == module.partition("+")[0])


def _divergence(name: str, loaded: Package | None, disk: Package | None, process: Process) -> Divergence:
    a, b = _label(loaded), _label(disk)
    if name == "torch" and process.torch is not None and loaded is not None:
        a = process.torch.version
    if a == b:
        a, b = (
            f"{a} build {((loaded and loaded.build) or 'unknown')[:12]}",
            f"{b} build {((disk and disk.build) or '')[:12]}",
        )
    path = (disk or loaded).location if disk or loaded else None  # type: ignore[union-attr]
    return Divergence(what=name, loaded=a, disk=b, path=path)


def _label(package: Package | None) -> str | None:
    return None if package is None else package.version


def torch_as_loaded(
    disk: Torch | None,
    before: Before,
    process: Process,
    outcome: Outcome,
    remembered: Callable[[str | None], Torch | None],
) -> Torch | None:
    """The torch section of what is loaded: the disk's where nothing moved, launch's where it fits, what was read of
    that build while it lay on disk (`remembered`), else what memory holds."""
    if not any(item.what in ("torch", "triton") for item in outcome.diverged):
        return disk
    loaded = process.torch
    package, triton = outcome.packages.get("torch"), outcome.packages.get("triton")
    if package is None:
        return None
    for known in (before.torch, remembered(package.build)):
        if known is not None and (
            not _other_torch(loaded, known) if loaded is not None else same_version(package.version, known.version)
        ):
            return msgspec.structs.replace(known, triton=triton.version if triton is not None else None)
    if loaded is None:
        loaded = VersionFile(package.version or "unknown")
    return Torch(
        version=loaded.version,
        metadata_version=package.version,
        git_version=loaded.git_version,
        cuda=loaded.cuda,
        hip=loaded.hip,
        xpu=loaded.xpu,
        debug=loaded.debug,
        libraries=dict(process.torch_libraries()),
        triton=triton.version if triton is not None else None,
        ptxas={},
        torch_key=None,
        cache_tag=None,
    )
