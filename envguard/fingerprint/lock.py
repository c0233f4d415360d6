"""Lock files as references: pylock.toml, uv.lock, requirements.txt. Pure: bytes in, locked packages out.

A lock speaks of packages alone, and of builds only through the hashes of wheels.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from packaging.markers import InvalidMarker, Marker
from packaging.pylock import (
    Package,
    Pylock,
    PylockUnsupportedVersionError,
    PylockValidationError,
    is_valid_pylock_path,
)
from packaging.utils import canonicalize_name

from envguard.acquire.seam.address import Address
from envguard.acquire.seam.collector.redaction import redact
from envguard.errors import InputError
from envguard.fingerprint.uv_choices import AskedOfUv, Choice, choices, encoded, holds

LockKind = Literal["pylock", "uv.lock", "requirements"]


@dataclass(frozen=True)
class Locked:
    """One package that a lock names. `version` stands as written; None for a source tree without one.

    `marker` is the condition under which it belongs to the environment, `required` False where only an extra or a
    dependency group brings it in. `sha256` are those of its wheels (hex), `urls` where they came from.
    """

    name: str
    version: str | None
    sha256: tuple[str, ...] = ()
    urls: tuple[Address, ...] = ()
    index: Address | None = None
    files: tuple[str, ...] = ()
    """Wheels that it names by a path, as it stands: relative to the lock's own folder, or absolute."""
    editable: str | None = None
    directory: str | None = None
    """The source folder that it is built from, where it is no editable install; as it stands, as `files`."""
    commit: str | None = None
    marker: str | None = None
    required: bool = True

    def applies(self, environment: Mapping[str, str]) -> bool:
        """Whether its marker holds; one that cannot be evaluated is taken to hold."""
        if self.marker is None:
            return True
        try:
            return Marker(self.marker).evaluate(environment)
        except (InvalidMarker, ValueError, KeyError):
            return True


Installed = Mapping[str, Sequence[str]]
"""Package → its version as METADATA has it and, where that is more, with the local part of its files."""


@dataclass(frozen=True)
class Several:
    """A package of which a lock has several entries, none of which is known to be meant."""

    name: str
    versions: tuple[str, ...]

    @property
    def why(self) -> str:
        return f"the lock has {' and '.join(self.versions)}, by extra or group: which was synced is not known"


@dataclass(frozen=True)
class Selection:
    """What of a lock belongs to one environment, each name once; and what could not be decided."""

    packages: tuple[Locked, ...]
    several: tuple[Several, ...] = ()


@dataclass(frozen=True)
class Lock:
    """What a lock file names; `notes` tell what in it could not be used."""

    kind: LockKind
    path: str
    packages: tuple[Locked, ...]
    notes: tuple[str, ...] = ()
    edges: Mapping[int, tuple[tuple[int, str | None], ...]] = field(default_factory=dict)
    """uv.lock: package index → (index of what it depends on, marker of that edge)."""
    roots: tuple[int, ...] = ()
    offered: Mapping[str, tuple[tuple[int, str | None], ...]] = field(default_factory=dict)
    """uv.lock: extra or group, as its markers name it → what it brings in."""
    conflicts: tuple[Choice, ...] = ()
    asked: Choice = frozenset()
    """Extras and groups that are known to be asked for."""

    def asking(self, words: AskedOfUv) -> Lock:
        """The lock, with what a command line of uv asks of it. What is in no lock of this project is left out."""
        names = {words.package} if words.package is not None else {self.packages[root].name for root in self.roots}
        left_out = {encoded(kind, package, name) for kind, name in words.left_out for package in names}
        named = {encoded(kind, package, name) for kind, name in words.named if name is not None for package in names}
        for kind in {kind for kind, name in words.named if name is None}:
            named |= {
                each for each in self.offered for package in names if each.startswith(encoded(kind, package, ""))
            }
        return replace(self, asked=frozenset((named & self.offered.keys()) - left_out))

    def select(self, environment: Mapping[str, str], installed: Installed) -> Selection:
        """The packages for one interpreter and platform, without the workspace itself.

        `installed` are the versions that the environment has, by name. Which extras and groups were synced stands in
        no file, beyond those in `asked`: what others alone bring in belongs to the lock where it is installed. Of
        several entries of one package (conflicting extras, groups, sources) the one that is installed was synced;
        where none is, that is not known.
        """
        chosen = self._reached(environment, installed) if self.kind == "uv.lock" else enumerate(self.packages)
        by_name: dict[str, list[Locked]] = {}
        for index, item in chosen:
            if index not in self.roots and item.applies(environment):
                by_name.setdefault(item.name, []).append(item)
        found: list[Locked] = []
        several: list[Several] = []
        for name, items in by_name.items():
            required = [item for item in items if item.required]
            if required or name in installed:
                fitting = _fitting(required or items, installed.get(name, ()))
                found += [fitting] if fitting is not None else []
                if fitting is None:
                    several.append(Several(name, tuple(sorted({item.version or "?" for item in required or items}))))
        return Selection(tuple(found), tuple(several))

    def _reached(self, environment: Mapping[str, str], installed: Installed) -> Iterator[tuple[int, Locked]]:
        """uv.lock holds every platform and every extra: what is required is what the roots lead to here, under the
        choices that fit best to what is installed."""
        found: dict[frozenset[int], int] = {}
        for choice in choices(self.conflicts, self.asked):
            reached = frozenset(self._reach(environment, choice))
            found[reached] = sum(self.packages[index].version not in installed.get(self.packages[index].name, ())
                                 for index in reached.difference(self.roots))  # fmt: skip
        fewest = min(found.values())
        best = [reached for reached, departs in found.items() if departs == fewest]
        # A name that every choice requires is required, whichever of its entries was meant.
        names = [{self.packages[index].name for index in reached} for reached in best]
        always = names[0].intersection(*names[1:])
        required = {index for reached in best for index in reached if self.packages[index].name in always}
        for index, item in sorted(enumerate(self.packages), key=lambda pair: pair[0] not in required):
            if index in required or not self.roots:
                yield index, item
            else:
                yield index, replace(item, required=False)

    def _reach(self, environment: Mapping[str, str], choice: Choice) -> set[int]:
        reached, stack = set(self.roots), [edge for root in self.roots for edge in self.edges.get(root, ())]
        stack += [edge for name in choice for edge in self.offered.get(name, ())]
        while stack:
            target, marker = stack.pop()
            if target not in reached and holds(marker, environment, choice):
                reached.add(target)
                stack += self.edges.get(target, ())
        return reached


def _fitting(items: Sequence[Locked], installed: Sequence[str]) -> Locked | None:
    """The entry that is meant: the only one, else the installed one; None where that decides nothing."""
    versions = {item.version for item in items}
    if len(versions) > 1:
        exact = [item for item in items if item.version in installed]
        public = [item for item in items if item.version in {each.partition("+")[0] for each in installed}]
        items = exact or public
    if len({item.version for item in items}) != 1:
        return None
    # One version of two sources: whichever it was, the hashes of both are those of the lock.
    return replace(
        items[0],
        sha256=tuple(dict.fromkeys(digest for item in items for digest in item.sha256)),
        urls=tuple(dict.fromkeys(url for item in items for url in item.urls)),
        files=tuple(dict.fromkeys(file for item in items for file in item.files)),
    )


def lock_kind(name: str) -> LockKind | None:
    """What kind of lock a file name promises; None for one that promises none."""
    base = posixpath.basename(name)
    if base == "uv.lock":
        return "uv.lock"
    if is_valid_pylock_path(Path(base)) or re.fullmatch(r"pylock\..*toml", base):
        return "pylock"
    return "requirements" if re.fullmatch(r".*\.txt|.*requirements.*\.in", base) else None


def parse_lock(path: str, data: bytes) -> Lock:
    """Reads a lock by its name. Raises `InputError`."""
    kind = lock_kind(path)
    try:
        text = data.decode("utf-8-sig")
        if kind == "requirements":
            return _requirements(path, text)
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as a lock file: {error}",
            "pylock.toml, uv.lock and requirements.txt are read, in UTF-8",
        ) from error
    return _uv_lock(path, table) if kind == "uv.lock" else _pylock(path, table)


def _pylock(path: str, table: dict[str, Any]) -> Lock:
    try:
        lock = Pylock.from_dict(table)
    except (PylockValidationError, PylockUnsupportedVersionError) as error:
        raise InputError(f"{path} is no valid pylock: {error}", "PEP 751 says what one holds") from error
    return Lock("pylock", path, tuple(_pylock_entry(package) for package in lock.packages))


def _pylock_entry(package: Package) -> Locked:
    wheels = package.wheels or ()
    sha256 = [wheel.hashes["sha256"] for wheel in wheels if "sha256" in wheel.hashes]
    urls = [wheel.url for wheel in wheels if wheel.url]
    files = [wheel.path for wheel in wheels if wheel.path]
    if package.archive is not None:
        sha256 += [package.archive.hashes["sha256"]] if "sha256" in package.archive.hashes else []
        urls += [package.archive.url] if package.archive.url else []
    directory = package.directory
    return Locked(
        name=str(package.name),
        version=str(package.version) if package.version is not None else None,
        sha256=tuple(sha256),
        urls=tuple(map(Address, urls)),
        files=tuple(files),
        index=Address(package.index) if package.index else None,
        editable=directory.path if directory is not None and directory.editable else None,
        directory=directory.path if directory is not None and not directory.editable else None,
        commit=package.vcs.commit_id if package.vcs is not None else None,
        marker=str(package.marker) if package.marker is not None else None,
        required=not (
            package.marker is not None and re.search(r"\b(extras|dependency_groups)\b", str(package.marker))
        ),
    )


def _uv_lock(path: str, table: dict[str, Any]) -> Lock:
    raw = [entry for entry in _tables(table.get("package")) if isinstance(entry.get("name"), str)]
    if not isinstance(table.get("version"), int):
        raise InputError(f"{path} is no uv.lock: it has no version", "`uv lock` writes one")
    packages = tuple(_uv_entry(entry) for entry in raw)
    roots = tuple(index for index, entry in enumerate(raw) if _is_root(entry))
    edges = {index: tuple(_edges(raw, entry)) for index, entry in enumerate(raw)}
    offered = dict(_offered(raw, roots))
    conflicts = tuple(frozenset(_conflict(item)) for item in _lists(table.get("conflicts")))
    return Lock("uv.lock", path, packages, (), edges, roots, offered, tuple(each for each in conflicts if each))


def _lists(value: object) -> list[list[Any]]:
    return [item for item in value if isinstance(item, list)] if isinstance(value, list) else []


def _conflict(items: list[Any]) -> Iterator[str]:
    for item in _tables(items):
        for kind in ("extra", "group"):
            if isinstance(item.get("package"), str) and isinstance(item.get(kind), str):
                yield encoded(kind, item["package"], item[kind])


def _offered(
    raw: Sequence[Mapping[str, Any]], roots: Sequence[int]
) -> Iterator[tuple[str, tuple[tuple[int, str | None], ...]]]:
    """Extras and groups of the project and of the members of its workspace."""
    for index, entry in enumerate(raw):
        source = entry.get("source")
        if index in roots or (isinstance(source, dict) and source.keys() & {"editable", "virtual", "directory"}):
            for kind, key in (("extra", "optional-dependencies"), ("group", "dev-dependencies")):
                for name, wanted in table.items() if isinstance(table := entry.get(key), dict) else ():
                    yield encoded(kind, entry["name"], name), tuple(_edges(raw, {"dependencies": wanted}))


def _tables(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_root(entry: Mapping[str, Any]) -> bool:
    source = entry.get("source")
    return isinstance(source, dict) and ("virtual" in source or source.get("editable") == ".")


def _uv_entry(entry: Mapping[str, Any]) -> Locked:
    found = entry.get("source")
    source: dict[str, str] = found if isinstance(found, dict) else {}
    wheels = _tables(entry.get("wheels"))
    hashes = [str(wheel.get("hash", "")) for wheel in wheels]
    git = source.get("git", "")
    markers = entry.get("resolution-markers")
    return Locked(
        name=str(canonicalize_name(entry["name"])),
        version=entry.get("version"),
        sha256=tuple(each.removeprefix("sha256:") for each in hashes if each.startswith("sha256:")),
        urls=tuple(Address(str(wheel["url"])) for wheel in wheels if "url" in wheel),
        index=Address(source["registry"]) if "registry" in source else None,
        editable=source.get("editable"),
        directory=source.get("directory"),
        # `…?rev=3f9c1a2#<full hash>`: the part behind the # is what is installed.
        commit=git.rpartition("#")[2] or None if git else None,
        marker=" or ".join(f"({marker})" for marker in markers) if isinstance(markers, list) and markers else None,
    )


def _edges(raw: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> Iterator[tuple[int, str | None]]:
    for wanted in _tables(entry.get("dependencies")):
        for index, candidate in enumerate(raw):
            if candidate["name"] == wanted.get("name") and wanted.get("version") in (None, candidate.get("version")):
                yield index, wanted.get("marker")
                yield from ((extra, marker) for extra, marker in _extras(raw, candidate, wanted.get("extra")))


def _extras(
    raw: Sequence[Mapping[str, Any]], candidate: Mapping[str, Any], extras: object
) -> Iterator[tuple[int, str | None]]:
    """What the extras of a dependency bring in (`{ name = "ray", extra = ["default"] }`)."""
    found = candidate.get("optional-dependencies")
    offered: dict[str, Any] = found if isinstance(found, dict) else {}
    for extra in extras if isinstance(extras, list) else ():
        yield from _edges(raw, {"dependencies": offered.get(extra)})


# `name[extra]==version ; marker --hash=…`; the version as it stands, PEP 440 or not (`4.0.0-unsupported`).
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\]\s*)?={2,3}\s*(?P<version>[^\s;,#*]+)"
    r"\s*(?:;\s*(?P<marker>.*))?"
)
_DIRECT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\]\s*)?@\s*(?P<url>\S+)\s*(?:;\s*(?P<marker>.*))?"
)
_INDEX = re.compile(r"""(?:-i|--(?P<extra>extra-)?index-url)[ =]\s*["']?(?P<url>[^\s"']+)["']?""")
_HASH = re.compile(r"\s--hash[= ](?P<algorithm>\w+):(?P<hex>[0-9a-fA-F]+)")


def _requirements(path: str, text: str) -> Lock:
    found: list[Locked] = []
    notes: list[str] = []
    unpinned = 0
    index: Address | None = None
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not line:
            continue
        item = _requirement(line)
        if item is not None:
            found.append(item)
        elif match := _INDEX.fullmatch(line):
            # `--index-url` replaces the default; an extra one is asked where there is no other.
            index = Address(match["url"]) if match["extra"] is None or index is None else index
        elif line.startswith(("-r", "--requirement", "-c", "--constraint")):
            notes.append(f"`{redact(line)}` was not followed")
        elif not line.startswith("--"):
            unpinned += 1
    if unpinned:
        notes.append(f"{unpinned} line{'s' if unpinned > 1 else ''} without a pin left out")
    if not found:
        raise InputError(f"{path} pins no package", "a lock names versions: `name==1.2.3`")
    return Lock("requirements", path, tuple(replace(item, index=index) for item in found), tuple(notes))


def _requirement(line: str) -> Locked | None:
    """One logical line as a pin; None for an option, an unpinned name, or what is no requirement."""
    hashes = tuple(match["hex"].lower() for match in _HASH.finditer(line) if match["algorithm"].lower() == "sha256")
    body = _HASH.sub("", line).strip()
    if match := re.fullmatch(r"(?:-e|--editable)[ =]\s*(\S+)", body):
        egg = re.search(r"#egg=([A-Za-z0-9._-]+)", match[1])
        source = str(Address(match[1])) if "://" in match[1] else match[1]
        return Locked(str(canonicalize_name(egg[1])), None, editable=source) if egg else None
    if match := _PIN.fullmatch(body):
        name = str(canonicalize_name(match["name"]))
        return Locked(name, match["version"], sha256=hashes, marker=(match["marker"] or "").strip() or None)
    if match := _DIRECT.fullmatch(body):
        return _direct(match, hashes)
    return None


def _direct(match: re.Match[str], hashes: tuple[str, ...]) -> Locked:
    url = match["url"]
    fragment = re.search(r"sha256=([0-9a-f]{64})", url)
    wheel = re.search(r"/[^/]+?-([^-/]+)(?:-\d[^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl(?:#|$)", url)
    commit = re.search(r"@([0-9a-f]{40})(?:#|$)", url) if url.startswith("git+") else None
    return Locked(
        name=str(canonicalize_name(match["name"])),
        version=wheel[1].replace("%2B", "+").replace("%2b", "+") if wheel else None,
        sha256=hashes or ((fragment[1],) if fragment else ()),
        urls=(Address(url),),
        commit=commit[1] if commit else None,
        marker=(match["marker"] or "").strip() or None,
    )
