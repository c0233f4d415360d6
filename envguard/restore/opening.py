"""The files of a source, wherever it lies: an unpacked archive, a manifest of the vault, a wheel file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envguard.restore.archive import Files, Folder, open_zip
from envguard.restore.candidate import Candidate
from envguard.restore.vault import open_manifest


@contextmanager
def opened(candidate: Candidate) -> Iterator[Files]:
    """The files of a source. Raises `RecordUnusable` where it is not what it was when it was found."""
    if candidate.place == "uv-cache":
        yield Folder(Path(candidate.path))
    elif candidate.place == "vault":
        yield open_manifest(Path(candidate.path))
    else:
        with open_zip(candidate.path) as files:
            yield files
