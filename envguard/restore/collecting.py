"""`vault list` and `vault gc`: what is kept, who still needs it, and what may go."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from envguard import clock
from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.own_records import stamped_paths
from envguard.acquire.runs.stamps import read_stamp
from envguard.acquire.seam.host import Host
from envguard.model.action import VaultEntry
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.restore.vault import Manifest, Vault, WheelManifest

_DAY = 86_400.0


@dataclass
class Needs:
    """What stamps refer to: build identity or cache tag → names of the checkpoints; and what could not be read."""

    builds: dict[str, list[str]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def add(self, name: str, taken: Fingerprint) -> None:
        for package in taken.packages:
            for build in {package.build, package.record} - {None}:
                assert build is not None
                self.builds.setdefault(build, []).append(name)
        if taken.torch is not None and taken.torch.cache_tag is not None:
            self.tags.setdefault(taken.torch.cache_tag, []).append(name)

    def of(self, manifest: Manifest) -> tuple[str, ...]:
        """Checkpoints that a kept thing belongs to."""
        if isinstance(manifest, WheelManifest):
            return tuple(dict.fromkeys(self.builds.get(manifest.build, ())))
        return tuple(dict.fromkeys(name for tag in manifest.tags for name in self.tags.get(tag, ())))


def read_needs(
    host: Host, roots: Iterable[str], more: Iterable[tuple[str, Fingerprint]] = (), state: str | None = None
) -> Needs:
    """Every stamp below `roots` that can be read, those that the journal in `state` knows of, and other fingerprints
    (`baseline`) by name.

    A stamp that counts as no evidence of the past still says which builds its checkpoint ran on: it holds on to
    them too. One that cannot be read is in `unread`, and then nothing may be collected.
    """
    needs = Needs()
    unread: list[Unknown] = []
    found = find_checkpoints(host, roots, stamped=stamped_paths(host, state, unread))
    needs.unread += [f"{item.what}: {item.why}" for item in unread]
    needs.unread += [f"{item.what}: {item.why}" for item in found.unknown]
    for checkpoint in found.found:
        if checkpoint.stamp_path is None:
            continue
        try:
            stamp = read_stamp(host, checkpoint.path)
        except OSError as error:
            needs.unread.append(f"{checkpoint.stamp_path}: {error.strerror or error}")
            continue
        if stamp is None or stamp.fingerprint is None:
            needs.unread.append(f"{checkpoint.stamp_path}: {stamp.why_not if stamp else 'it is gone'}")
        else:
            needs.add(checkpoint.name, stamp.fingerprint)
    for name, taken in more:
        needs.add(name, taken)
    return needs


def entries(vault: Vault, needs: Needs) -> tuple[VaultEntry, ...]:
    """The vault as its answer shows it; `bytes` counts each thing whole, though they share files."""
    return tuple(entry_of(manifest, needs) for _, manifest in vault.manifests())


def entry_of(manifest: Manifest, needs: Needs) -> VaultEntry:
    """One kept thing."""
    size = sum(item.size for item in manifest.files)
    if isinstance(manifest, WheelManifest):
        return VaultEntry(
            kind="wheel",
            name=f"{manifest.name} {manifest.version}",
            build=manifest.build,
            bytes=size,
            stored=manifest.stored,
            referenced_by=needs.of(manifest),
        )
    return VaultEntry(
        kind="compile_cache",
        name=f"{manifest.cache} of torch {manifest.torch or '?'}, {manifest.path}",
        build=manifest.digest,
        bytes=size,
        stored=manifest.stored,
        referenced_by=needs.of(manifest),
    )


@dataclass(frozen=True)
class Collected:
    """What went: entries, and bytes of files that nothing names any more."""

    gone: tuple[VaultEntry, ...]
    freed: int
    over: int
    """Bytes by which what is still referenced exceeds the bound."""


def collect(vault: Vault, needs: Needs, most_bytes: int, most_days: int, now: float | None = None) -> Collected:
    """Drops what no stamp refers to, if it is too old or the vault too large, oldest first; then sweeps files.

    Raises OSError where the vault cannot be written.
    """
    if not vault.root.is_dir():
        return Collected((), 0, 0)
    moment = time.time() if now is None else now
    gone = []
    with vault.writing():
        kept = list(vault.manifests())
        size = _size(manifest for _, manifest in kept)
        for path, manifest in list(kept):
            if needs.of(manifest):
                continue
            old = moment - clock.seconds(manifest.stored) > most_days * _DAY
            if old or size > most_bytes:
                path.unlink()
                kept.remove((path, manifest))
                gone.append(entry_of(manifest, needs))
                size = _size(manifest for _, manifest in kept)
        freed = _sweep(vault, {item.sha256 for _, manifest in kept for item in manifest.files})
    return Collected(tuple(gone), freed, max(0, size - most_bytes))


def _size(manifests: Iterable[Manifest]) -> int:
    """Bytes of distinct files: what several wheels share is there once."""
    sizes = {item.sha256: item.size for manifest in manifests for item in manifest.files}
    return sum(sizes.values())


def _sweep(vault: Vault, named: set[str]) -> int:
    """Removes files that no manifest names, unfinished ones among them."""
    if vault.damaged():
        return 0  # a manifest that cannot be read may name any of them
    freed = 0
    for path in sorted((vault.root / "files").glob("*/*")):
        if path.name not in named:
            freed += path.lstat().st_size
            path.unlink()
    for folder in (vault.root / "files").iterdir():
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return freed
