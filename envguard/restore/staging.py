"""Staging: every wheel that the plan needs, proved file by file, before anything in the environment changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from envguard.acquire.uv_cache import Archive
from envguard.model.action import Obstacle
from envguard.restore.archive import Fault, RecordUnusable, read_rows, rebuild_wheel, verify_archive
from envguard.restore.candidate import Candidate
from envguard.restore.footprint import Incoming
from envguard.restore.plan import Plan, Step
from envguard.restore.progress import Progress


@dataclass(frozen=True)
class Staged:
    """A step whose source is proved: `wheel` is a file in the find-links folder."""

    step: Step
    candidate: Candidate
    incoming: Incoming
    wheel: Path


@dataclass
class Staging:
    """What was staged, what was refused as poisoned, and steps for which nothing sound is left."""

    staged: list[Staged] = field(default_factory=list)
    poisoned: list[Obstacle] = field(default_factory=list)
    failed: list[Obstacle] = field(default_factory=list)
    proved: dict[str, Candidate] = field(default_factory=dict)
    """Name → the source that was found sound."""


def stage(plan: Plan, folder: Path, progress: Progress) -> Staging:
    """Makes a find-links folder of proved wheels below `folder`. Raises OSError where that cannot be written."""
    links = folder / "links"
    links.mkdir(exist_ok=True)
    staging = Staging()
    installs = [step for step in plan.steps if step.wanted is not None]
    progress.begin("verify", sum(step.candidates[0].bytes or 0 for step in installs))
    for step in installs:
        for candidate in step.candidates:
            item = _stage_one(step, candidate, links, staging, progress)
            if item is not None:
                staging.staged.append(item)
                staging.proved[step.name] = candidate
                break
        else:
            staging.failed.append(_unsound(step))
    progress.end()
    return staging


def prove(plan: Plan, progress: Progress) -> Staging:
    """The same judgement without writing anything: which source of each step is sound, file by file."""
    staging = Staging()
    installs = [step for step in plan.steps if step.wanted is not None]
    progress.begin("verify", sum(step.candidates[0].bytes or 0 for step in installs))
    for step in installs:
        for candidate in step.candidates:
            faults = _faults(candidate, progress)
            staging.poisoned += faults
            if not faults:
                staging.proved[step.name] = candidate
                break
        else:
            staging.failed.append(_unsound(step))
    progress.end()
    return staging


def _faults(candidate: Candidate, progress: Progress) -> list[Obstacle]:
    assert candidate.archive is not None
    try:
        return [poisoned(candidate, fault) for fault in verify_archive(candidate.archive, progress)]
    except RecordUnusable as error:
        return [_unusable(candidate, error)]


def _unusable(candidate: Candidate, error: RecordUnusable) -> Obstacle:
    return Obstacle(package=f"{candidate.name} {candidate.version}", path=candidate.path, why=str(error))


def _unsound(step: Step) -> Obstacle:
    assert step.wanted is not None
    label = f"{step.name} {step.wanted.version or ''}".strip()
    return Obstacle(
        package=label, path=None, why=f"none of {len(step.candidates)} source(s) on this machine is sound"
    )


def _stage_one(step: Step, candidate: Candidate, links: Path, staging: Staging, progress: Progress) -> Staged | None:
    assert candidate.archive is not None
    archive = candidate.archive
    try:
        wheel, faults = rebuild_wheel(archive, links, progress)
    except RecordUnusable as error:
        staging.poisoned.append(_unusable(candidate, error))
        return None
    if faults:
        wheel.unlink()
        staging.poisoned += [poisoned(candidate, fault) for fault in faults]
        return None
    return Staged(step, candidate, incoming_of(archive), wheel)


def poisoned(candidate: Candidate, fault: Fault) -> Obstacle:
    """A file of a source that must not be installed."""
    says = {
        "modified": "its content is not what the archive's RECORD says",
        "missing": "RECORD lists it and the archive does not hold it",
        "unhashed": "RECORD gives no hash that could be checked",
        "unsafe": "RECORD names a path outside the wheel",
        "unlisted": "RECORD does not list it",
        "unreadable": f"it cannot be read: {fault.got}",
    }[fault.kind]
    return Obstacle(package=f"{candidate.name} {candidate.version}", path=f"{candidate.path}/{fault.path}", why=says)


def incoming_of(archive: Archive) -> Incoming:
    """What an archive will put where. Raises `RecordUnusable`."""
    root = Path(archive.path)
    entry_points = root / archive.dist_info / "entry_points.txt"
    text = entry_points.read_text("utf-8", "replace") if entry_points.is_file() else None
    return Incoming(archive.name, archive.dist_info, read_rows(root, archive.dist_info), text)
