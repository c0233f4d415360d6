"""Files whose changes matter to a run: lock files, configured data and config, and edits inside site-packages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.packages.contents import hash_as
from envguard.acquire.packages.distributions import Distributions
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.record_file import algorithm_of
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.seam.host import Host, Stat
from envguard.model.evidence import Unknown

LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "requirements.lock",
         "conda-lock.yml", "environment.yml")  # fmt: skip
PARSED = ("uv.lock", "pylock.toml", "requirements.txt", "requirements.lock")
MOST_LOCK = 32 << 20
EDIT_SLACK_NS = 2_000_000_000
MOST_DIGESTS = 400


@dataclass(frozen=True)
class Watched:
    """A file or tree with its newest writing (ns) and size; `files` is 1 for a file."""

    path: str
    newest_ns: int
    newest_path: str
    size: int
    files: int
    copied: bool = False
    """Its newest file was born after its last writing: it lies here as a copy that kept its times."""
    content: bytes | None = None
    """Of a lock file, where it could be read."""


@dataclass(frozen=True)
class Edited:
    """An installed file whose content is not what RECORD says, and was written after its install."""

    package: str
    path: str
    mtime_ns: int
    ctime_ns: int
    shared: int
    """Hard links: above 1 the edit went into the cache, too, and into every environment that shares it."""


def read_locks(host: Host, root: str | None, unknown: list[Unknown]) -> tuple[Watched, ...]:
    """Lock files in the project's root, with their contents."""
    found = []
    for name in LOCKS if root is not None else ():
        stat = host.find(f"{root}/{name}")
        if stat is not None and stat.is_file:
            path = f"{root}/{name}"
            try:
                content = host.read(path, MOST_LOCK) if name in PARSED else None
            except OSError as error:
                unknown.append(Unknown(path, error.strerror or str(error)))
                content = None
            found.append(Watched(path, stat.mtime_ns, path, stat.size, 1, _copied(stat), content))
    return tuple(found)


def read_trees(host: Host, paths: Iterable[str], unknown: list[Unknown]) -> tuple[Watched, ...]:
    """Configured files and trees; one that is not there is named as unknown, since somebody expects it."""
    found = []
    for path in paths:
        try:
            stat = host.stat_target(path)
            if stat.is_directory:
                walked = host.walk(host.realpath(path), births=True, skip=(".git", "__pycache__"))
                files = [(f"{path}/{name}", facts) for name, facts in walked.entries if facts.is_file]
                unknown += [Unknown(f"{path}/{name}", why) for name, why in walked.failed]
            else:
                files = [(path, host.stat(path) if not host.stat(path).is_link else stat)]
        except OSError as error:
            unknown.append(Unknown(path, error.strerror or str(error)))
            continue
        if not files:
            unknown.append(Unknown(path, "it holds no file"))
            continue
        newest, facts = max(files, key=lambda item: item[1].mtime_ns)
        size = sum(facts.size for _, facts in files)
        found.append(Watched(path, facts.mtime_ns, newest, size, len(files), _copied(facts)))
    return tuple(found)


def _copied(stat: Stat) -> bool:
    return stat.btime_ns is not None and stat.btime_ns > stat.mtime_ns + EDIT_SLACK_NS


def read_edits(
    host: Host,
    distributions: Distributions,
    installs: tuple[Install, ...],
    trees: SiteTrees,
    unknown: list[Unknown],
) -> tuple[Edited, ...]:
    """Files of packages that were edited after their install; one that was merely touched has its old content and is
    none, nor is one that was emptied (`envguard.acquire.packages.lost_files`)."""
    ends = {
        install.directory: install for install in installs if install.end_ns is not None and install.doubt is None
    }
    late: list[tuple[str, str, str, Stat]] = []
    for distribution in distributions.found:
        install = ends.get(distribution.directory)
        record = distribution.record
        if install is None or install.end_ns is None or record is None:
            continue
        known = trees.of(distribution.location)
        for row in record.rows:
            stat = known.get(row.path) if algorithm_of(row.hash) is not None else None
            if stat is None or not stat.is_file or (row.size and not stat.size):
                continue
            if stat.mtime_ns > install.end_ns + EDIT_SLACK_NS:
                late.append((distribution.name, f"{distribution.location}/{row.path}", row.hash or "", stat))
    found = []
    for package, path, recorded, stat in late[:MOST_DIGESTS]:
        try:
            if recorded != hash_as(host, path, recorded):
                found.append(Edited(package, path, stat.mtime_ns, stat.ctime_ns, stat.nlink))
        except OSError as error:
            unknown.append(Unknown(path, error.strerror or str(error)))
    if len(late) > MOST_DIGESTS:
        unknown.append(Unknown("edits in site-packages", f"{len(late)} files are newer than their install; "
                               f"{MOST_DIGESTS} were hashed"))  # fmt: skip
    return tuple(found)
