"""Tokenised documents in memory-mapped files, named by a digest of all that they depend on.

A directory ``<digest>/`` holds ``tokens.bin`` (uint32), ``supervised.bin`` (uint8), ``offsets.bin`` (int64, one
more than documents) and ``meta.json`` with their checksums. It appears by a rename, so that it is whole or not
there; one whose files do not match their checksums is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.data.documents import BadLine, read_documents
from trainer.errors import ConfigError
from trainer.files import locked, naming, new_directory
from trainer.tokenizer import Tokenizer

_FORMAT = 1  # raise it when the same sources would give other files
_TYPES = {"tokens": np.uint32, "supervised": np.uint8, "offsets": np.int64}

log = logging.getLogger(__name__)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the lines: ``lines`` = documents + untrainable + bad lines."""

    lines: int
    documents: int
    untrainable: int
    """Documents without two labels in a row: no anchor fits in them."""
    truncated: int
    """Documents cut at the greatest length; they are among ``documents`` or ``untrainable``."""
    tokens: int
    supervised: int


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``."""

    digest: str
    checksums: dict[str, str]
    counts: Counts
    bad_lines: list[BadLine]


class TokenCache:
    """The documents of a finished cache."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self.folder = folder
        self.meta = meta
        self._tokens = _map(folder, "tokens")
        self._supervised = _map(folder, "supervised")
        self._offsets = _map(folder, "offsets")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        return np.diff(self._offsets)

    def document(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A document's tokens and labels."""
        first, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return self._tokens[first:end].astype(np.int64), self._supervised[first:end].astype(np.bool_)


def open_cache(cache_dir: Path, paths: Sequence[Path], tokenizer: Tokenizer, max_length: int) -> TokenCache:
    """The cache of these files under this tokenizer; built where it is missing or damaged."""
    digest = cache_digest(paths, tokenizer, max_length)
    folder = cache_dir / digest
    with locked(cache_dir / f"{digest}.lock"):  # one process builds it, the other ranks wait and then find it
        meta = _read_meta(folder, digest)
        if meta is None:
            if folder.exists():
                log.warning("the token cache %s is damaged: building it again", folder)
                shutil.rmtree(folder)
            with naming(folder), new_directory(folder) as temporary:
                _build(temporary, digest, paths, tokenizer, max_length)
            meta = _read_meta(folder, digest)
            if meta is None:
                raise ConfigError(f"the token cache {folder} cannot be read back: is the disk at fault?")
    return TokenCache(folder, meta)


def cache_digest(paths: Sequence[Path], tokenizer: Tokenizer, max_length: int) -> str:
    """sha256 of the sources' contents in order, the tokenizer, and what else decides the ids."""
    parts: list[Any] = [_FORMAT, tokenizer.digest, max_length]
    for path in paths:
        try:
            parts.append(_checksum(path))
        except OSError as error:
            where = "" if path.is_absolute() else f" in {Path.cwd()}"
            raise ConfigError(f"data.paths: cannot read {path}{where}: {error.strerror}") from error
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _build(folder: Path, digest: str, paths: Sequence[Path], tokenizer: Tokenizer, max_length: int) -> None:
    """Fills ``folder``; a group of lines is in memory at a time, never the whole text."""
    bad: list[BadLine] = []
    lines = untrainable = truncated = supervised = 0
    offsets = [0]
    with (folder / "tokens.bin").open("wb") as tokens_file, (folder / "supervised.bin").open("wb") as labels_file:
        for found in read_documents(paths, tokenizer):
            lines += 1
            if isinstance(found, BadLine):
                bad.append(found)
                continue
            truncated += len(found.tokens) > max_length
            tokens = np.array(found.tokens[:max_length], dtype=np.uint32)
            labels = np.array(found.supervised[:max_length], dtype=np.uint8)
            if not (labels[:-1] & labels[1:]).any():
                untrainable += 1
                continue
            tokens_file.write(tokens.tobytes())
            labels_file.write(labels.tobytes())
            offsets.append(offsets[-1] + len(tokens))
            supervised += int(labels.sum())
    (folder / "offsets.bin").write_bytes(np.array(offsets, dtype=np.int64).tobytes())
    counts = Counts(
        lines=lines,
        documents=len(offsets) - 1,
        untrainable=untrainable,
        truncated=truncated,
        tokens=offsets[-1],
        supervised=supervised,
    )
    checksums = {name: _checksum(folder / f"{name}.bin") for name in _TYPES}
    meta = Meta(digest=digest, checksums=checksums, counts=counts, bad_lines=bad)
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta))


def _read_meta(folder: Path, digest: str) -> Meta | None:
    """The cache's description, or None where it is not there or does not match its files."""
    try:
        meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=Meta)
        sums = {name: _checksum(folder / f"{name}.bin") for name in _TYPES}
    except (OSError, msgspec.DecodeError):
        return None
    return meta if (meta.digest, meta.checksums) == (digest, sums) else None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _map(folder: Path, name: str) -> NDArray[Any]:
    path = folder / f"{name}.bin"
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=_TYPES[name])
    return np.memmap(path, dtype=_TYPES[name], mode="r")
