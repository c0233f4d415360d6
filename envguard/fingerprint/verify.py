"""From what was observed to what is damaged: pure, and every row names its owner and its witness."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

from envguard.acquire.packages.contents import MISSING
from envguard.acquire.packages.cut_short import never_ended
from envguard.acquire.packages.uv_cache import Archive
from envguard.acquire.packages.verification import DamagedFile, Observations, Observed, PoisonedFile
from envguard.acquire.seam.host import Stat
from envguard.fingerprint.units import some_of
from envguard.model.drift import Damage, Litter, Unverifiable, VerifyReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Problem

MOST_DIFF_LINES = 200
_NEVER_CAME = "never came: the install was cut short before INSTALLER, or is at work"
_EDITED = "its content is not what was installed"


def with_unseen(report: VerifyReport, unseen: Iterable[Unknown]) -> VerifyReport:
    """The answer where some of the second witnesses could not be heard."""
    more = (Unverifiable(package=item.what, why=item.why) for item in unseen)
    return msgspec.structs.replace(report, unverifiable=(*report.unverifiable, *more))


def judge(
    seen: Observations, stamps: Mapping[str, Fingerprint] | None = None, half: Iterable[Problem] = ()
) -> VerifyReport:
    """The answer of `verify`. `stamps` are second witnesses by label, of the same versions only; `half` are packages
    that no dist-info may tell of, since the install was cut short before there was one."""
    problems: list[Damage] = []
    unverifiable: list[Unverifiable] = []
    for _, group in groupby(
        sorted(seen.packages, key=lambda item: (item.dist.name, item.dist.location)),
        key=lambda item: (item.dist.name, item.dist.location),
    ):
        problems += _one_name(list(group), unverifiable, stamps or {})
    problems += [
        Damage(package=name, path=path, kind="extra", witness="RECORD", expected=None, got=f"{size} bytes",
               detail="no package's RECORD lists it")
        for name, path, size in seen.extras
    ]  # fmt: skip
    problems += [
        Damage(package=name, path=path, kind="missing", witness="direct_url.json", expected=None, got=None,
               detail="the source of an editable install is not there: whatever imports it fails")
        for name, path in seen.gone
    ]  # fmt: skip
    problems += [
        Damage(package=item.subject, path=item.path or "", kind="record-missing", witness="pip's folder with ~",
               expected="a whole install", got=None, detail=item.says)
        for item in half
    ]  # fmt: skip
    problems += [_poison(item) for item in seen.poisoned]
    unverifiable += [Unverifiable(package=item.what, why=item.why) for item in seen.unknown]
    if not seen.packages and not problems:
        # A site-packages that was wiped and an audit of nothing look the same: neither is a sound environment.
        why = "no package is installed in it, so that there is nothing to verify"
        unverifiable.append(Unverifiable(package="the environment", why=why))
    problems.sort(key=lambda problem: problem.package)
    # A file that could not be read was looked at in no way, and is told as unverifiable.
    looked = [(item.contents.depth, max(0, (item.contents.files or 0) - len(item.unseen))) for item in seen.packages]
    return VerifyReport(
        problems=tuple(problems),
        unverifiable=tuple(dict.fromkeys(unverifiable)),
        checked=len(seen.packages),
        files=sum(files for _, files in looked),
        hashed=sum(files for depth, files in looked if depth != "stat"),
        litter=tuple(Litter(package=name, path=path, bytes=size) for name, path, size in seen.inert),
    )


def _one_name(
    group: list[Observed], unverifiable: list[Unverifiable], stamps: Mapping[str, Fingerprint]
) -> Iterator[Damage]:
    """All metadata of one name in one folder: at most one of them can be right about the files."""
    right = _right_one(group)
    for item in group:
        # A distribution that ships an egg-info beside a dist-info answers for both itself.
        if len(group) > 1 and item is not right and item.managed is None and right.managed is None:
            yield _stale(item, right, group)
        else:
            yield from _package(item, unverifiable, stamps)


def _right_one(group: list[Observed]) -> Observed:
    """The one whose RECORD fits the files best; of equals, the one that importlib picks."""
    return min(group, key=lambda item: (item.record != "read", item.wrong, not item.picked))


def _stale(item: Observed, right: Observed, group: list[Observed]) -> Damage:
    picked = next((each for each in group if each.picked), None)
    taken = f"; importlib.metadata picks {picked.dist.version}" if picked is not None else ""
    return Damage(
        package=item.dist.name,
        path=item.dist.directory,
        kind="stale-metadata",
        witness=f"{right.dist.directory}/RECORD",
        expected=right.dist.version,
        got=item.dist.version,
        detail=f"the files on disk are those of {right.dist.version}{taken}; reinstall {item.dist.name} "
        "(deleting one of the two by hand leaves the files unowned)",
    )


def _package(item: Observed, unverifiable: list[Unverifiable], stamps: Mapping[str, Fingerprint]) -> Iterator[Damage]:
    name, record = item.dist.name, f"{item.dist.directory}/RECORD"
    if item.managed is not None:
        unverifiable.append(Unverifiable(package=name, why=item.managed))
        return
    if item.record != "read":
        yield from _no_record(item, unverifiable)
        return
    for problem in item.bad_rows:
        yield Damage(package=name, path=record, kind="record-changed", witness="RECORD", expected=None, got=None,
                     detail=problem.says)  # fmt: skip
    if item.missing_more:
        told = sum(each.got == MISSING for each in item.damaged)
        says = f"{told + item.missing_more} files that RECORD lists are missing, {told} of them are told one by one"
        yield Damage(package=name, path=item.dist.location, kind="missing", witness=record,
                     expected=f"{told + item.missing_more} files", got=None, detail=says)  # fmt: skip
    for damaged in item.damaged:
        if damaged.rival is None:
            yield from _file(item, damaged)
    yield from _overwritten(item)
    yield from _rewritten(item)
    yield from _against_stamps(item, stamps)
    unverifiable += [Unverifiable(package=name, why=f"{unseen.what}: {unseen.why}") for unseen in item.unseen]


def _no_record(item: Observed, unverifiable: list[Unverifiable]) -> Iterator[Damage]:
    name, directory = item.dist.name, item.dist.directory
    if item.record.startswith("unreadable"):
        unverifiable.append(Unverifiable(package=name, why=f"RECORD is {item.record}"))
    elif not directory.endswith(".dist-info"):
        why = f"{directory} is no dist-info: whoever put it there wrote no RECORD"
        unverifiable.append(Unverifiable(package=name, why=why))
    else:
        says = "RECORD lists no file" if item.record == "empty" else "there is no RECORD"
        says += ", nor INSTALLER, as where an install or removal was cut short" if never_ended(item.dist) else ""
        yield Damage(package=name, path=f"{directory}/RECORD", kind="record-missing", witness="dist-info",
                     expected="a RECORD", got=None,
                     detail=f"{says}: nobody can say which files belong to {name}; reinstall it")  # fmt: skip


def _overwritten(item: Observed) -> Iterator[Damage]:
    """One for each package that installed its own files over those of this one."""
    by_rival: dict[str, list[DamagedFile]] = {}
    for damaged in item.damaged:
        if damaged.rival is not None:
            by_rival.setdefault(damaged.rival, []).append(damaged)
    for rival, files in sorted(by_rival.items()):
        first = files[0]
        paths = some_of([each.path for each in files])
        yield Damage(
            package=item.dist.name,
            path=f"{item.dist.location}/{first.path}",
            kind="shared-file",
            witness=f"{item.dist.directory}/RECORD",
            expected=first.expected.hash,
            got=first.got,
            detail=f"overwritten by {rival}, which installs {'a file' if len(files) == 1 else 'files'} of the same "
            f"path ({paths}): keep one of the two packages",
        )


def _file(item: Observed, damaged: DamagedFile) -> Iterator[Damage]:
    name, path = item.dist.name, f"{item.dist.location}/{damaged.path}"
    witness = f"{item.dist.directory}/RECORD"
    if damaged.got == MISSING:
        detail = _NEVER_CAME if never_ended(item.dist) else "deleted"
        if damaged.target is not None:
            detail = f"a link that leads nowhere, to {damaged.target}"
        yield Damage(package=name, path=path, kind="missing", witness=witness, expected=damaged.expected.hash,
                     got=None, detail=detail)  # fmt: skip
        return
    yield Damage(package=name, path=path, kind="modified", witness=witness, expected=damaged.expected.hash,
                 got=damaged.got, detail=_how(damaged), diff=_diff(damaged))  # fmt: skip
    if damaged.stat is not None and (damaged.stat.nlink > 1 or damaged.sharers):
        yield _shared(name, path, damaged, damaged.stat)


def _shared(name: str, path: str, damaged: DamagedFile, stat: Stat) -> Damage:
    """The edit went through a link, hard or symbolic, and so to everybody who has the same file."""
    names = max(stat.nlink, len(damaged.sharers) + 1)
    where = ", ".join(damaged.sharers) if damaged.sharers else "other environments or a cache"
    return Damage(
        package=name,
        path=path,
        kind="shared-file",
        witness="link",
        expected="1 name",
        got=f"{names} names",
        detail=f"this file is shared with {where}: whoever has it there has the edit, too",
    )


def _how(damaged: DamagedFile) -> str:
    size, was = damaged.stat.size if damaged.stat else None, damaged.expected.size
    if size is None or was is None:
        return f"edited: {_EDITED}"
    if size < was and (size == 0 or _is_prefix(damaged)):
        return f"truncated: {was} → {size} bytes"
    return f"edited: {was} → {size} bytes" if size != was else f"edited: {_EDITED}, at the same size"


def _is_prefix(damaged: DamagedFile) -> bool:
    return damaged.original is not None and damaged.now is not None and damaged.original.startswith(damaged.now)


def _diff(damaged: DamagedFile) -> str | None:
    """A unified diff from the original in the cache, where both are text."""
    if damaged.original is None or damaged.now is None:
        return None
    try:
        old, new = damaged.original.decode("utf-8"), damaged.now.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = list(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"{damaged.path} (as installed)", f"{damaged.path} (now)", lineterm=""
        )
    )
    if len(lines) > MOST_DIFF_LINES:
        lines = [*lines[:MOST_DIFF_LINES], f"… {len(lines) - MOST_DIFF_LINES} more lines"]
    return "\n".join(lines) or None


def _rewritten(item: Observed) -> Iterator[Damage]:
    for row in item.rewritten:
        yield Damage(
            package=item.dist.name,
            path=f"{item.dist.location}/{row.path}",
            kind="record-changed",
            witness=item.rewritten_witness or "cache archive",
            expected=row.archive,
            got=row.installed,
            detail="RECORD was rewritten after the install: the archive of this wheel has another line for this file",
        )


def _against_stamps(item: Observed, stamps: Mapping[str, Fingerprint]) -> Iterator[Damage]:
    """The build that a stamp of the same version knows; told once, by the first stamp that speaks of it."""
    if item.rewritten or not item.picked:
        return
    for label, stamp in stamps.items():
        known = stamp.package(item.dist.name)
        if known is None or known.build is None or known.version != item.dist.version or known.departs:
            continue
        if known.build not in (item.contents.identity, item.contents.build):
            yield Damage(
                package=item.dist.name,
                path=f"{item.dist.directory}/RECORD",
                kind="record-changed",
                witness=label,
                expected=known.build,
                got=item.contents.identity,
                detail=f"the wheel was replaced under the same version {item.dist.version}, or its RECORD was edited",
            )
        return


def _poison(item: PoisonedFile) -> Damage:
    archive = item.archive
    reach = "a build that is installed here" if item.installed else "not installed here"
    what = f"{item.more} more files" if item.more else item.path
    gone = "are gone from" if item.more else "is gone from"
    says = gone if item.got == MISSING else "was edited in"
    return Damage(
        package=archive.name,
        path=f"{archive.path}/{item.path}" if item.path else archive.path,
        kind="cache-poisoned",
        witness=f"{archive.path}/{archive.dist_info}/RECORD",
        expected=item.expected,
        got=None if item.got == MISSING else item.got,
        detail=f"{what} {says} the cache archive of {archive.name} {archive.version} ({reach}): {_outlook(archive)}",
    )


def _outlook(archive: Archive) -> str:
    """What the edit in a cache still does, and the command that ends it."""
    if archive.dangling:
        return f"uv does not install from it any more; `rm -r {shlex.quote(archive.path)}` drops it"
    clean = f"uv cache clean {archive.name} --cache-dir {shlex.quote(archive.cache)}"
    return (
        "every reinstall from this cache brings it back, and no hash that uv checks notices; "
        f"`{clean}` drops it with all other builds of {archive.name}"
    )
