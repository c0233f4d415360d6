"""The uv cache as a witness: which builds lie unpacked in it, and what it says of where they came from.

An *archive* is an unpacked wheel under `archive-v*/<id>`; a *pointer* is the small file under `wheels-v*` by which
uv finds it again. The archive alone gives name, version, tags and the complete RECORD, so it counts with or without
a pointer: dangling ones are evidence and can be restored. The pointer adds URL, sha256 and time of fetching.

Formats, as read in caches of uv 0.4 to 0.13: an `.http` pointer starts with one msgpack value
`[id, hashes, filename, 0, size]` (only the first two before 0.5; a map is taken too), followed by an rkyv HTTP
policy that holds the URL as plain ASCII and times as unix seconds; a `.rev` pointer is `[[secs, nanos], archive]`,
the time being the ctime of the wheel that it was unpacked from.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from packaging.utils import canonicalize_name

from envguard.acquire.packages.cached_archives import ARCHIVE_BUCKET
from envguard.acquire.packages.record_file import Row, build_identity, parse_record
from envguard.acquire.packages.wheel_tags import parse_wheel
from envguard.acquire.seam.host import Host, Stat
from envguard.model.evidence import Unknown

_PRINTABLE = re.compile(rb"[\x21-\x7e]+")
WHEEL_BUCKET = re.compile(r"wheels-v\d+")
SDIST_BUCKET = re.compile(r"(sdists|built-wheels)-v\d+")
# Unix seconds that can be a time of fetching: uv did not exist before 2023.
_EARLIEST, _LATEST = 1_672_531_200, 4_102_444_800


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """How uv finds an archive again; `url`, `sha256`, `size` are of the wheel file and None where not kept."""

    bucket: str
    """`wheels-v8`, `sdists-v11`, …"""
    source: str
    """`pypi`, `index/<digest>`, `url/<digest>`, `path/<digest>`, …: the folder below the bucket."""
    path: str
    kind: Literal["http", "rev", "link"]
    """`link`: only the symbolic link is there, as for a wheel that uv built from a source distribution."""
    archive: str
    url: str | None = None
    sha256: str | None = None
    filename: str | None = None
    size: int | None = None
    fetched_at: int | None = None
    """Last fetch, seconds since the epoch, as the HTTP policy says."""
    source_ctime_ns: int | None = None
    """Of a `.rev`: ctime of the wheel file that was unpacked."""
    mtime_ns: int | None = None


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """One unpacked wheel in a cache. `build` is its build identity, None where `problem` says why."""

    id: str
    cache: str
    path: str
    name: str
    version: str
    dist_info: str
    tags: tuple[str, ...]
    wheel_build: str | None
    build: str | None
    files: int | None
    bytes: int | None
    """Sum of the sizes in RECORD."""
    directory: Stat
    """Of the archive's top folder: its btime is the first unpacking, and a payload mtime after its ctime is a hint
    of an edit in place."""
    pointers: tuple[Pointer, ...]
    problem: str | None = None

    @property
    def dangling(self) -> bool:
        """No pointer of any bucket leads here, so that uv itself will never use it again."""
        return not self.pointers


class UvCaches(msgspec.Struct, frozen=True, kw_only=True):
    """All archives of all caches that were asked for; `directories` are those that exist."""

    directories: tuple[str, ...]
    archives: tuple[Archive, ...]
    unknown: tuple[Unknown, ...]

    def of(self, name: str, build: str | None = None) -> tuple[Archive, ...]:
        """Archives of a normalised name, and of one build where it is given."""
        return tuple(a for a in self.archives if a.name == name and (build is None or a.build == build))


def read_caches(host: Host, directories: tuple[str, ...]) -> UvCaches:
    """Reads every archive and pointer below `directories`; one that does not exist is no cache and no problem."""
    archives: list[Archive] = []
    unknown: list[Unknown] = []
    existing = []
    for cache in directories:
        try:
            names = host.listing(cache)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unknown.append(Unknown.refused(f"uv cache {cache}", error))
            continue
        existing.append(cache)
        buckets = [name for name, kind in names if kind == "directory"]
        pointers = _pointers(host, cache, buckets, unknown)
        for bucket in buckets:
            if ARCHIVE_BUCKET.fullmatch(bucket):
                archives += _archives(host, cache, bucket, pointers, unknown)
    return UvCaches(directories=tuple(existing), archives=tuple(archives), unknown=tuple(unknown))


def _archives(
    host: Host, cache: str, bucket: str, pointers: dict[str, list[Pointer]], unknown: list[Unknown]
) -> Iterator[Archive]:
    try:
        names = host.listing(f"{cache}/{bucket}")
    except OSError as error:
        unknown.append(Unknown.refused(f"{cache}/{bucket}", error))
        return
    for name, kind in names:
        if kind != "directory":
            continue
        path = f"{cache}/{bucket}/{name}"
        try:
            inner = host.listing(path)
            directory = host.stat(path)
        except OSError as error:
            unknown.append(Unknown.refused(path, error))
            continue
        dist_infos = [entry for entry, what in inner if what == "directory" and entry.endswith(".dist-info")]
        # Environments of `uv run --with` lie here too: they have a pyvenv.cfg and are no wheels.
        if any(entry == "pyvenv.cfg" for entry, _ in inner) or not dist_infos:
            continue
        if len(dist_infos) > 1:
            unknown.append(Unknown(path, f"{len(dist_infos)} dist-info folders in one archive", "aside"))
            continue
        yield _archive(host, cache, path, dist_infos[0], directory, tuple(pointers.get(name, ())))


def _archive(
    host: Host, cache: str, path: str, dist_info: str, directory: Stat, pointers: tuple[Pointer, ...]
) -> Archive:
    raw_name, _, version = dist_info.removesuffix(".dist-info").partition("-")
    build = problem = files = size = None
    try:
        record = parse_record(host.read(f"{path}/{dist_info}/RECORD"))
        build, files = build_identity(as_installed(record.rows)), len(record.rows)
        size = sum(row.size or 0 for row in record.rows)
    except OSError as error:
        problem = f"{dist_info}/RECORD: {error.strerror or error}"
    tags, wheel_build = _wheel_tags(host, f"{path}/{dist_info}/WHEEL")
    return Archive(
        id=path.rpartition("/")[2],
        cache=cache,
        path=path,
        name=canonicalize_name(raw_name),
        version=version,
        dist_info=dist_info,
        tags=tags,
        wheel_build=wheel_build,
        build=build,
        files=files,
        bytes=size,
        directory=directory,
        pointers=pointers,
        problem=problem,
    )


def as_installed(rows: Iterable[Row]) -> tuple[Row, ...]:
    """A wheel's RECORD rows as the RECORD of its install lists them.

    `NAME-VERSION.data/purelib/x` becomes `x`; scripts, data and headers leave site-packages and are no part of the
    build identity. Without this no wheel with a .data folder would be known again in its archive.
    """
    out = []
    for row in rows:
        folder, _, rest = row.path.partition("/")
        if folder.endswith(".data"):
            scheme, _, path = rest.partition("/")
            if scheme in ("purelib", "platlib") and path:
                out.append(Row(path, row.hash, row.size))
            continue
        out.append(row)
    return tuple(out)


def _wheel_tags(host: Host, path: str) -> tuple[tuple[str, ...], str | None]:
    """Tags and build number of a WHEEL file; none where it cannot be read, which restore then refuses."""
    try:
        text = host.read(path, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return (), None
    return parse_wheel(text)


def _pointers(host: Host, cache: str, buckets: list[str], unknown: list[Unknown]) -> dict[str, list[Pointer]]:
    """Archive id → its pointers; a link counts only where no `.http` or `.rev` beside it says more."""
    found: dict[str, list[Pointer]] = {}
    for bucket in buckets:
        if not (WHEEL_BUCKET.fullmatch(bucket) or SDIST_BUCKET.fullmatch(bucket)):
            continue
        root = f"{cache}/{bucket}"
        try:
            walk = host.walk(root)
        except OSError as error:
            unknown.append(Unknown.refused(root, error))
            continue
        unknown += [Unknown.refused(f"{root}/{path}", why) for path, why in walk.failed]
        paths = {path for path, _ in walk.entries}
        for path, stat in walk.entries:
            if stat.is_link and not paths & {f"{path}.http", f"{path}.rev"}:
                pointer = _link(host, bucket, root, path)
            elif stat.is_file and path.endswith((".http", ".rev")) and WHEEL_BUCKET.fullmatch(bucket):
                pointer = _pointer(host, bucket, root, path, stat, unknown)
            else:
                continue
            if pointer is not None:
                found.setdefault(pointer.archive, []).append(pointer)
    return found


def _source(path: str) -> str:
    first, _, rest = path.partition("/")
    return first if first == "pypi" else f"{first}/{rest.partition('/')[0]}"


def _link(host: Host, bucket: str, root: str, path: str) -> Pointer | None:
    try:
        target = host.readlink(f"{root}/{path}")
    except OSError:
        return None
    parts = target.rstrip("/").split("/")
    if len(parts) < 2 or not ARCHIVE_BUCKET.fullmatch(parts[-2]):
        return None
    return Pointer(bucket=bucket, source=_source(path), path=f"{root}/{path}", kind="link", archive=parts[-1])


def _wheel_url(policy: bytes) -> str | None:
    """The first URL of a wheel in an rkyv HTTP policy. Each run of printable bytes is read once: one pattern for the
    whole URL would start again at each scheme in it, which is quadratic."""
    for match in _PRINTABLE.finditer(policy):
        run = match[0]
        starts = [at for at in (run.find(b"https://"), run.find(b"http://")) if at >= 0]
        end = run.find(b".whl", min(starts)) if starts else -1
        if end >= 0:
            return run[min(starts) : end + len(b".whl")].decode()
    return None


def _pointer(host: Host, bucket: str, root: str, path: str, stat: Stat, unknown: list[Unknown]) -> Pointer | None:
    import msgpack  # here, so that a stamp in a trainer's process can look for archives without it

    try:
        data = host.read(f"{root}/{path}")
        archive, source_ctime, tail = _decode(data, path.endswith(".rev"))
    except (OSError, ValueError, msgpack.UnpackException) as error:
        unknown.append(Unknown(f"{root}/{path}", f"not a pointer as uv is known to write them: {error}", "aside"))
        return None
    url = _wheel_url(tail)
    return Pointer(
        bucket=bucket,
        source=_source(path),
        path=f"{root}/{path}",
        kind="rev" if path.endswith(".rev") else "http",
        archive=archive["id"],
        url=url,
        sha256=archive.get("sha256"),
        filename=archive.get("filename"),
        size=archive.get("size") or None,
        fetched_at=_policy_time(tail),
        source_ctime_ns=source_ctime,
        mtime_ns=stat.mtime_ns,
    )


def _decode(data: bytes, is_rev: bool) -> tuple[dict[str, Any], int | None, bytes]:
    """A pointer's archive as {id, sha256, filename, size}, the source's ctime, and what follows the msgpack."""
    import msgpack

    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    value = unpacker.unpack()
    tail = data[unpacker.tell() :]
    ctime = None
    if is_rev:
        if isinstance(value, dict):
            value = [value.get("timestamp"), value.get("archive")]
        if not isinstance(value, list) or len(value) < 2:
            raise ValueError("a .rev holds [timestamp, archive]")
        time, value = value[0], value[1]
        if isinstance(time, list) and len(time) == 2 and all(isinstance(part, int) for part in time):
            ctime = time[0] * 10**9 + time[1]
    if isinstance(value, list):
        value = dict(zip(("id", "hashes", "filename", "version", "size"), value, strict=False))
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or "/" in value["id"]:
        raise ValueError("no archive id")
    filename, size = value.get("filename"), value.get("size")
    return (
        {
            "id": value["id"],
            "sha256": _sha256(value.get("hashes")),
            "filename": filename if isinstance(filename, str) else None,
            "size": size if isinstance(size, int) else None,
        },
        ctime,
        tail,
    )


def _sha256(hashes: Any) -> str | None:
    """The sha256 among a pointer's hashes: [{Sha256: hex}], [[algorithm, hex]] or [{algorithm, digest}]."""
    for item in hashes if isinstance(hashes, list) else ():
        pairs: list[tuple[Any, Any]] = []
        if isinstance(item, dict):
            pairs = [(item["algorithm"], item.get("digest"))] if "algorithm" in item else list(item.items())
        elif isinstance(item, list) and len(item) == 2:
            pairs = [(item[0], item[1])]
        for algorithm, digest in pairs:
            if isinstance(algorithm, str) and algorithm.lower() == "sha256" and isinstance(digest, str):
                return digest if re.fullmatch(r"[0-9a-f]{64}", digest) else None
    return None


def _policy_time(tail: bytes) -> int | None:
    """The time of fetching in an rkyv HTTP policy: the plausible u64 that it repeats most, the latest among equals.

    Request time, response time and `Date` are within a second of each other and usually one number; `Last-Modified`
    and `Expires` stand once. Alignment is counted from the end, where rkyv puts the root.
    """
    seen: Counter[int] = Counter()
    for offset in range(len(tail) % 4, len(tail) - 7, 4):
        (value,) = struct.unpack_from("<Q", tail, offset)
        if _EARLIEST <= value <= _LATEST:
            seen[value] += 1
    return max(seen, key=lambda value: (seen[value], value)) if seen else None


_MASK = (1 << 64) - 1
_SEA_SEEDS = (0x16F11FE89B0D677C, 0xB480A793D8E6C86C, 0x6FE2E5AAF078EBC9, 0x14F994A4C5259381)


def index_digest(url: str) -> str:
    """The name of an index's folder in uv's buckets: SeaHash of its URL and 0xff, little-endian hex.

    It is one-way: a candidate URL can be tested, the URL is not stored. User info is no part of it.
    """
    canonical = re.sub(r"(?<=://)[^/@]+@", "", url).rstrip("/")
    return _seahash(canonical.encode("utf-8", "surrogatepass") + b"\xff").to_bytes(8, "little").hex()


def _seahash(data: bytes) -> int:
    a, b, c, d = _SEA_SEEDS
    for offset in range(0, len(data), 8):
        a, b, c, d = b, c, d, _diffuse(a ^ int.from_bytes(data[offset : offset + 8], "little"))
    return _diffuse(a ^ b ^ c ^ d ^ len(data))


def _diffuse(value: int) -> int:
    value = (value * 0x6EED0E9DA4D94A4F) & _MASK
    value ^= (value >> 32) >> (value >> 60)
    return (value * 0x6EED0E9DA4D94A4F) & _MASK
