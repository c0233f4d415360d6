"""The distributions on an environment's path: their metadata, which of two is picked, and what is wrong with them."""

from __future__ import annotations

import codecs
import errno
import io
import os
import posixpath
import re
import time
import urllib.parse
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.metadata import (
    MAX_METADATA,
    DirectUrl,
    canonical,
    header_of,
    parse_direct_url,
    parse_headers,
    parse_requires_txt,
)
from envguard.acquire.packages.pip_stash import Aside, read_aside
from envguard.acquire.packages.record_file import RecordFile, parse_record
from envguard.acquire.packages.shadowing import find_shadowed
from envguard.acquire.packages.sys_path import PthLine
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, reason
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem, Shadowed
from envguard.state.digests import is_racy

# They keep their own lists of files, and a RECORD is no part of them.
MANAGERS = frozenset({"debian", "dpkg", "apt", "rpm", "dnf", "pacman", "portage", "nix", "guix", "conda", "apk"})
MAX_EGG = 256 << 20
_SYSTEM_SITE = re.compile(r"/usr/(?:lib|share)/python3[^/]*/(?:dist|site)-packages")
_DEBIAN_FOLDER = "/lib/python3/dist-packages"


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

    def lists(self, path: str) -> bool:
        """Whether RECORD lists a path, as it is written there; few RECORDs are parsed for it."""
        if "record" not in self.__dict__ and '"' not in path:
            try:
                if os.fsencode(path) not in self.host.read(f"{self.directory}/RECORD"):
                    return False
            except OSError:
                return False
        return self.record is not None and any(row.path == path for row in self.record.rows)

    @property
    def is_egg(self) -> bool:
        """An egg-info: setuptools' older form, without a RECORD."""
        return not self.directory.endswith(".dist-info")


@dataclass(frozen=True)
class Distributions:
    """`found` is in `sys.path` order, and in one folder in the order in which `importlib.metadata` meets them."""

    found: tuple[Distribution, ...]
    shadowed: tuple[Shadowed, ...] = ()
    """Modules that another one on the path hides; distributions that lose are told by `duplicates`."""
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    aside: tuple[Aside, ...] = ()
    """Versions that pip put aside for an install or a removal that never ended."""

    def of(self, name: str) -> Distribution | None:
        """The distribution of a normalised name that `importlib.metadata` names."""
        return next((found for found in self.found if found.name == name), None)

    def beside(self, aside: Aside) -> tuple[Distribution, ...]:
        """What is installed now of a package of which pip put a version aside."""
        return tuple(each for each in self.found if (each.location, each.name) == (aside.location, aside.name))

    def duplicates(self) -> dict[str, tuple[Distribution, ...]]:
        """Names that more than one distribution claims, each with its claimants in order."""
        by_name: dict[str, list[Distribution]] = {}
        for found in self.found:
            by_name.setdefault(found.name, []).append(found)
        return {name: tuple(claimants) for name, claimants in by_name.items() if len(claimants) > 1}


def managed_by(dist: Distribution) -> str | None:
    """Who other than a Python installer put this here, and verifies it by means of its own; None where nobody did."""
    installer = (dist.installer or "").lower()
    if installer in MANAGERS:
        return f"managed by {installer} (INSTALLER says so)"
    if installer not in ("pip", "uv") and _SYSTEM_SITE.fullmatch(dist.location):
        return f"managed by the distribution ({dist.location})"
    return None


Parsed = dict[str, tuple[bytes, Distribution]]
"""Directory → the stats of its files and what they said. Of one host, and for as long as a process lives."""
_READ = ("METADATA", "INSTALLER", "direct_url.json")


def read_distributions(host: Host, env: Environment, parsed: Parsed | None = None) -> Distributions:
    """Every distribution on the path of the environment; what is broken is a problem and never a shorter list.

    What `parsed` holds from an earlier call is not read again where the files are the same by stat: parsing the
    metadata of two hundred packages takes most of the time that a stamp may cost.
    """
    notes = Notes()
    reader = _Reader(host, env, notes, parsed)
    listings: dict[str, tuple[tuple[str, str], ...]] = {}
    seen: set[str] = set()
    for entry in env.sys_path:
        real = host.realpath(entry.path)
        if real in seen:
            continue  # lib64 beside lib: one folder under two names
        seen.add(real)
        try:
            listings[entry.path] = host.listing(entry.path)
        except NotADirectoryError:
            if entry.path.endswith(".egg"):
                reader.read_zipped_egg(entry.path)
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            notes.unseen(f"packages in {entry.path}", error, "site")
            continue
        reader.read_folder(entry.path, listings[entry.path])
    shadowed = find_shadowed(host, env, listings)
    found = tuple(each for each in reader.found if not _is_build_remains(each, reader.found))
    return Distributions(found, shadowed, tuple(notes.problems), tuple(notes.unknown), tuple(reader.aside))


class _Reader:
    def __init__(self, host: Host, env: Environment, notes: Notes, parsed: Parsed | None) -> None:
        self.host = host
        self.notes = notes
        self.parsed = parsed
        self.found: list[Distribution] = []
        self.aside: list[Aside] = []
        # Folders that an editable install put on the path: what lies there is the source itself.
        self.sources = {line.path for line in env.pth if line.kind == "path" and _leads_to_source(line)}

    def read_folder(self, location: str, names: tuple[tuple[str, str], ...]) -> None:
        """Takes every dist-info and egg-info of one folder, in the order in which importlib would."""
        here: list[Distribution] = []
        self.aside += read_aside(self.host, location, (name for name, _ in names))
        for name, kind in names:
            if name.startswith("~"):
                continue  # pip's own, and no package
            if name.endswith(".dist-info"):
                if kind in ("file", "other"):
                    says = "a file where the folder of its metadata belongs: it is listed with no version"
                    self.notes.problem(
                        "metadata-broken", canonical(name.partition("-")[0]), says, f"{location}/{name}"
                    )
                here.append(self.dist_info(location, name))
            elif name.endswith(".egg-info") or (name == "EGG-INFO" and location.endswith(".egg")):
                here.append(self.egg_info(location, name, kind))
        self.found += self._in_order(location, here)

    def read_zipped_egg(self, egg: str) -> None:
        """Takes the distribution that a zip on the path is, as easy_install left one."""
        import zipfile  # here, since few environments have such an egg and a stamp pays for every import
        import zlib

        raw = posixpath.basename(egg).partition("-")[0]
        try:
            data = self.host.read(egg, MAX_EGG + 1)
            if len(data) > MAX_EGG:
                raise OSError(errno.EFBIG, "it is too large an egg to be read", egg)
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = set(archive.namelist())
                texts = [
                    archive.read(f"EGG-INFO/{name}") if f"EGG-INFO/{name}" in names else b""
                    for name in ("PKG-INFO", "requires.txt")
                ]
        except OSError as error:
            self.notes.unseen(f"metadata of {canonical(raw)}", error)
            texts = [b"", b""]
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
            self.notes.problem("metadata-broken", canonical(raw), f"the egg is no sound zip: {error}", egg)
            texts = [b"", b""]
        self.found.append(self._egg(egg, "EGG-INFO", raw, _text(texts[0]), lambda: texts[1]))

    def _in_order(self, location: str, here: list[Distribution]) -> list[Distribution]:
        names = [each.name for each in here]
        if len(set(names)) == len(names):
            return here
        try:
            order = {name: number for number, name in enumerate(self.host.order(location))}
        except OSError as error:
            doubled = sorted({name for name in names if names.count(name) > 1})
            self.notes.unseen(f"which metadata of {', '.join(doubled)} importlib picks", error)
            return here
        return sorted(here, key=lambda each: order.get(posixpath.basename(each.directory), len(order)))

    def dist_info(self, location: str, folder: str) -> Distribution:
        if self.parsed is None:
            return self._parse(location, folder)
        directory = f"{location}/{folder}"
        looked_at = time.time_ns()
        stats = self.host.stats(directory, _READ)
        known = self.parsed.get(directory)
        if known is not None and known[0] == stats.tobytes():
            return replace(known[1], host=self.host)  # without the RECORD that the older one may have read
        said = len(self.notes.problems) + len(self.notes.unknown)
        made = self._parse(location, folder)
        # What there was something to say of is read again, so that it is said again.
        if said == len(self.notes.problems) + len(self.notes.unknown) and not _moving(stats, looked_at):
            self.parsed[directory] = (stats.tobytes(), made)
        return made

    def _parse(self, location: str, folder: str) -> Distribution:
        directory = f"{location}/{folder}"
        made = distribution_of(
            self.host,
            location,
            folder,
            self._metadata(directory, "METADATA", folder.partition("-")[0]),
            self._optional(directory, "INSTALLER"),
            self._direct_url(directory, folder.partition("-")[0]),
        )
        in_name = folder.removesuffix(".dist-info").partition("-")[2]
        if in_name and made.version is not None and not _same_version(in_name, made.version):
            says = f"METADATA says {made.version}, the folder {in_name}: two installs are mixed"
            self.notes.problem("metadata-mismatch", made.name, says, directory)
        return made

    def egg_info(self, location: str, name: str, kind: str) -> Distribution:
        directory = f"{location}/{name}"
        stem = posixpath.basename(location) if name == "EGG-INFO" else name
        raw = stem.partition("-")[0].removesuffix(".egg-info").removesuffix(".egg")
        if kind == "file":
            text = _text(self._metadata(*posixpath.split(directory), raw))
            return self._egg(location, name, raw, text, lambda: b"")
        text = _text(self._metadata(directory, "PKG-INFO", raw))
        return self._egg(location, name, raw, text, lambda: self._optional(directory, "requires.txt"))

    def _egg(self, location: str, name: str, raw: str, text: str, required: Callable[[], bytes]) -> Distribution:
        """An egg-info or EGG-INFO of which PKG-INFO holds `text`; `raw` is the name that the file bears."""
        directory = f"{location}/{name}"
        stem = posixpath.basename(location) if name == "EGG-INFO" else name
        rest = stem.removesuffix(".egg-info").removesuffix(".egg").partition("-")[2]
        headers = parse_headers(text)
        requires = tuple(headers.get("requires-dist", ())) or parse_requires_txt(_text(required()))
        proper = next(iter(headers.get("name", ())), raw)
        return Distribution(
            name=canonical(proper),
            raw_name=proper,
            version=next(iter(headers.get("version", ())), rest.partition("-py")[0] or None),
            directory=directory,
            location=location,
            installer="debian" if location.endswith(_DEBIAN_FOLDER) else None,
            requires=requires,
            requires_python=next(iter(headers.get("requires-python", ())), None),
            editable=location if location in self.sources and not location.endswith(".egg") else None,
            host=self.host,
        )

    def _metadata(self, directory: str, name: str, package: str) -> bytes:
        path = f"{directory}/{name}"
        try:
            data = self.host.read(path, MAX_METADATA)
        except NotADirectoryError:
            return b""  # the folder is a file, which was told
        except FileNotFoundError:
            self.notes.problem("metadata-missing", canonical(package), f"there is no {name}", path)
            return b""
        except OSError as error:
            self.notes.unseen(f"metadata of {canonical(package)}", f"{path}: {reason(error)}")
            return b""
        if not data.strip(b"\0 \r\n\t"):
            says = f"{name} is empty: truncated by a cleaner or a full disk" if not data else f"{name} holds no text"
            self.notes.problem("metadata-empty", canonical(package), says, path)
            return b""
        cut = len(data) == MAX_METADATA
        if cut and len(header_of(data)) == MAX_METADATA:
            self.notes.unseen(
                f"metadata of {canonical(package)}", f"{path}: its header is longer than any that is sound"
            )
        try:
            codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
        except UnicodeDecodeError as error:
            says = f"{name} is not UTF-8 (byte {error.start}); its other fields are read"
            self.notes.problem("metadata-undecodable", canonical(package), says, path)
        return data

    def _optional(self, directory: str, name: str) -> bytes:
        try:
            return self.host.read(f"{directory}/{name}", 1 << 20)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            self.notes.unseen(f"{directory}/{name}", error)
            return b""

    def _direct_url(self, directory: str, package: str) -> DirectUrl | None:
        data = self._optional(directory, "direct_url.json")
        if not data:
            return None
        try:
            return parse_direct_url(data)
        except (msgspec.MsgspecError, ValueError) as error:
            says = f"direct_url.json cannot be read: {error}"
            self.notes.problem("direct-url-broken", canonical(package), says, f"{directory}/direct_url.json")
            return None


def _moving(stats: array[int], looked_at_ns: int) -> bool:
    """Whether one of the files changed so lately that its stat cannot vouch for it."""
    keys = [(stats[at], stats[at + 1], stats[at + 2], stats[at + 3]) for at in range(0, len(stats), 4)]
    return any(key[0] >= 0 and is_racy(key, looked_at_ns) for key in keys)


def distribution_of(
    host: Host, location: str, folder: str, metadata: bytes, installer: bytes, url: DirectUrl | None = None
) -> Distribution:
    """A dist-info or egg-info from the contents of its files, which need no longer be there."""
    stem = posixpath.basename(location) if folder == "EGG-INFO" else folder
    raw, _, rest = stem.removesuffix(".dist-info").removesuffix(".egg-info").removesuffix(".egg").partition("-")
    version = rest if folder.endswith(".dist-info") else rest.partition("-py")[0]
    headers = parse_headers(_text(header_of(metadata)))
    name = next(iter(headers.get("name", ())), raw)
    by = _text(installer).strip().lower() or None
    if by is None and location.endswith(_DEBIAN_FOLDER):
        by = "debian"
    return Distribution(
        name=canonical(name),
        raw_name=name,
        version=next(iter(headers.get("version", ())), version or None),
        directory=f"{location}/{folder}",
        location=location,
        installer=by,
        requires=tuple(headers.get("requires-dist", ())),
        requires_python=next(iter(headers.get("requires-python", ())), None),
        direct_url=url,
        editable=path_of_url(url.url) if url is not None and url.editable else None,
        host=host,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def path_of_url(url: str) -> str:
    """The folder of a `file://` URL."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path, errors="surrogateescape") or url


def _is_build_remains(egg: Distribution, found: list[Distribution]) -> bool:
    """Whether an egg-info is what setuptools left in the source tree when it built the editable install of that
    tree: no second install. One that importlib meets first, and that tells another version, is what it names."""
    if not egg.is_egg or egg.editable is None:
        return False
    for each in found:
        if each.name == egg.name and not each.is_egg and each.editable is not None:
            inside = f"{egg.location}/".startswith(f"{each.editable.rstrip('/')}/")
            return inside and (each.version == egg.version or found.index(each) < found.index(egg))
    return False


def _leads_to_source(line: PthLine) -> bool:
    """Whether an editable install put a path there: setuptools, hatch and maturin under a name of theirs, poetry,
    pdm and flit under the package's."""
    name = posixpath.basename(line.file)
    if name.startswith(("__editable__", "_")) or name == "easy-install.pth":
        return True
    return line.leaves and not (line.path or "").endswith(("/site-packages", "/dist-packages"))


def _same_version(a: str, b: str) -> bool:
    """Wheel folders escape `-` and `!` in versions, and some builders normalise there and not in METADATA."""

    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]+", ".", text.lower().lstrip("v"))

    if a == b or plain(a) == plain(b):
        return True
    from packaging.version import InvalidVersion, Version  # only where two spellings must be compared

    try:
        return Version(a.replace("_", "-")) == Version(b)
    except InvalidVersion:
        return False
