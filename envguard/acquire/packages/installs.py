"""When each installed distribution was installed, and what in its folder says so.

Only the installer's own marks date an install: INSTALLER (else RECORD) is written last, and the birth of the
dist-info or of the package's own folders comes first. A payload's mtime is the time when its wheel was first unpacked
into a cache, wherever it is hard-linked from there, so it is carried as the weaker witness and never used as a date.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from envguard import clock
from envguard.acquire.machine.zone import EARLIEST_S
from envguard.acquire.packages.conda import CondaRecords
from envguard.acquire.packages.record_file import build_identity
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.torch.torch_build import UnreadableVersion, read_version_file
from envguard.clock import NS
from envguard.model.evidence import Evidence, Unknown

if TYPE_CHECKING:
    from envguard.acquire.packages.cut_short import CutShort
    from envguard.acquire.packages.distributions import Distribution, Distributions

LinkMode = Literal["hardlink", "symlink", "own inode"]

VERSION_FILES = ("torch", "torchvision", "torchaudio")
SLACK_NS = 2_000_000_000
"""mtime and btime of a file that was written once are this close; more apart, one of them was set afterwards."""
CLAMPED = "its files bear one time for all of an image, or none: when it was installed is not known"
SURVIVED_NS = 300_000_000_000
"""A package folder born so long before its dist-info was not made by this install: it outlived an earlier one."""


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the package, as a sample of how the installer placed it."""

    path: str
    link: LinkMode
    nlink: int
    inode: int
    mtime_ns: int
    ctime_ns: int


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """One distribution with the interval in which it was installed (ns since the epoch, None where unknown)."""

    name: str
    version: str | None
    installer: str | None
    directory: str
    """The dist-info (or egg-info) folder."""
    location: str
    requires: tuple[str, ...]
    editable: bool
    requested: bool
    """REQUESTED is there: pip writes it for what was asked for, uv for every package."""
    start_ns: int | None
    end_ns: int | None
    doubt: str | None
    """Why the interval is worth less than it looks: a copied tree, a mark that was touched later."""
    copied_ns: int | None = None
    """Of a tree that was put here by a copy that kept its times: when, by the birth of INSTALLER (else RECORD)."""
    survived: str | None
    """A folder of this package that is older than the install: it was left by an earlier one."""
    survived_ns: int | None
    payload: Payload | None
    build: str | None
    """Build identity of what is installed; None without a RECORD."""
    full_version: str | None
    """With the local part that `version.py` gives where METADATA leaves it out."""
    evidence: tuple[Evidence, ...]
    mark_changed_ns: int | None = None
    """ctime of INSTALLER, which nothing sets back: whatever put the dist-info there moved it."""
    record_written_ns: int | None = None
    record_changed_ns: int | None = None
    """mtime and ctime of RECORD, of a dist-info that has an INSTALLER as well. Installers write both at once."""
    cut_short: str | None = None
    """How far it had come when it was cut short; None where it ended."""


class Installs(msgspec.Struct, frozen=True, kw_only=True):
    """All installs of an environment, and what could not be seen."""

    found: tuple[Install, ...]
    unknown: tuple[Unknown, ...]


def read_installs(host: Host, distributions: Distributions) -> Installs:
    """Dates every distribution of an environment."""
    owners = _owners(distributions)
    conda = CondaRecords(host)
    found: list[Install] = []
    unknown: list[Unknown] = []
    for distribution in distributions.found:
        try:
            found.append(_install(host, distribution, owners, conda))
        except OSError as error:
            why = f"{distribution.directory}: {error.strerror or error}"
            unknown.append(Unknown.refused(f"install time of {distribution.name}", why))
    return Installs(found=_without_clamped(found), unknown=tuple(unknown))


def _without_clamped(installs: Sequence[Install]) -> tuple[Install, ...]:
    """The installs, without the end of those whose marks bear one whole second for all: the SOURCE_DATE_EPOCH of an
    image. No installer writes two distributions in one nanosecond. Births tell when they were put here, and not when
    they were installed."""
    shared = Counter(item.end_ns for item in installs)
    return tuple(
        msgspec.structs.replace(item, start_ns=None, end_ns=None, doubt=CLAMPED)
        if item.end_ns is not None and item.end_ns % NS == 0 and shared[item.end_ns] > 2
        else item
        for item in installs
    )


def with_ends(installs: Iterable[Install], cut_short: Iterable[CutShort]) -> Iterator[Install]:
    """The installs, each with whether it was cut short. A dist-info of which nothing but its folder is left, or has
    come, is no install: its files tell neither a version nor a build."""
    cut = {(item.location, item.package): item for item in cut_short if item.mended is None}
    for install in installs:
        item = cut.get((install.location, install.name))
        if item is None:
            yield install
        elif not item.hollow:
            proofs = tuple(dict.fromkeys((*install.evidence, *item.evidence)))
            yield msgspec.structs.replace(install, cut_short=item.says, evidence=proofs)


def _owners(distributions: Distributions) -> Counter[str]:
    """How many distributions have files in a top-level folder; one that several share dates none of them."""
    count: Counter[str] = Counter()
    for distribution in distributions.found:
        count.update(f"{distribution.location}/{name}" for name in _top_folders(distribution))
    return count


def _top_folders(distribution: Distribution) -> tuple[str, ...]:
    record = distribution.record
    if record is None:
        return ()
    own = posixpath.basename(distribution.directory)
    names = {row.path.partition("/")[0] for row in record.rows if "/" in row.path}
    return tuple(sorted(names - {own, "..", ".", "", "__pycache__", "bin"}))


def _install(host: Host, distribution: Distribution, owners: Counter[str], conda: CondaRecords) -> Install:
    directory = distribution.directory
    folder = host.stat(directory)
    linked = conda.of(distribution)
    if linked is not None:
        marks = [("conda", linked.path, linked.stat)]
    else:
        names = [f"{directory}/{name}" for name in ("INSTALLER", "RECORD")]
        marks = [("dist-info", path, stat) for path in names if (stat := host.find(path))]
    requested = host.find(f"{directory}/REQUESTED") is not None
    evidence: list[Evidence] = []
    end, doubt, copied = _end(directory, folder, marks, evidence)
    start, survived, survived_ns = _start(host, distribution, folder, owners, evidence)
    if doubt is not None or start is None or (end is not None and start > end):
        # The births belong to another moment than the marks: the marks alone are left.
        start = end
    both = (marks[0][2], marks[1][2]) if len(marks) == 2 else None
    payload = _payload(host, distribution)
    if payload is not None:
        evidence.append(_weak_witness(payload))
    return Install(
        name=distribution.name,
        version=distribution.version,
        installer=distribution.installer,
        directory=directory,
        location=distribution.location,
        requires=distribution.requires,
        editable=distribution.editable is not None,
        requested=requested,
        start_ns=start,
        end_ns=end,
        doubt=doubt,
        copied_ns=copied,
        survived=survived,
        survived_ns=survived_ns,
        payload=payload,
        build=build_identity(distribution.record.rows) if distribution.record is not None else None,
        full_version=_full_version(host, distribution),
        evidence=tuple(evidence),
        mark_changed_ns=both[0].ctime_ns if both is not None else None,
        record_written_ns=both[1].mtime_ns if both is not None else None,
        record_changed_ns=both[1].ctime_ns if both is not None else None,
    )


def _end(
    directory: str, folder: Stat, marks: list[tuple[str, str, Stat]], evidence: list[Evidence]
) -> tuple[int | None, str | None, int | None]:
    """The end of the install, what lowers its worth, and when a copied tree was put here."""
    if not marks:
        evidence.append(_fact(directory, "mtime", folder.mtime_ns))
        return folder.mtime_ns, "neither INSTALLER nor RECORD is there: dated by its folder alone", None
    witness, path, stat = marks[0]
    name = posixpath.basename(path)
    born, written = stat.btime_ns, stat.mtime_ns
    evidence.append(_fact(path, "mtime", written, witness))
    if born is None:
        return (written, None, None) if written >= EARLIEST_S * NS else (None, CLAMPED, None)
    if born > written + SLACK_NS:
        evidence.append(_fact(path, "btime", born, witness))
        return written, f"the tree was copied here later: {name} was born after it was last written", born
    if written > born + SLACK_NS:
        # Its birth is what it was before somebody touched it; nothing else writes this file twice.
        evidence.append(_fact(path, "btime", born, witness))
        return born, f"{name} was touched after the install: dated by its birth", None
    if stat.nlink > 1:
        return written, f"{name} is hard-linked from a package cache, whose time it bears", None
    return written, None, None


def _start(
    host: Host, distribution: Distribution, folder: Stat, owners: Counter[str], evidence: list[Evidence]
) -> tuple[int | None, str | None, int | None]:
    """The least birth time, and a package folder that is older than this install."""
    if folder.btime_ns is None:
        return None, None, None
    best = (folder.btime_ns, distribution.directory)
    survived: str | None = None
    survived_ns: int | None = None
    for name in _top_folders(distribution):
        path = f"{distribution.location}/{name}"
        if owners[path] > 1:
            continue
        stat = host.find(path)
        if stat is None or not stat.is_directory or stat.btime_ns is None:
            continue
        if stat.btime_ns < folder.btime_ns - SURVIVED_NS:
            survived, survived_ns = path, stat.btime_ns
        else:
            best = min(best, (stat.btime_ns, path))
    evidence.append(_fact(best[1], "btime", best[0]))
    return best[0], survived, survived_ns


def _payload(host: Host, distribution: Distribution) -> Payload | None:
    """One payload file: `version.py` where there is one, since a person would look there first."""
    record = distribution.record
    if record is None:
        return None
    own = posixpath.basename(distribution.directory) + "/"
    names = [row.path for row in record.rows if row.hash and not row.path.startswith((own, "../", "/"))]
    if not names:
        return None
    name = min(names, key=lambda path: (not path.endswith("/version.py"), path.count("/"), path))
    path = f"{distribution.location}/{name}"
    stat = host.find(path)
    if stat is None:
        return None
    link: LinkMode = "symlink" if stat.is_link else ("hardlink" if stat.nlink > 1 else "own inode")
    return Payload(
        path=path, link=link, nlink=stat.nlink, inode=stat.inode, mtime_ns=stat.mtime_ns, ctime_ns=stat.ctime_ns
    )


def _full_version(host: Host, distribution: Distribution) -> str | None:
    """torch, torchvision and torchaudio carry a `version.py` that names the build; METADATA from PyPI does not."""
    top = distribution.name.replace("-", "_")
    if top in VERSION_FILES:
        try:
            return read_version_file(host, f"{distribution.location}/{top}/version.py").version
        except (OSError, UnreadableVersion):
            return distribution.version  # METADATA's word, as for every other package
    return distribution.version


def _fact(path: str, field: str, nanoseconds: int, witness: str = "dist-info") -> Evidence:
    return Evidence(witness=witness, path=path, field=field, value=clock.iso_ns(nanoseconds))


def _weak_witness(payload: Payload) -> Evidence:
    reading = {
        "hardlink": f"{payload.nlink} hard links: when the wheel was unpacked, not when it was installed",
        "symlink": "a link into the cache",
        "own inode": "a file of its own",
    }[payload.link]
    value = f"{clock.iso_ns(payload.mtime_ns)} ({reading}; not used as a date)"
    return Evidence(witness="payload", path=payload.path, field="mtime", value=value)
