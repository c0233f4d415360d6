"""Files whose changes matter to a run: lock files, configured data and config, and edits inside site-packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envguard.acquire.packages.contents import hash_as
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.owners import overwriters
from envguard.acquire.packages.record_file import RecordFile, algorithm_of, normalised
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.seam.patterns import is_pattern, matching
from envguard.model.evidence import Unknown

LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "requirements.lock",
         "conda-lock.yml", "environment.yml")  # fmt: skip
PARSED = ("uv.lock", "pylock.toml", "requirements.txt", "requirements.lock")
MOST_LOCK = 32 << 20
EDIT_SLACK_NS = 2_000_000_000
MOST_DIGESTS = 400
MOST_SILENT = 50


@dataclass(frozen=True)
class Watched:
    """A file or tree with its newest writing (ns) and size; `files` is 1 for a file, 0 for what is not there."""

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
    since_ns: int | None = None
    """Of a file whose mtime is no later than its install: it was edited between this and its ctime."""
    beside: tuple[str, ...] | None = None
    """Of a RECORD that was written anew after the install: the files of the package that are newer than the install,
    too, and as the new RECORD lists them. None of every other file."""

    @property
    def first_ns(self) -> int:
        """The edit was made no earlier than this."""
        return self.mtime_ns if self.since_ns is None else self.since_ns


def read_locks(host: Host, root: str | None, unknown: list[Unknown]) -> tuple[Watched, ...]:
    """Lock files in the project's root, with their contents."""
    found = []
    for name in LOCKS if root is not None else ():
        path = f"{root}/{name}"
        try:
            if host.find(path) is None:
                continue
            stat = _of_file(host, path, host.stat_target(path))
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
            continue
        try:
            # Read where its content does not count, too: a pipe or a folder of that name is no lock.
            content = host.read(path, MOST_LOCK if name in PARSED else 0)
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
            if not stat.is_file:
                continue
            content = b""
        kept = content if name in PARSED and content else None
        found.append(Watched(path, stat.mtime_ns, path, stat.size, 1, _copied(stat), kept))
    return tuple(found)


def read_trees(host: Host, paths: Iterable[str], unknown: list[Unknown]) -> tuple[Watched, ...]:
    """Configured files and trees (of a shell pattern each that fits), counted as a fingerprint counts them. One that
    is not there is named as unknown, since somebody expects it, and has no files."""
    found = []
    for path in (each for named in paths for each in _expanded(host, named, unknown)):
        try:
            stat = host.stat_target(path)
            files = (
                list(_files_in(host, path, unknown)) if stat.is_directory else [(path, _of_file(host, path, stat))]
            )
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
            if isinstance(error, FileNotFoundError):
                found.append(Watched(path, 0, path, 0, 0))
            continue
        if not files:
            unknown.append(Unknown(path, "it holds no file", "absent"))
            found.append(Watched(path, 0, path, 0, 0))
            continue
        newest, facts = max(files, key=lambda item: item[1].mtime_ns)
        size = sum(facts.size for _, facts in files)
        found.append(Watched(path, facts.mtime_ns, newest, size, len(files), _copied(facts)))
    return tuple(found)


def _expanded(host: Host, path: str, unknown: list[Unknown]) -> list[str]:
    if not is_pattern(path):
        return [path]
    found = matching(host, path, lambda error: unknown.append(Unknown.refused(path, error)))
    if not found:
        unknown.append(Unknown(path, "no path fits the pattern", "absent"))
    return found


def _of_file(host: Host, path: str, target: Stat) -> Stat:
    """With its birth, which only a look at the file itself has; of a link what it leads to."""
    own = host.stat(path)
    return target if own.is_link else own


def _files_in(host: Host, path: str, unknown: list[Unknown]) -> Iterator[tuple[str, Stat]]:
    walked = host.walk(host.realpath(path), births=True)
    unknown += [Unknown.refused(f"{path}/{name}", why) for name, why in walked.failed]
    for name, facts in walked.entries:
        if facts.is_link:
            try:
                facts = host.stat_target(f"{walked.root}/{name}")
            except OSError as error:
                unknown.append(Unknown.refused(f"{path}/{name}", error))
                continue
        if facts.is_file:
            yield f"{path}/{name}", facts


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
    managed = {item.directory for item in distributions.found if managed_by(item) is not None}
    ends = {
        install.directory: install
        for install in installs
        if install.end_ns is not None
        and (install.doubt is None or install.copied_ns is not None)
        # The system's or conda's manager patches files after RECORD was written, and verifies them by its own lists.
        and install.directory not in managed
    }
    late: list[_Late] = []
    near: list[_Late] = []
    for distribution in distributions.found:
        install = ends.get(distribution.directory)
        if install is not None and distribution.record is not None:
            suspects = list(_late(distribution, distribution.record, install, trees.of(distribution.location)))
            late += [item for item in suspects if not item.near]
            near += [item for item in suspects if item.near]
    # A copy of a tree writes files in any order: then many are a little newer than the marks of their install.
    near = near if len(near) <= MOST_DIGESTS else []
    found = []
    sound: dict[str, list[str]] = {}
    for item in (*late[:MOST_DIGESTS], *near):
        stat = item.stat
        try:
            got = hash_as(host, item.path, item.recorded)
            if item.recorded == got:
                sound.setdefault(item.dist.name, []).append(item.path)
                continue
            own = item.path.removeprefix(f"{item.dist.location}/")
            if got is not None and overwriters(host, item.dist, {own: got}, distributions):
                continue  # another package's own file: nobody edited it
            found.append(Edited(item.dist.name, item.path, stat.mtime_ns, stat.ctime_ns, stat.nlink, item.since_ns))
        except OSError as error:
            unknown.append(Unknown.refused(item.path, error))
    if len(late) > MOST_DIGESTS:
        unknown.append(Unknown("edits in site-packages", f"{len(late)} files are newer than their install; "
                               f"{MOST_DIGESTS} were hashed"))  # fmt: skip
    for install in ends.values():
        if _record_anew(install):
            path, beside = f"{install.directory}/RECORD", tuple(sorted(sound.get(install.name, ())))
            written, changed = install.record_written_ns or 0, install.record_changed_ns or 0
            found.append(Edited(install.name, path, written, changed, 1, beside=beside))
    return tuple(found)


def _record_anew(install: Install) -> bool:
    """Whether RECORD was written after the install: what it lists need not be what was installed."""
    written = install.record_written_ns
    return written is not None and install.end_ns is not None and written > install.end_ns + EDIT_SLACK_NS


@dataclass(frozen=True)
class _Late:
    """A file that may have been edited after its install; `since_ns` as in `Edited`."""

    dist: Distribution
    path: str
    recorded: str
    stat: Stat
    since_ns: int | None
    near: bool = False
    """Written so soon after the install that only its content tells."""


def _late(
    distribution: Distribution, record: RecordFile, install: Install, known: Mapping[str, Stat]
) -> Iterator[_Late]:
    """Files that were written after the install. An edit may keep the time (`touch -r`, `cp -p`, `rsync -a`): then
    the size tells, or the ctime. What moves the ctime of all files at once, a chmod or a cache that is cleaned, does
    not make any of them suspect; neither does it where the inode is the cache's, which other environments move."""
    end_ns = install.end_ns or 0
    settled_ns = max(end_ns, install.copied_ns or 0)
    silent: list[_Late] = []
    near: list[_Late] = []
    rows = 0
    for row in normalised(record.rows):
        stat = known.get(row.path) if algorithm_of(row.hash) is not None else None
        if stat is None or not stat.is_file or (row.size and not stat.size):
            continue
        rows += 1
        path, recorded = f"{distribution.location}/{row.path}", row.hash or ""
        if stat.mtime_ns > end_ns + EDIT_SLACK_NS:
            yield _Late(distribution, path, recorded, stat, None)
        elif row.size is not None and stat.size != row.size:
            yield _Late(distribution, path, recorded, stat, end_ns)
        elif stat.nlink == 1 and stat.ctime_ns > settled_ns + EDIT_SLACK_NS:
            silent.append(_Late(distribution, path, recorded, stat, settled_ns))
        elif stat.mtime_ns > end_ns:
            near.append(_Late(distribution, path, recorded, stat, None, near=True))
        elif stat.nlink == 1 and stat.ctime_ns > settled_ns and install.copied_ns is None:
            near.append(_Late(distribution, path, recorded, stat, settled_ns, near=True))
    for found in (silent, near):
        if len(found) <= min(rows - 1, MOST_SILENT):
            yield from found
