"""The files of a source, wherever it lies: an unpacked archive, the vault, what pip put aside, a wheel file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import reason
from envguard.restore.archive import Files, Folder, RecordUnusable, open_zip
from envguard.restore.candidate import Candidate
from envguard.restore.installed import PutAside
from envguard.restore.vault import open_manifest


@contextmanager
def opened(candidate: Candidate) -> Iterator[Files]:
    """The files of a source. Raises `RecordUnusable` where it is not what it was when it was found."""
    if candidate.place == "uv-cache":
        yield Folder(Path(candidate.path))
    elif candidate.place == "vault":
        yield open_manifest(Path(candidate.path))
    elif candidate.aside is not None:
        try:
            files = PutAside(candidate.aside, LiveHost())
        except OSError as error:
            raise RecordUnusable(f"{error.filename}: {reason(error)}") from error
        yield files
    else:
        with open_zip(candidate.path) as zipped:
            yield zipped
