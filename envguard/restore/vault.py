"""The vault: wheels and compile caches by content, each file once, verified when it is read.

    <state>/vault/files/<2>/<sha256>     the bytes of a file, read-only
                 /wheels/<build>.json    which files make up a wheel, under which names
                 /caches/<digest>-<8>.json   which files make up a compile cache, and at which path it lay

A manifest is written last and atomically: a file that no manifest names yet is only taking up room, and `gc` sweeps
it. A copy is a reflink where the file system has them, never a hard link.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from envguard import clock
from envguard.acquire.packages.record_file import Row
from envguard.model.fingerprint import CacheKind
from envguard.restore.archive import Fault, Files, copy_checked, is_unhashed, read_rows, unsafe
from envguard.restore.candidate import Candidate
from envguard.restore.copying import copy_file
from envguard.restore.progress import Silent
from envguard.state.files import locked, open_state, read_file, write_atomically


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One file of a manifest: path, sha256 (hex), size in bytes, mode, mtime in ns (0: of no account)."""

    path: str
    sha256: str
    size: int
    mode: int
    mtime_ns: int = 0


class WheelManifest(msgspec.Struct, frozen=True, kw_only=True, tag="wheel", tag_field="kind"):
    """A wheel in the vault."""

    name: str
    version: str
    build: str
    dist_info: str
    tags: tuple[str, ...]
    wheel_build: str | None
    stored: str
    files: tuple[Item, ...]


class CacheManifest(msgspec.Struct, frozen=True, kw_only=True, tag="compile_cache", tag_field="kind"):
    """A compile cache in the vault: what wrote it decides where it may be used."""

    cache: CacheKind
    digest: str
    path: str
    """Where it lay."""
    torch: str | None
    tags: tuple[str, ...]
    gpus: tuple[str, ...]
    tritons: tuple[str, ...]
    stored: str
    files: tuple[Item, ...]


Manifest = WheelManifest | CacheManifest
_MANIFEST: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)


class Damaged(OSError):
    """A file of the vault is not what its name says."""


class VaultFiles:
    """A kept wheel's files, for whoever installs them; content is hashed by the reader, as of any other source."""

    def __init__(self, vault: Vault, manifest: WheelManifest) -> None:
        self.vault = vault
        self.items = {item.path: item for item in manifest.files}

    def _item(self, path: str) -> Item:
        if path not in self.items:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.items[path]

    def open(self, path: str) -> IO[bytes]:
        item = self._item(path)
        stream = open(self.vault.file(item.sha256), "rb", buffering=0)  # noqa: SIM115 - the caller closes it
        if not is_record(path):
            return stream
        # Every other file is held against RECORD; RECORD itself only against the name that it is kept under.
        with stream:
            data = stream.read()
        if hashlib.sha256(data).hexdigest() != item.sha256:
            raise Damaged(errno.EIO, "not what was stored", path)
        return io.BytesIO(data)

    def where(self, path: str) -> str | None:
        return str(self.vault.file(self._item(path).sha256))

    def mode(self, path: str) -> int:
        return self._item(path).mode

    def size(self, path: str) -> int:
        return self._item(path).size


def is_record(path: str) -> bool:
    """Whether a wheel's path is its RECORD."""
    return path.endswith(".dist-info/RECORD")


def open_manifest(path: Path) -> VaultFiles:
    """The files behind a wheel's manifest. Raises OSError where it cannot be read as one."""
    manifest = _read(path)
    if not isinstance(manifest, WheelManifest):
        raise Damaged(errno.EIO, "no wheel of the vault", str(path))
    return VaultFiles(Vault(path.parents[2]), manifest)


def _read(path: Path) -> Manifest:
    try:
        return _MANIFEST.decode(read_file(path))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(errno.EIO, f"no manifest: {error}", str(path)) from error


class Vault:
    """The vault of a state folder; nothing is made before something is stored."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.root = state / "vault"

    def file(self, sha256: str) -> Path:
        return self.root / "files" / sha256[:2] / sha256

    def manifests(self) -> Iterator[tuple[Path, Manifest]]:
        """Every manifest that can be read, oldest first; a damaged one is `damaged`'s."""
        for path, manifest in self._all():
            if manifest is not None:
                yield path, manifest

    def damaged(self) -> list[Path]:
        """Manifests that cannot be read."""
        return [path for path, manifest in self._all() if manifest is None]

    def _all(self) -> list[tuple[Path, Manifest | None]]:
        found: list[tuple[Path, Manifest | None]] = []
        for folder in ("wheels", "caches"):
            for path in sorted((self.root / folder).glob("*.json")):
                try:
                    found.append((path, _read(path)))
                except OSError:
                    found.append((path, None))
        return sorted(found, key=lambda pair: (pair[1].stored if pair[1] else "", str(pair[0])))

    def candidates(self) -> Iterator[Candidate]:
        """Kept wheels as sources of a restore."""
        for path, manifest in self.manifests():
            if isinstance(manifest, WheelManifest):
                yield Candidate(
                    place="vault",
                    name=manifest.name,
                    version=manifest.version,
                    build=manifest.build,
                    path=str(path),
                    dist_info=manifest.dist_info,
                    tags=manifest.tags,
                    wheel_build=manifest.wheel_build,
                    bytes=sum(item.size for item in manifest.files),
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes the folders and keeps a collector out while something is stored. Raises OSError."""
        for folder in ("files", "wheels", "caches"):
            (open_state(self.state) / "vault" / folder).mkdir(parents=True, exist_ok=True)
        with locked(self.root / "lock"):
            yield

    def keep_path(self, source: str, sha256: str) -> bool:
        """Stores the file at `source` under its sha256; False where its content is another. Raises OSError."""
        return self._keep(sha256, lambda temporary: copy_file(source, str(temporary)))

    def keep_stream(self, stream: IO[bytes], sha256: str) -> bool:
        """The same of what is not a file of its own, as inside a zip."""

        def copy(temporary: Path) -> None:
            with temporary.open("xb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)

        return self._keep(sha256, copy)

    def _keep(self, sha256: str, copy: Callable[[Path], None]) -> bool:
        target = self.file(sha256)
        if target.exists():
            return True
        target.parent.mkdir(exist_ok=True)
        temporary = target.with_name(f".{sha256[:12]}-{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        copy(temporary)
        # What was copied is hashed, not what was read: the copy is what will be believed.
        with open(temporary, "rb", buffering=0) as stream:
            got = hashlib.file_digest(stream, "sha256").hexdigest()
        if got != sha256:
            temporary.unlink()
            return False
        os.chmod(temporary, 0o444)
        os.rename(temporary, target)
        return True

    def keep_bytes(self, data: bytes) -> str:
        """Stores bytes; returns their sha256. Raises OSError."""
        sha256 = hashlib.sha256(data).hexdigest()
        target = self.file(sha256)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, data, 0o444)
        return sha256

    def write(self, manifest: Manifest) -> Path:
        """Makes what was stored count. Raises OSError."""
        if isinstance(manifest, WheelManifest):
            path = self.root / "wheels" / f"{manifest.build}.json"
        else:
            # Two caches may hold the same, and each has to come back to its own path.
            lay = hashlib.sha256(manifest.path.encode("utf-8", "surrogateescape")).hexdigest()[:8]
            path = self.root / "caches" / f"{manifest.digest}-{lay}.json"
        write_atomically(path, msgspec.json.encode(manifest))
        return path


class _Sha256:
    """A sink that only hashes."""

    def __init__(self) -> None:
        self.hasher = hashlib.sha256()

    def write(self, data: bytes, /) -> None:
        self.hasher.update(data)


def _name_of(files: Files, row: Row) -> str | Fault:
    """The sha256 (hex) under which a row's file is kept: RECORD's own, and of a file that RECORD proves by another
    algorithm that of the very bytes that were held against it. Raises OSError."""
    if row.hash is not None and row.hash.startswith("sha256=") and not unsafe(row.path):
        value = row.hash.removeprefix("sha256=")
        try:
            return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
        except ValueError:
            return Fault(path=row.path, kind="unhashed", expected=row.hash)
    sink = _Sha256()
    return copy_checked(files, row, sink, Silent()) or sink.hasher.hexdigest()


def items_of(vault: Vault, files: Files, dist_info: str) -> tuple[Item, ...] | str:
    """Stores every file that RECORD lists; in words, what is wrong with the first that does not fit. Raises OSError
    and `RecordUnusable`."""
    items = []
    for row in read_rows(files, dist_info):
        if is_unhashed(row):
            continue
        sha256 = _name_of(files, row)
        if isinstance(sha256, Fault):
            return f"{sha256.path} is not what RECORD says ({sha256.kind})"
        if not vault.file(sha256).exists() and not _keep(vault, files, row.path, sha256):
            return f"{row.path} is not what RECORD says"
        items.append(Item(row.path, sha256, files.size(row.path), files.mode(row.path)))
    with files.open(f"{dist_info}/RECORD") as stream:
        data = stream.read()
    items.append(Item(f"{dist_info}/RECORD", vault.keep_bytes(data), len(data), 0o644))
    return tuple(items)


def _keep(vault: Vault, files: Files, path: str, sha256: str) -> bool:
    where = files.where(path)
    if where is not None:
        return vault.keep_path(where, sha256)
    with files.open(path) as stream:
        return vault.keep_stream(stream, sha256)


def wheel_manifest(candidate: Candidate, items: Iterable[Item]) -> WheelManifest:
    """The manifest of a source whose files have been stored."""
    return WheelManifest(
        name=candidate.name,
        version=candidate.version,
        build=candidate.build,
        dist_info=candidate.dist_info,
        tags=candidate.tags,
        wheel_build=candidate.wheel_build,
        stored=clock.now(),
        files=tuple(items),
    )
