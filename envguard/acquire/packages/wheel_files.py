"""Wheel files as a witness: find-links folders, pip's wheel cache, and the wheels inside pip's HTTP cache.

A wheel says of itself what it is: name, version, tags and RECORD are read out of the zip, so that a file without a
useful name (a body of pip's HTTP cache) is known by content like any other.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from packaging.utils import canonicalize_name

from envguard.acquire.packages.record_file import build_identity, parse_record
from envguard.acquire.packages.uv_cache import as_installed
from envguard.acquire.packages.wheel_tags import parse_wheel
from envguard.acquire.seam.host import Host
from envguard.model.evidence import Unknown

# A wheel's RECORD and its central directory are small beside this; whoever sends more is not a wheel.
_MOST_METADATA = 64 << 20


class WheelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One wheel. `bytes` is what it unpacks to; `sha256` is known only where somebody wrote it down."""

    place: Literal["find-links", "pip-cache"]
    path: str
    name: str
    version: str
    dist_info: str
    tags: tuple[str, ...]
    wheel_build: str | None
    build: str
    bytes: int


class NotAWheel(Exception):
    """The file is no zip with one dist-info; what it says is for `Unknown`."""


class HostFile(io.RawIOBase):
    """A file on a host as a stream that can be sought, so that a zip's directory is read without the rest."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self.length = host.stat_target(path).size
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        self.at = max(0, base + offset)
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self.host.read(self.path, len(view), self.at) if self.at < self.length else b""
        view[: len(data)] = data
        self.at += len(data)
        return len(data)


def find_wheels(
    host: Host, folders: Iterable[str], names: frozenset[str]
) -> tuple[tuple[WheelFile, ...], tuple[Unknown, ...]]:
    """Wheels of `names` (normalised) directly in find-links folders."""
    found: list[WheelFile] = []
    unknown: list[Unknown] = []
    for folder in dict.fromkeys(folders):
        try:
            listed = host.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            unknown.append(Unknown(f"find-links folder {folder}", "it is not there", "absent"))
            continue
        except OSError as error:
            unknown.append(Unknown.refused(f"find-links folder {folder}", error))
            continue
        for name, kind in listed:
            if kind in ("file", "link") and name.endswith(".whl") and canonicalize_name(name.split("-")[0]) in names:
                _take(host, f"{folder}/{name}", "find-links", found, unknown)
    return tuple(found), tuple(unknown)


def pip_cache_directory(host: Host) -> str:
    """Where pip keeps its cache unless it was told otherwise."""
    environ = host.environ()
    home = environ.get("HOME") or host.machine().home
    return f"{environ.get('XDG_CACHE_HOME') or f'{home}/.cache'}/pip"


def find_pip_wheels(
    host: Host, cache: str, names: frozenset[str]
) -> tuple[tuple[WheelFile, ...], tuple[Unknown, ...]]:
    """Wheels of `names` in pip's cache: those that it built (`wheels/`), and those that it fetched (`http*/`)."""
    found: list[WheelFile] = []
    unknown: list[Unknown] = []
    for path in _pip_files(host, cache, unknown):
        name = posixpath.basename(path)
        if name.endswith(".whl"):
            if canonicalize_name(name.split("-")[0]) in names:
                _take(host, path, "pip-cache", found, unknown)
        elif _holds_zip(host, path):
            _take(host, path, "pip-cache", found, [])
    return tuple(wheel for wheel in found if wheel.name in names), tuple(unknown)


def _pip_files(host: Host, cache: str, unknown: list[Unknown]) -> Iterator[str]:
    for bucket in ("wheels", "http-v2", "http"):
        root = f"{cache}/{bucket}"
        try:
            walk = host.walk(root)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unknown.append(Unknown.refused(root, error))
            continue
        unknown += [Unknown.refused(f"{root}/{path}", why) for path, why in walk.failed]
        for path, stat in walk.entries:
            if stat.is_file and (path.endswith(".whl") if bucket == "wheels" else stat.size > 200):
                yield f"{root}/{path}"


def _holds_zip(host: Host, path: str) -> bool:
    """Whether a cached answer ends like a zip: pip before 23.3 put a header before the body and a tail after it."""
    try:
        return b"PK\x05\x06" in host.read(path, None, -4096)
    except OSError:
        return False


def _take(
    host: Host,
    path: str,
    place: Literal["find-links", "pip-cache"],
    found: list[WheelFile],
    unknown: list[Unknown],
) -> None:
    try:
        found.append(read_wheel(host, path, place))
    except NotAWheel as error:
        unknown.append(Unknown.refused(path, error))
    except OSError as error:
        unknown.append(Unknown.refused(path, error))


def read_wheel(host: Host, path: str, place: Literal["find-links", "pip-cache"]) -> WheelFile:
    """What a wheel file says of itself. Raises `NotAWheel` and OSError."""
    try:
        with zipfile.ZipFile(io.BufferedReader(HostFile(host, path), 1 << 16)) as archive:
            return _read(archive, path, place)
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise NotAWheel(f"no wheel that can be read: {error}") from error


def _read(archive: zipfile.ZipFile, path: str, place: Literal["find-links", "pip-cache"]) -> WheelFile:
    infos = archive.infolist()
    folders = {info.filename.split("/")[0] for info in infos if info.filename.endswith(".dist-info/RECORD")}
    if len(folders) != 1:
        raise NotAWheel(f"{len(folders)} dist-infos in one wheel")
    (dist_info,) = folders
    raw, _, version = dist_info.removesuffix(".dist-info").partition("-")
    record = parse_record(_member(archive, f"{dist_info}/RECORD"))
    tags, wheel_build = parse_wheel(_member(archive, f"{dist_info}/WHEEL").decode("utf-8", "replace"))
    return WheelFile(
        place=place,
        path=path,
        name=canonicalize_name(raw),
        version=version,
        dist_info=dist_info,
        tags=tags,
        wheel_build=wheel_build,
        build=build_identity(as_installed(record.rows)),
        bytes=sum(info.file_size for info in infos),
    )


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > _MOST_METADATA:
        raise NotAWheel(f"{name} unpacks to {info.file_size} bytes")
    return archive.read(info)
