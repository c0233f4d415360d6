"""The compile caches after a restore: brought back where what wrote them fits, else said to be cold.

It is brought back by copying files (a Mega-Cache blob lacks the compiled objects). Nothing that lies in the cache is
removed or written over: entries are named by content, so that those of several builds lie beside each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import Place, cache_places
from envguard.acquire.torch.cache_stamp import CacheStamp, is_passing, stamp_of
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.fingerprint.units import size as in_units
from envguard.model import plain
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Gpu
from envguard.project import Project
from envguard.restore.cache_targets import Named, Target, in_use, targets, warm_caches
from envguard.restore.copying import copy_file
from envguard.restore.progress import Progress
from envguard.restore.vault import CacheManifest, Item, Vault
from envguard.state.files import write_atomically

MOST_REASONS = 3
COLD = "the first start compiles cold. Let one process compile first, and the others then find its entries"
COLD_ON_GPU = (
    f"{COLD}. On one H200 with torch 2.11 a drafter of five layers compiled for 30.9 s cold, for 5.1 s warm and for "
    "4.6 s from a copied cache; larger models take minutes"
)


def cold(gpus: tuple[Gpu, ...] | None) -> str:
    """What a start without a warm cache means here: a GPU's compile times are none of a machine without one."""
    return COLD_ON_GPU if gpus else COLD


@dataclass(frozen=True)
class Brought:
    """What became of one compile cache, in words, and what was copied."""

    path: str
    says: str
    files: int = 0
    bytes: int = 0
    source: str | None = None
    cold: bool = False


@dataclass(frozen=True)
class Source:
    """Where a cache can be copied from; `folder` is None for the vault, whose files have names of their own."""

    name: str
    items: tuple[Item, ...]
    folder: str | None = None


def saved_copies(host: Host, project: Project, unknown: list[Unknown] | None = None) -> tuple[Place, ...]:
    """Copies that somebody made by hand, named by `compile_caches` in the configuration; where a pattern leads to a
    folder that cannot be listed goes into `unknown`."""
    base = str(project.root or project.start)
    used = {place.path for place in in_use(host, project)}
    found = cache_places(host, project.config.compile_caches, (), base, unknown)
    return tuple(place for place in found if place.how == "configuration" and place.path not in used)


def nothing_to_judge(host: Host, project: Project, reference: Named) -> bool:
    """Whether no cache is in use or named and no copy of one is kept, so that it does not matter which build would
    read it."""
    if any(isinstance(manifest, CacheManifest) for _, manifest in Vault(project.state).manifests()):
        return False
    named = (cache.path for cache in warm_caches(reference.fingerprint))
    places = (*in_use(host, project), *saved_copies(host, project))
    return not any(host.find(path) for path in (*named, *(place.path for place in places)))


def bring_back(
    host: Host, project: Project, build: Build, reference: Named, progress: Progress, dry_run: bool = False
) -> list[Brought]:
    """Fills the caches that the reference names, each at its own path, and those in use, from the vault or a saved
    copy where that was written by `build`; in words what became of each."""
    found = targets(host, project, reference, build)
    out = []
    for target in found.places:
        try:
            out.append((_bring(host, project, target, build, progress, dry_run), target))
        except OSError as error:
            where, why = error.filename or target.place.path, error.strerror or error
            says = f"the {target.place.kind} cache {target.place.path} could not be filled: {where}: {why}"
            out.append((Brought(target.place.path, says, cold=True), target))
    return [*(Brought("", note) for note in found.notes), *_with_the_cold_start(out, cold(reference.gpus))]


def _with_the_cold_start(brought: list[tuple[Brought, Target]], says: str) -> list[Brought]:
    """Says once what a cold start costs, where the run would have one: those that the reference names decide, where
    it names any."""
    counted = [each for each, target in brought if target.named is not None] or [each for each, _ in brought]
    last = next((each for each in reversed(counted) if each.cold), None)
    return [replace(each, says=f"{each.says}. So {says}") if each is last else each for each, _ in brought]


def _bring(host: Host, project: Project, target: Target, build: Build, progress: Progress, dry_run: bool) -> Brought:
    place, seen = target.place, target.seen
    name = f"the {place.kind} cache {place.path}"
    if target.closed is not None:
        return Brought(place.path, f"{name} is left alone: {target.closed}", cold=True)
    lacks = target.named is not None and (seen.entries or 0) < (target.named.entries or 0)
    if seen.verdict == "VALID" and not lacks and not target.instead_of:
        return Brought(place.path, f"{name} is of this build: a warm start")
    source, reasons = _source(host, project, target, build)
    wanting = [item for item in source.items if not os.path.lexists(f"{place.path}/{item.path}")] if source else []
    if source is None or not wanting:
        if seen.verdict == "VALID":
            was = target.named.entries if target.named is not None else None
            less = f", with {seen.entries} of the {was} entries that it had" if lacks else ""
            return Brought(place.path, f"{name} is of this build: a warm start{less}")
        state = f"{seen.verdict}" + (f": {seen.why}" if seen.why else "")
        if source is not None:
            return Brought(place.path, f"{name} is {state}; {source.name} has nothing that it lacks")
        why = f"; not brought back: {_some(reasons)}" if reasons else "; no copy of it was kept"
        return Brought(place.path, f"{name} is {state}{why}", cold=True)
    size = sum(item.size for item in wanting)
    if dry_run:
        return Brought(place.path, f"{name} would be filled from {source.name}", source=source.name)
    began = clock.now()
    progress.begin("compile cache", size)
    copied = _copy(project, place.path, wanting, source.folder, progress)
    progress.end()
    if copied:
        _stamp(place, build, began, source.name, copied, size)
    says = f"{name} was filled from {source.name}: {copied} files, {in_units(size)}"
    return Brought(place.path, says, copied, size, source.name)


def _source(host: Host, project: Project, target: Target, build: Build) -> tuple[Source | None, list[str]]:
    """The best copy to fill a place from, and why others do not fit.

    One that lay at the place's own path goes before one that lay where the place stands in for, the newest of all
    others comes after, then copies that were made by hand. A warm cache takes only what lay at those paths: entries
    of another model would do nothing for it.
    """
    paths = (target.place.path, *target.instead_of)
    kept, reasons = _fitting(Vault(project.state), target.place, build, paths)
    if kept is not None and (target.seen.verdict != "VALID" or kept.path in paths):
        lay = f", which lay in {kept.path}" if kept.path != target.place.path else ""
        return Source(f"the vault (stored {clock.local(kept.stored)}{lay})", kept.files), reasons
    if target.seen.verdict == "VALID":
        return None, reasons
    unseen: list[Unknown] = []
    copies = saved_copies(host, project, unseen)
    reasons += [f"{item.what.removeprefix('compile_cache ')} could not be listed ({item.why})" for item in unseen]
    for copy in copies:
        if copy.kind != target.place.kind or copy.path == target.place.path:
            continue
        judged = read_cache(host, copy, build, {}, Notes())
        if judged.verdict == "VALID":
            return Source(copy.path, _items(host, copy.path), copy.path), reasons
        reasons.append(f"{copy.path} is {judged.verdict}" + (f" ({judged.why})" if judged.why else ""))
    return None, reasons


def _some(reasons: list[str]) -> str:
    more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    return "; ".join(reasons[-MOST_REASONS:]) + more


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


def _fitting(
    vault: Vault, place: Place, build: Build, paths: tuple[str, ...]
) -> tuple[CacheManifest | None, list[str]]:
    """The kept cache that fits, one that lay at the first of `paths` before others, else the newest; and why others
    do not."""
    reasons: list[str] = []
    best: tuple[int, CacheManifest] | None = None
    for _, manifest in vault.manifests():
        if not isinstance(manifest, CacheManifest) or manifest.cache != place.kind:
            continue
        why = misfit(manifest, build)
        if why is not None:
            reasons.append(f"the one stored {clock.local(manifest.stored)} {why}")
            continue
        rank = paths.index(manifest.path) if manifest.path in paths else len(paths)
        if best is None or rank <= best[0]:
            best = rank, manifest
    return (best[1] if best is not None else None), reasons


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
    _make_folders(root, shared=False)
    copied = 0
    for item in items:
        target = f"{root}/{item.path}"
        if not os.path.lexists(target):
            _make_folders(os.path.dirname(target), shared=True)
            source = f"{folder}/{item.path}" if folder is not None else str(vault.file(item.sha256))
            copied += _copy_one(source, target, item)
        progress.advance(item.size)
    return copied


def _make_folders(path: str, shared: bool) -> None:
    """Makes the folders that lack, each for this user alone. Raises OSError, also where somebody else makes one
    meanwhile, unless it is `shared` with a compile that is running in a folder that is private already."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError) if shared else contextlib.nullcontext():
            os.mkdir(folder, 0o700)


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
