"""A private compile cache that begins warm: that of the run which goes on is taken along once, else what lies in
inductor's default place.

Going from there to a private folder would otherwise cost a run its warm cache on the first
launch. Copying the directory is what keeps entries (measured; `load_cache_artifacts` loses compiled objects).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from envguard.model.fingerprint import Fingerprint


def is_filled(folder: Path) -> bool:
    """Whether the private cache holds anything."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return False


def seed_of(live: Fingerprint, reference: Fingerprint | None) -> Path | None:
    """The cache whose entries this build can use, as judged by the fingerprint: never one open to others. One that
    the reference names is that of the run which goes on, and goes before any other."""
    told = reference.compile_cache if reference is not None else None
    named = {cache.path for cache in told or () if cache.verdict != "EMPTY"}
    caches = [cache for cache in live.compile_cache or () if cache.kind == "inductor"]
    fit = [cache for cache in caches if cache.verdict in ("VALID", "MIXED")]
    fit.sort(key=lambda cache: cache.path not in named)
    return Path(fit[0].path) if fit else None


def take_along(source: Path, target: Path) -> None:
    """Copies `source` to the private `target` (there and empty), whole or not at all. Raises OSError."""
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        shutil.copytree(source, beside, symlinks=True, dirs_exist_ok=True)
        beside.chmod(0o700)
        os.rename(beside, target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise OSError(f"{source} cannot be copied: {error}") from error
