"""`snapshot --lock`: the installed builds as a lock file (PEP 751) that uv and pip install from, by hash.

A wheel's URL and hash are in no installed environment: they come from the pointer in uv's cache by which the same
build lies there, or from direct_url.json. A package of which nothing on the machine knows them cannot be locked, and
a lock that leaves it out would promise an environment that it does not make.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from packaging.markers import Marker
from packaging.pylock import Package, PackageDirectory, PackageVcs, PackageWheel, Pylock, is_valid_pylock_path
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envguard.acquire.packages.distributions import path_of_url
from envguard.acquire.packages.uv_cache import Archive, Pointer, UvCaches, index_digest
from envguard.acquire.packages.wheel_files import find_wheels
from envguard.acquire.seam.address import Address
from envguard.acquire.seam.host import Host
from envguard.errors import NotDetermined, UsageError
from envguard.fingerprint.units import counted
from envguard.model.fingerprint import Fingerprint
from envguard.model.fingerprint import Package as Installed
from envguard.project import Project
from envguard.restore.finding import find_links_folders

PYPI = "https://pypi.org/simple"
_TORCH_WHEEL = re.compile(r"(https://download\.pytorch\.org/whl/[\w.]+)/")


@dataclass(frozen=True)
class LocalWheel:
    """A wheel file of an installed build: its path as the lock has it, and what it hashes to."""

    path: str
    sha256: str
    size: int


def local_wheels(host: Host, project: Project, taken: Fingerprint, folder: str) -> dict[str, LocalWheel]:
    """Build → a wheel file of it, in find-links folders and where a package was installed from a file; paths are
    relative to `folder`. A wheel that cannot be read is none."""
    places = list(find_links_folders(host, project))
    for package in taken.packages:
        path = _path(package)
        places += [posixpath.dirname(path)] if path.endswith(".whl") else []
    wheels, _ = find_wheels(host, places, frozenset(package.name for package in taken.packages))
    builds = {package.record or package.build for package in taken.packages}
    found: dict[str, LocalWheel] = {}
    for wheel in wheels:
        if wheel.build in builds and wheel.build not in found:
            with contextlib.suppress(OSError):
                size = host.stat_target(wheel.path).size
                relative = posixpath.relpath(wheel.path, folder)
                found[wheel.build] = LocalWheel(relative, host.digest(wheel.path), size)
    return found


def lock_text(
    path: str,
    taken: Fingerprint,
    caches: UvCaches,
    indexes: Iterable[Address] = (),
    wheels: Mapping[str, LocalWheel] | None = None,
) -> str:
    """The lock as TOML. Raises `UsageError` for a file name that no installer reads as a lock, `NotDetermined` where
    a package's wheel is not known by hash."""
    if not is_valid_pylock_path(Path(path)):
        raise UsageError(f"{path} is no name of a lock", "it is called pylock.toml or pylock.NAME.toml")
    by_build: dict[str, list[Archive]] = {}
    for archive in caches.archives:
        if archive.build is not None:
            by_build.setdefault(archive.build, []).append(archive)
    packages, unknown = [], []
    known = {index_digest(url.request_url): str(url) for url in indexes}
    for installed in taken.packages:
        build = installed.record or installed.build or ""
        entry = _entry(installed, by_build.get(build, []), known, (wheels or {}).get(build))
        if entry is None:
            unknown.append(f"{installed.name} {installed.version}")
        else:
            packages.append(entry)
    if unknown:
        raise NotDetermined(
            f"{counted(len(unknown), 'package')} cannot be locked, since nothing here knows the hash of their wheel: "
            + ", ".join(unknown[:12])
            + (" …" if len(unknown) > 12 else ""),
            "uv keeps the hash of what it fetches from an index: `uv pip install --reinstall NAME==VERSION`. "
            "Of a wheel in a folder it keeps none: name the folder in `find_links`",
        )
    lock = Pylock(
        lock_version=Version("1.0"),
        created_by="envguard",
        requires_python=SpecifierSet(f">={'.'.join((taken.python.version or '3').split('.')[:2])}"),
        environments=[Marker(_marker(taken))],
        packages=packages,
        tool={"envguard": {"fingerprint": taken.id, "taken-at": taken.taken_at}},
    )
    lock.validate()
    return tomli_w.dumps(_plain(lock.to_dict()))


def _marker(taken: Fingerprint) -> str:
    python = taken.python
    minor = ".".join((python.version or "").split(".")[:2])
    machine = (python.platform or "").partition("-")[2] or (taken.system.arch if taken.system else "x86_64")
    implementation = (python.implementation or "cpython").lower()
    return (
        f"sys_platform == 'linux' and platform_machine == '{machine}' and "
        f"implementation_name == '{implementation}' and python_version == '{minor}'"
    )


def _entry(
    installed: Installed, archives: list[Archive], indexes: Mapping[str, str], local: LocalWheel | None
) -> Package | None:
    name = canonicalize_name(installed.name)
    try:
        version = Version(installed.version or "")
    except InvalidVersion:
        return None
    if installed.editable is not None:
        return Package(name=name, directory=PackageDirectory(path=installed.editable, editable=True))
    url = installed.direct_url or ""
    if installed.commit is not None and url:
        vcs = PackageVcs(type="git", url=url.removeprefix("git+"), commit_id=installed.commit)
        return Package(name=name, version=version, vcs=vcs)
    pointers = [p for archive in archives for p in archive.pointers if p.url and p.sha256 and p.filename]
    if not pointers and local is not None:
        name_of_file = posixpath.basename(local.path)
        wheel = PackageWheel(name=name_of_file, path=local.path, size=local.size, hashes={"sha256": local.sha256})
        return Package(name=name, version=version, wheels=[wheel])
    if not pointers and os.path.isdir(_path(installed)):
        # Built from a folder: as uv and pip lock it, by its path and without a hash.
        return Package(name=name, directory=PackageDirectory(path=_path(installed), editable=False))
    if not pointers:
        return None
    pointer = max(pointers, key=lambda item: (item.source == "pypi", item.fetched_at or 0))
    assert pointer.url is not None
    assert pointer.sha256 is not None
    wheel = PackageWheel(
        name=pointer.filename,
        url=str(Address(pointer.url)),
        size=pointer.size,
        hashes={"sha256": pointer.sha256},
    )
    return Package(name=name, version=version, index=index_of(pointer, indexes), wheels=[wheel])


def _path(installed: Installed) -> str:
    """Where a package was installed from, if from this machine's disk; else empty."""
    url = installed.direct_url or ""
    return path_of_url(url) if url.startswith("file:") else ""


def index_of(pointer: Pointer, known: Mapping[str, str]) -> str | None:
    """The index that a pointer came from: PyPI's bucket has a name, another is known by the digest of its URL."""
    if pointer.source == "pypi":
        return PYPI
    kind, _, digest = pointer.source.partition("/")
    if kind != "index":
        return None
    if digest in known:
        return known[digest]
    match = _TORCH_WHEEL.match(pointer.url or "")
    guess = match.group(1) if match else None
    return guess if guess is not None and index_digest(guess) == digest else None


def _plain(value: Any) -> Any:
    """What `Pylock.to_dict` gives, as the TOML writer takes it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return value if isinstance(value, str | int | float | bool) else str(value)
