"""Which build a process holds of a file whose path no longer leads to it.

Two witnesses tell: the mapped file itself, which the kernel opens through /proc/PID/map_files for the privileged, and
the uv cache, where in hard-link mode the mapped inode still lies in the archive that it was installed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envguard.acquire.packages.cached_archives import archive_folders, holds
from envguard.acquire.packages.pip_stash import before_pip
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.elf import CorruptElf, read_build_id
from envguard.acquire.torch.torch_build import UnreadableVersion, read_version_file

MOST_RANGES = 20_000
MOST_FILES = 64
"""Stale files looked at in each process; those of torch come first, and one of them is enough to name its build."""


@dataclass(frozen=True)
class StaleFile:
    """A mapped file that is no longer what its path names; `inode` is the mapped one."""

    path: str
    inode: int
    deleted: bool
    device: int | None = None


@dataclass(frozen=True)
class LoadedTorch:
    """The torch that a process runs although another lies on disk; `witness` says what told its version."""

    library: str
    build_id: str | None
    version: str | None
    witness: str | None


class MappedBuilds:
    """Asks both witnesses, each archive and each process once."""

    def __init__(
        self, host: Host, site: tuple[str, ...], uv_caches: tuple[str, ...], builds: Mapping[str, str]
    ) -> None:
        self.host, self.site, self.uv_caches, self.builds = host, site, uv_caches, builds
        self._archives: tuple[str, ...] | None = None
        self._ranges: dict[int, dict[tuple[str, bool], str]] = {}

    def changed(self, pid: int, stale: tuple[StaleFile, ...]) -> tuple[StaleFile, ...]:
        """Without the files that a reinstall replaced by the very same build."""
        ordered = sorted(stale, key=lambda file: not (self._relative(file.path) or "").startswith("torch/lib/"))
        same = {file.path for file in ordered[:MOST_FILES] if self._is_same_build(pid, file)}
        return tuple(file for file in stale if file.path not in same)

    def torch(self, pid: int, stale: tuple[StaleFile, ...]) -> LoadedTorch | None:
        """The torch behind the stale files of a process, None where none of them is torch's."""
        best: LoadedTorch | None = None
        for file in stale[:MOST_FILES]:
            relative = self._relative(file.path)
            if relative is None or not relative.startswith("torch/lib/"):
                continue
            found = self._identify(pid, file, relative)
            if found.version is not None:
                return found
            best = best if best is not None and best.build_id is not None else found
        return best

    def _is_same_build(self, pid: int, file: StaleFile) -> bool:
        mapped = self._build_id(pid, file)
        return mapped is not None and mapped == self._read(file.path)

    def _identify(self, pid: int, file: StaleFile, relative: str) -> LoadedTorch:
        build_id = self._build_id(pid, file)
        if build_id is not None and build_id in self.builds:
            return LoadedTorch(file.path, build_id, self.builds[build_id], "an earlier fingerprint's build-id")
        archive = self._archive(file, relative)
        if archive is not None:
            try:
                version = read_version_file(self.host, f"{archive}/torch/version.py").version
            except (OSError, UnreadableVersion):
                version = None  # an archive that was taken apart: its inode is known, its version is not
            if version is not None:
                return LoadedTorch(file.path, build_id, version, f"the same inode in {archive}")
        return LoadedTorch(file.path, build_id, None, None)

    def _build_id(self, pid: int, file: StaleFile) -> str | None:
        """Of the mapped file, by the kernel or by the archive that holds the same inode."""
        by_kernel = self._range(pid, file)
        found = self._read(by_kernel) if by_kernel is not None else None
        relative = self._relative(file.path)
        if found is None and relative is not None:
            archive = self._archive(file, relative)
            found = self._read(f"{archive}/{relative}") if archive is not None else None
        return found

    def _read(self, path: str) -> str | None:
        try:
            return read_build_id(self.host, path)
        except (OSError, CorruptElf):
            return None  # gone, no library, or not ours to open: this witness says nothing

    def _range(self, pid: int, file: StaleFile) -> str | None:
        """The entry of /proc/PID/map_files that is this file."""
        if pid not in self._ranges:
            self._ranges[pid] = {}
            folder = f"/proc/{pid}/map_files"
            try:
                for name, _ in self.host.listing(folder)[:MOST_RANGES]:
                    target = self.host.readlink(f"{folder}/{name}")
                    path, deleted = target.removesuffix(" (deleted)"), target.endswith(" (deleted)")
                    self._ranges[pid].setdefault((path, deleted), f"{folder}/{name}")
            except OSError:
                pass  # needs a capability that few have; what was listed until then is kept
        return self._ranges[pid].get((file.path, file.deleted))

    def _archive(self, file: StaleFile, relative: str) -> str | None:
        """The archive whose file has the mapped inode."""
        if self._archives is None:
            self._archives = tuple(archive_folders(self.host, self.uv_caches))
        for archive in self._archives:
            try:
                if holds(self.host, archive, relative, file.inode, file.device):
                    return archive
            except OSError:
                continue  # an archive of another package
        return None

    def _relative(self, path: str) -> str | None:
        """The path below site-packages; None for a file elsewhere."""
        for site in self.site:
            if path.startswith(f"{site}/"):
                # torch is the one package whose build is asked for here.
                return before_pip(path[len(site) + 1 :], ("torch",))
        return None
