"""A private compile cache that begins warm: what lies in inductor's default place is taken along once.

Going from `/tmp/torchinductor_<user>` to a private folder would otherwise cost a run its warm cache on the first
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


def seed_of(live: Fingerprint) -> Path | None:
    """The cache whose entries this build can use, as judged by the fingerprint: never one open to others."""
    for cache in live.compile_cache or ():
        if cache.kind == "inductor" and cache.verdict in ("VALID", "MIXED"):
            return Path(cache.path)
    return None


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
