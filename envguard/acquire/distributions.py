"""The distributions on an environment's path: their metadata, which of two is picked, and what is wrong with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from envguard.acquire.environment import Environment
from envguard.acquire.host import Host
from envguard.acquire.record_file import RecordFile, parse_record
from envguard.acquire.section import Notes
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem, Shadowed


@dataclass(frozen=True)
class DirectUrl:
    """direct_url.json: where an install that came from no index came from; user info is stripped."""

    url: str
    editable: bool = False
    vcs: str | None = None
    commit: str | None = None
    requested_revision: str | None = None
    archive_hash: str | None = None


@dataclass(frozen=True)
class Distribution:
    """One dist-info or egg-info. `directory` is its path, `location` the folder on `sys.path` that holds it."""

    name: str
    """Normalised (PEP 503)."""
    raw_name: str
    version: str | None
    directory: str
    location: str
    installer: str | None = None
    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    direct_url: DirectUrl | None = None
    editable: str | None = None
    """Source path of an editable install."""
    host: Host = field(kw_only=True, repr=False, compare=False)

    @cached_property
    def record(self) -> RecordFile | None:
        """The parsed RECORD, read when first asked for; None where there is none or it cannot be read."""
        try:
            return parse_record(self.host.read(f"{self.directory}/RECORD"))
        except OSError:
            return None


@dataclass(frozen=True)
class Distributions:
    """`found` is in `sys.path` order: the first of a name is the one that import picks."""

    found: tuple[Distribution, ...]
    shadowed: tuple[Shadowed, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def of(self, name: str) -> Distribution | None:
        """The distribution of a normalised name that import picks."""
        return next((found for found in self.found if found.name == name), None)


def canonical(name: str) -> str:
    """The normalised name of PEP 503, as `packaging.utils.canonicalize_name` gives it.

    Written out, since that module costs a training process more to import than all the rest of a stamp.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def read_distributions(host: Host, env: Environment) -> Distributions:
    """Every distribution on the path of the environment."""
    notes = Notes()
    found: list[Distribution] = []
    for entry in env.sys_path:
        try:
            names = host.listing(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen(f"packages in {entry.path}", error)
            continue
        for name, kind in names:
            if name.endswith(".dist-info") and kind == "directory":
                found.append(_read(host, entry.path, name))
    return Distributions(tuple(found), (), tuple(notes.problems), tuple(notes.unknown))


def _read(host: Host, location: str, folder: str) -> Distribution:
    directory = f"{location}/{folder}"
    return distribution_of(
        host, location, folder, _bytes(host, f"{directory}/METADATA"), _bytes(host, f"{directory}/INSTALLER")
    )


def distribution_of(host: Host, location: str, folder: str, metadata: bytes, installer: bytes) -> Distribution:
    """A distribution from the contents of its files, which need no longer be there."""
    raw, _, version = folder.removesuffix(".dist-info").partition("-")
    headers = parse_headers(metadata.decode("utf-8", "surrogateescape"))
    name = next(iter(headers.get("name", ())), raw)
    return Distribution(
        name=canonical(name),
        raw_name=name,
        version=next(iter(headers.get("version", ())), version or None),
        directory=f"{location}/{folder}",
        location=location,
        installer=installer.decode("utf-8", "surrogateescape").strip() or None,
        requires=tuple(headers.get("requires-dist", ())),
        requires_python=next(iter(headers.get("requires-python", ())), None),
        host=host,
    )


def _bytes(host: Host, path: str) -> bytes:
    try:
        return host.read(path)
    except OSError:
        return b""


def parse_headers(text: str) -> dict[str, list[str]]:
    """The header fields of METADATA or PKG-INFO, by name in lower case, up to the first blank line."""
    headers: dict[str, list[str]] = {}
    last: list[str] | None = None
    for line in text.splitlines():
        if not line.strip():
            break
        if line[0] in " \t":
            if last:
                last[-1] = f"{last[-1]}\n{line.strip()}"
            continue
        name, colon, value = line.partition(":")
        if colon:
            last = headers.setdefault(name.strip().lower(), [])
            last.append(value.strip())
    return headers
