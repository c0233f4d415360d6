"""Staging: every source that the plan needs, proved file by file, before anything in the environment changes.

Two ways lead into the environment. A uv archive that has a pointer with URL and hash is installed by a lock, through
a private cache that holds a copy of the pointer and a link to the bucket of archives: uv copies out of the archive,
and writes what it writes (locks, what it knows of interpreters) to the private cache. Everything else becomes a wheel
in a find-links folder.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from envguard.acquire.packages.record_file import Row
from envguard.model.action import Obstacle
from envguard.restore.archive import (
    MOST_FAULTS,
    Fault,
    Files,
    RecordUnusable,
    check_rows,
    read_rows,
    wheel_name,
    write_wheel,
)
from envguard.restore.candidate import Candidate
from envguard.restore.footprint import Footprint, Incoming, is_folder
from envguard.restore.listing import Listing
from envguard.restore.opening import opened
from envguard.restore.owners import Owners
from envguard.restore.plan import Plan, Step
from envguard.restore.point import Saved, walk_paths
from envguard.restore.progress import Progress

DEFAULT_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True)
class Staged:
    """A step whose source is proved. `wheel` is a file in the find-links folder; None: it goes by lock."""

    step: Step
    candidate: Candidate
    incoming: Incoming
    wheel: Path | None


@dataclass
class Staging:
    """What was staged, what was refused as poisoned, and steps for which nothing sound is left."""

    folder: Path | None = None
    link_mode: str = "copy"
    staged: list[Staged] = field(default_factory=list)
    poisoned: list[Obstacle] = field(default_factory=list)
    failed: list[Obstacle] = field(default_factory=list)
    proved: dict[str, Candidate] = field(default_factory=dict)
    """Name → the source that was found sound."""
    print: Footprint | None = None
    tree: Listing | None = None
    """The whole environment before anything was changed."""
    owners: Owners = field(default_factory=Owners)
    saved: tuple[Saved, ...] = ()
    """How everything was that the install may touch."""

    @property
    def links(self) -> Path:
        assert self.folder is not None
        return self.folder / "links"

    @property
    def cache(self) -> Path:
        """uv's cache for as long as the restore lasts."""
        assert self.folder is not None
        return self.folder / "cache"

    @property
    def linked_cache(self) -> Path:
        """The cache of the install by lock: its archives are the user's, so nothing may be unpacked into it."""
        assert self.folder is not None
        return self.folder / "linked-cache"

    @property
    def lock(self) -> Path:
        assert self.folder is not None
        return self.folder / "pylock.restore.toml"

    def by_lock(self) -> list[Staged]:
        return [item for item in self.staged if item.wheel is None]

    def by_wheel(self) -> list[Staged]:
        return [item for item in self.staged if item.wheel is not None]


def stage(
    plan: Plan, folder: Path | None, progress: Progress, by_lock: bool = True, link_mode: str = "copy"
) -> Staging:
    """Proves a source of each step, and puts it below `folder` ready for uv; with None it only proves.

    Raises OSError where `folder` cannot be written.
    """
    # Symbolic links would lead through the private cache, which is gone afterwards.
    staging = Staging(folder, "copy" if link_mode == "symlink" else link_mode)
    if folder is not None:
        staging.links.mkdir(exist_ok=True)
        staging.cache.mkdir(exist_ok=True)
    installs = [step for step in plan.steps if step.wanted is not None]
    progress.begin("verify", sum(step.candidates[0].bytes or 0 for step in installs))
    for step in installs:
        for candidate in step.candidates:
            if _stage_one(step, candidate, staging, progress, by_lock):
                staging.proved[step.name] = candidate
                break
        else:
            staging.failed.append(_unsound(step))
    progress.end()
    if staging.folder is not None and staging.by_lock():
        write_lock(staging)
    return staging


def _stage_one(step: Step, candidate: Candidate, staging: Staging, progress: Progress, by_lock: bool) -> bool:
    wheel: Path | None = None
    try:
        with opened(candidate) as files:
            rows = read_rows(files, candidate.dist_info)
            if staging.folder is None or (by_lock and _goes_by_lock(candidate, rows, staging)):
                faults = check_rows(files, rows, progress)
            else:
                wheel = staging.links / wheel_name(candidate.dist_info, candidate.tags, candidate.wheel_build)
                faults = write_wheel(files, candidate.dist_info, wheel, progress)
            if not faults:
                staging.staged.append(Staged(step, candidate, incoming_of(candidate, files), wheel))
    except RecordUnusable as error:
        label = f"{candidate.name} {candidate.version}"
        staging.poisoned.append(Obstacle(package=label, path=candidate.path, why=str(error)))
        return False
    staging.poisoned += [poisoned(candidate, fault) for fault in faults]
    if len(faults) >= MOST_FAULTS:
        label, why = f"{candidate.name} {candidate.version}", f"{len(faults)} files are wrong; it was read no further"
        staging.poisoned.append(Obstacle(package=label, path=candidate.path, why=why))
    if faults and wheel is not None:
        wheel.unlink()
    return not faults


def _goes_by_lock(candidate: Candidate, rows: tuple[Row, ...], staging: Staging) -> bool:
    """Whether uv can install it out of the archive: one bucket can be linked to, and uv would copy every file that
    lies in the archive, so that none may be there that RECORD does not list."""
    if candidate.pointer is None:
        return False
    bucket = Path(candidate.path).parent
    if any(Path(item.candidate.path).parent != bucket for item in staging.by_lock()):
        return False
    listed = {row.path for row in rows}
    root = len(candidate.path) + 1
    return all(path[root:] in listed for path in walk_paths(candidate.path) if not is_folder(path))


def poisoned(candidate: Candidate, fault: Fault) -> Obstacle:
    """A file of a source that must not be installed."""
    says = {
        "modified": "its content is not what the wheel's RECORD says",
        "missing": "RECORD lists it and it is not there",
        "unhashed": "RECORD gives no hash that could be checked",
        "unsafe": "RECORD names a path outside the wheel",
        "unreadable": f"it cannot be read: {fault.got}",
    }[fault.kind]
    return Obstacle(package=f"{candidate.name} {candidate.version}", path=f"{candidate.path}/{fault.path}", why=says)


def _unsound(step: Step) -> Obstacle:
    assert step.wanted is not None
    label = f"{step.name} {step.wanted.version or ''}".strip()
    count = len(step.candidates)
    of_them = (
        "its one source on this machine is not" if count == 1 else f"none of its {count} sources on this machine is"
    )
    return Obstacle(package=label, path=None, why=f"{of_them} sound")


def incoming_of(candidate: Candidate, files: Files) -> Incoming:
    """What a source will put where. Raises `RecordUnusable`."""
    rows = read_rows(files, candidate.dist_info)
    text = None
    if any(row.path == f"{candidate.dist_info}/entry_points.txt" for row in rows):
        with files.open(f"{candidate.dist_info}/entry_points.txt") as stream:
            text = stream.read().decode("utf-8", "replace")
    return Incoming(candidate.name, candidate.dist_info, rows, text)


def write_lock(staging: Staging) -> None:
    """The private cache and the lock that make uv install proved archives."""
    packages = []
    for item in staging.by_lock():
        pointer = item.candidate.pointer
        assert pointer is not None
        bucket = Path(item.candidate.path).parent
        staging.linked_cache.mkdir(exist_ok=True)
        if not (staging.linked_cache / bucket.name).is_symlink():
            (staging.linked_cache / bucket.name).symlink_to(bucket)
        folder = staging.linked_cache / pointer.bucket / "pypi" / item.candidate.name
        folder.mkdir(parents=True)
        shutil.copyfile(pointer.path, folder / os.path.basename(pointer.path))
        wheel = {"name": pointer.filename, "url": pointer.url, "hashes": {"sha256": pointer.sha256}}
        packages.append(
            {
                "name": item.candidate.name,
                "version": item.candidate.version,
                # Any index will do, and one must be named: without it uv writes a direct_url.json.
                "index": DEFAULT_INDEX,
                "wheels": [wheel],
            }
        )
    lock = {"lock-version": "1.0", "created-by": "envguard", "packages": packages}
    staging.lock.write_text(tomli_w.dumps(lock), encoding="utf-8")
