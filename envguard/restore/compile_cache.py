"""The compile cache after a restore: brought back where what wrote it fits, else said to be cold.

It is brought back by copying files (a Mega-Cache blob lacks the compiled objects). Nothing that lies in the cache is
removed or written over: entries are named by content, so that those of several builds lie beside each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import Place, cache_places
from envguard.acquire.torch.cache_stamp import CacheStamp, is_passing, stamp_of
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.model import plain
from envguard.model.fingerprint import CompileCache
from envguard.project import Project
from envguard.restore.copying import copy_file
from envguard.restore.progress import Progress
from envguard.restore.vault import CacheManifest, Item, Vault
from envguard.state.files import write_atomically

COLD = (
    "the first start compiles cold: on one H200 a drafter of two layers took 28.7 s for its first step instead of "
    "2.7 s; larger models take minutes. Let one process compile first, and the others then find its entries"
)


@dataclass(frozen=True)
class Brought:
    """What became of one compile cache, in words, and what was copied."""

    path: str
    says: str
    files: int = 0
    bytes: int = 0
    source: str | None = None


def in_use(host: Host, project: Project) -> tuple[Place, ...]:
    """The caches that a trainer started from here would use: inductor's, and triton's where it is named."""
    base = str(project.root or project.start)
    found = cache_places(host, (), (), base)
    return tuple(place for place in found if place.kind == "inductor" or not place.default)


def saved_copies(host: Host, project: Project) -> tuple[Place, ...]:
    """Copies that somebody made by hand, named by `compile_caches` in the configuration."""
    base = str(project.root or project.start)
    used = {place.path for place in in_use(host, project)}
    found = cache_places(host, project.config.compile_caches, (), base)
    return tuple(place for place in found if place.how == "configuration" and place.path not in used)


def nothing_to_judge(host: Host, project: Project) -> bool:
    """Whether no cache is in use and no copy of one is kept, so that it does not matter which build would read it."""
    if any(isinstance(manifest, CacheManifest) for _, manifest in Vault(project.state).manifests()):
        return False
    return not any(host.find(place.path) for place in (*in_use(host, project), *saved_copies(host, project)))


def bring_back(
    host: Host, project: Project, build: Build, progress: Progress, dry_run: bool = False
) -> list[Brought]:
    """Fills each cache in use from the vault or a saved copy where that was written by `build`, and says so."""
    out = []
    for place in in_use(host, project):
        seen = read_cache(host, place, build, {}, Notes())
        if seen.verdict == "VALID":
            out.append(Brought(place.path, f"the {place.kind} cache {place.path} is of this build: a warm start"))
        elif seen.verdict == "UNSAFE":
            out.append(Brought(place.path, f"the {place.kind} cache {place.path} is left alone: {seen.why}; {COLD}"))
        else:
            out.append(_fill(host, project, place, seen, build, progress, dry_run))
    return out


def _fill(
    host: Host, project: Project, place: Place, seen: CompileCache, build: Build, progress: Progress, dry_run: bool
) -> Brought:
    kept, reasons = _fitting(Vault(project.state), place, build)
    copies = [copy for copy in saved_copies(host, project) if copy.kind == place.kind]
    for copy in () if kept else copies:
        judged = read_cache(host, copy, build, {}, Notes())
        if judged.verdict == "VALID":
            source, items = copy.path, _items(host, copy.path)
            break
        reasons.append(f"{copy.path} is {judged.verdict}" + (f" ({judged.why})" if judged.why else ""))
    else:
        if kept is None:
            state = f"{seen.verdict}" + (f": {seen.why}" if seen.why else "")
            why = f"; not brought back: {'; '.join(reasons)}" if reasons else "; no copy of it was kept"
            return Brought(place.path, f"the {place.kind} cache {place.path} is {state}{why}. So {COLD}")
        source, items = f"the vault (stored {kept.stored})", kept.files
    size = sum(item.size for item in items)
    if dry_run:
        return Brought(place.path, f"the {place.kind} cache {place.path} would be filled from {source}", 0, 0, source)
    began = clock.now()
    progress.begin("compile cache", size)
    copied = _copy(project, place.path, items, source if kept is None else None, progress)
    progress.end()
    if copied:
        _stamp(place, build, began, source, copied, size)
    says = f"the {place.kind} cache {place.path} was filled from {source}: {copied} files, {size >> 20} MiB"
    return Brought(place.path, says, copied, size, source)


def _stamp(place: Place, build: Build, began: str, source: str, files: int, size: int) -> None:
    """Leaves word in the cache itself, which several projects may share. Raises OSError."""
    stamp = CacheStamp(
        path=place.path,
        kind=place.kind,
        began=began,
        restored_at=clock.now(),
        source=source,
        files=files,
        bytes=size,
        writer=writer_of(place.kind, build),
    )
    write_atomically(Path(stamp_of(place.path)), msgspec.json.format(plain.encode(stamp), indent=1) + b"\n", 0o600)


def writer_of(kind: str, build: Build) -> str | None:
    """How a cache's entries name the build that wrote them; None where that is not known."""
    if kind == "inductor":
        return build.tag
    return f"triton {build.triton}" if build.triton else None


def _fitting(vault: Vault, place: Place, build: Build) -> tuple[CacheManifest | None, list[str]]:
    """The newest kept cache that fits, and why others do not."""
    reasons: list[str] = []
    best = None
    for _, manifest in vault.manifests():
        if not isinstance(manifest, CacheManifest) or manifest.cache != place.kind:
            continue
        why = misfit(manifest, build)
        if why is None:
            best = manifest
        else:
            reasons.append(f"the one kept {manifest.stored[:16]} {why}")
    return best, reasons


def misfit(kept: CacheManifest, build: Build) -> str | None:
    """Why a kept cache would not be hit by a build; None where nothing speaks against it."""
    own = writer_of(kept.cache, build)
    if own is None:
        return f"cannot be told to fit ({build.tag_unknown or 'the build is not known'})"
    if kept.tags != (own,):
        return f"was written by another build of torch ({kept.torch or 'unknown'})"
    if kept.gpus and build.gpus is not None and not set(kept.gpus) & build.gpus:
        return f"is for another GPU ({', '.join(kept.gpus)})"
    if kept.tritons and build.triton is not None and build.triton not in kept.tritons:
        return f"is for triton {', '.join(kept.tritons)}"
    return None


def _items(host: Host, root: str) -> tuple[Item, ...]:
    items = []
    for path, stat in host.walk(root).entries:
        if stat.is_file and not is_passing(path):
            items.append(Item(path, host.digest(f"{root}/{path}"), stat.size, stat.mode, stat.mtime_ns))
    return tuple(items)


def _copy(project: Project, root: str, items: Iterable[Item], folder: str | None, progress: Progress) -> int:
    """Copies what is not there yet; each file is hashed before it gets its name. Raises OSError."""
    vault = Vault(project.state)
    made: set[str] = set()
    copied = 0
    for item in items:
        target = f"{root}/{item.path}"
        if not os.path.lexists(target):
            parent = os.path.dirname(target)
            if parent not in made:
                os.makedirs(parent, mode=0o700, exist_ok=True)
                made.add(parent)
            source = f"{folder}/{item.path}" if folder is not None else str(vault.file(item.sha256))
            copied += _copy_one(source, target, item)
        progress.advance(item.size)
    return copied


def _copy_one(source: str, target: str, item: Item) -> int:
    temporary = f"{target}.envguard-{os.getpid()}.tmp"
    try:
        copy_file(source, temporary)
        with open(temporary, "rb", buffering=0) as stream:
            got = hashlib.file_digest(stream, "sha256").hexdigest()
        if got != item.sha256:
            return 0  # a damaged copy is a miss, and a miss is compiled again
        # inductor loads these with full trust: nobody else may write them.
        os.chmod(temporary, (item.mode & 0o755) | 0o600)
        os.utime(temporary, ns=(item.mtime_ns, item.mtime_ns))
        os.rename(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return 1
