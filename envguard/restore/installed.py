"""Installed distributions as the wheels that they came from, and those that pip put aside and never took away."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from envguard.acquire.packages.cut_short import never_ended
from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.pip_stash import Aside
from envguard.acquire.packages.record_file import Row, build_identity, normalised, record_hash
from envguard.acquire.packages.unowned import unowned_folders
from envguard.acquire.packages.wheel_tags import parse_wheel
from envguard.acquire.seam.host import Host
from envguard.acquire.section import reason
from envguard.fingerprint.units import some_of
from envguard.model.evidence import Unknown
from envguard.restore.archive import Folder, RecordUnusable, read_rows
from envguard.restore.candidate import Candidate
from envguard.restore.footprint import Incoming
from envguard.restore.point import walk_paths

if TYPE_CHECKING:
    from envguard.restore.plan import Plan

_UV_WRITES = re.compile(r"\.tmp[A-Za-z0-9]{6}")


class Installed(Folder):
    """An installed distribution as the wheel that it came from: without what the installer added, and with its
    scripts, that lie outside site-packages, back where a wheel holds them."""

    def __init__(self, dist: Distribution, dist_info: str | None = None) -> None:
        super().__init__(Path(dist.location))
        self.dist = dist
        self.dist_info = dist_info or posixpath.basename(dist.directory)
        record = dist.record
        if record is None:
            raise RecordUnusable(f"{dist.directory}/RECORD cannot be read")
        self.scripts: dict[str, str] = {}
        self.texts: dict[str, bytes] = {}
        rows = [*normalised(record.rows), *self._scripts(record.rows)]
        own = f"{self.dist_info}/RECORD"
        lines = [f"{_quoted(row.path)},{row.hash},{row.size if row.size is not None else ''}\n" for row in rows]
        self.texts[own] = "".join([*lines, f"{own},,\n"]).encode("utf-8", "surrogateescape")

    def _scripts(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Scripts that the wheel brought; those that the installer made from entry points are left out."""
        path = Path(self.dist.directory) / "entry_points.txt"
        text = path.read_text("utf-8", "replace") if path.is_file() else None
        made = set(Incoming(self.dist.name, self.dist_info, (), text).scripts())
        data = f"{self.dist_info.removesuffix('.dist-info')}.data"
        for row in rows:
            real = posixpath.normpath(f"{self.dist.location}/{row.path}")
            name = posixpath.basename(real)
            if not row.path.startswith("../") or posixpath.basename(posixpath.dirname(real)) != "bin" or name in made:
                continue
            wheel_path = f"{data}/scripts/{name}"
            content = Path(real).read_bytes()
            first, newline, rest = content.partition(b"\n")
            if first.startswith(b"#!") and b"python" in first:
                # An installer writes the environment's interpreter into the line that a wheel leaves open.
                self.texts[wheel_path] = b"#!python" + newline + rest
                yield _row(wheel_path, self.texts[wheel_path])
            else:
                self.scripts[wheel_path] = real
                yield Row(wheel_path, row.hash, row.size)

    def lies(self, path: str) -> str:
        """Where a file of RECORD lies now, below site-packages."""
        return path

    def open(self, path: str) -> IO[bytes]:
        if path in self.texts:
            return io.BytesIO(self.texts[path])
        return Folder(Path("/")).open(self.scripts[path]) if path in self.scripts else super().open(self.lies(path))

    def where(self, path: str) -> str | None:
        if path in self.texts:
            return None
        return self.scripts.get(path) or super().where(self.lies(path))

    def mode(self, path: str) -> int:
        if path in self.texts:
            return 0o644 if path.endswith("/RECORD") else 0o755
        return super().mode(self.scripts.get(path) or self.lies(path))

    def size(self, path: str) -> int:
        return (
            len(self.texts[path]) if path in self.texts else super().size(self.scripts.get(path) or self.lies(path))
        )

    def candidate(self, build: str) -> Candidate:
        """The install as a source. Raises `RecordUnusable` where its WHEEL does not say for what it fits."""
        try:
            tags, wheel_build = parse_wheel((Path(self.dist.directory) / "WHEEL").read_text("utf-8", "replace"))
        except OSError as error:
            raise RecordUnusable(f"{self.dist_info}/WHEEL: {error.strerror or error}") from error
        if not tags:
            raise RecordUnusable(f"{self.dist_info}/WHEEL names no tag")
        return Candidate(
            place="vault",
            name=self.dist.name,
            version=self.dist_info.removesuffix(".dist-info").partition("-")[2],
            build=build,
            path=self.dist.directory,
            dist_info=self.dist_info,
            tags=tags,
            wheel_build=wheel_build,
            bytes=None,
        )


def _row(path: str, data: bytes) -> Row:
    return Row(path, record_hash("sha256", hashlib.sha256(data).digest()), len(data))


def _quoted(path: str) -> str:
    return '"' + path.replace('"', '""') + '"' if "," in path or '"' in path else path


class PutAside(Installed):
    """A version that pip put aside and never took away: each file under its folder's name of now, where pip had come
    so far as to rename that."""

    def __init__(self, aside: Aside, host: Host) -> None:
        super().__init__(distribution(aside, host), aside.was)
        self.aside = aside

    def lies(self, path: str) -> str:
        now = self.aside.now(path)
        return now if os.path.lexists(self.root / now) else path


def distribution(aside: Aside, host: Host) -> Distribution:
    """What was put aside, as the distribution that it was."""
    return Distribution(aside.name, aside.name, aside.version, aside.directory, aside.location, host=host)


def aside_candidates(
    host: Host, distributions: Distributions, names: frozenset[str]
) -> tuple[tuple[Candidate, ...], tuple[Unknown, ...]]:
    """What installs that were cut short left of the versions before, as sources; and what cannot be one, with why."""
    found, unknown = [], []
    for aside in distributions.aside:
        if aside.name not in names or aside.build is None:
            continue
        try:
            source = PutAside(aside, host)
            candidate = source.candidate(aside.build)
        except OSError as error:
            unknown.append(Unknown.refused(aside.directory, f"{error.filename}: {reason(error)}"))
        except RecordUnusable as error:
            unknown.append(Unknown.refused(aside.directory, error))
        else:
            size = sum(row.size or 0 for row in read_rows(source, aside.was))
            found.append(msgspec.structs.replace(candidate, place="put-aside", aside=aside, bytes=size))
    return tuple(found), tuple(unknown)


def half_copied(distributions: Distributions, names: Collection[str]) -> dict[str, list[str]]:
    """Directory of what was put aside → folders that came in its place and belong to no whole install: pip had
    renamed the old ones, so that everything in them is what it copied before it was cut short."""
    found = {}
    for aside in distributions.aside:
        whole = any(not never_ended(dist) for dist in distributions.beside(aside))
        if aside.name in names and not whole:
            found[aside.directory] = [f"{aside.location}/{was}" for _, was in aside.moved]
    return found


def unfinished(distributions: Distributions, names: Collection[str]) -> Iterator[str]:
    """Paths in the environment that an install which was cut short left and that no RECORD lists: what pip copied in
    place of what it had put aside, and the files that uv writes under a name of its own until they are whole."""
    for folders in half_copied(distributions, names).values():
        yield from folders
    for dist in distributions.found:
        if dist.name not in names or dist.is_egg or dist.record is None or not never_ended(dist):
            continue
        for top in {row.path.partition("/")[0] for row in normalised(dist.record.rows) if "/" in row.path}:
            paths = walk_paths(f"{dist.location}/{top}")
            yield from (path for path in paths if _UV_WRITES.fullmatch(posixpath.basename(path)))


def said_of_hidden(env: Environment, distributions: Distributions, plan: Plan) -> Iterator[str]:
    """Wanted packages that are still installed in a folder that comes later on the path, and are only hidden: the way
    back is to take out what hides them."""
    for wanted in (*(step.wanted for step in plan.steps if step.wanted is not None), *plan.absent):
        picked = distributions.of(wanted.name)
        for dist in distributions.found:
            if picked is None or dist.name != wanted.name or dist.location == picked.location or dist.record is None:
                continue
            if wanted.build is None:
                same = dist.version is not None and dist.version == wanted.version
            else:
                same = wanted.build == build_identity(dist.record.rows)
            if same:
                python = shlex.quote(env.executable or env.prefix)
                yield (
                    f"{wanted.name} {wanted.shown or '?'} is still installed in {dist.location} and hidden by "
                    f"{picked.version or 'the one'} in {picked.location}: "
                    f"`uv pip uninstall --python {python} {wanted.name}` takes out what hides it"
                )


def said_of_leftovers(
    host: Host, env: Environment, distributions: Distributions, names: Collection[str]
) -> Iterator[str]:
    """What a restore of `names` takes away of an install that was cut short, and what it leaves. Raises OSError."""
    going = half_copied(distributions, names)
    for aside in distributions.aside:
        if aside.name not in names:
            continue
        folders = [posixpath.basename(path) for path in going.get(aside.directory, ()) if os.path.lexists(path)]
        taken = f"what it had copied into {some_of(folders)} goes; " if folders else ""
        unowned = unowned_folders(host, env, distributions) if folders else ()
        born = [(path, host.stat(path).btime_ns) for path in unowned]
        came = [posixpath.basename(path) for path, at in born if at is None or at >= (aside.moved_ns or at)]
        left = f"{some_of(came)}, which no package lists, may have come with it and stays; " if came else ""
        yield (
            f"{aside.name}: an install or removal was cut short: {taken}{left}what pip put aside stays, and "
            f"`{aside.removal}` takes it away once {aside.name} is whole"
        )
