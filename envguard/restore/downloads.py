"""The folder that one restore downloads into: its own, below `<state>/fetched`, and gone when the restore ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from envguard.state.files import locked, open_state

FOLDER = "fetched"


class Downloads:
    """A folder that is made when it is first wanted, and locked as long as this process has it.

    Two restores of one project download at the same time, so that neither may remove what the other holds. What a
    killed one left is locked by nobody.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._lock: int | None = None

    def folder(self, state: Path) -> Path:
        """The folder, below the state folder `state`. Raises OSError."""
        if self.path is None:
            root = open_state(state) / FOLDER
            root.mkdir(exist_ok=True)
            with locked(root / ".lock"):  # a new folder must not be swept before it is locked
                _sweep(root)
                self.path = Path(tempfile.mkdtemp(dir=root))
                self._lock = _lock(self.path)
        return self.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes what was downloaded; `snapshot --keep` is what keeps wheels."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self.path = self._lock = None


def _sweep(root: Path) -> None:
    """Removes what killed restores left, and what an envguard without folders of their own had there."""
    for left in root.iterdir():
        if not left.is_dir():
            if left.suffix == ".whl":
                left.unlink()
        elif (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """The locked directory; None where another has it, and on a file system that locks none (NFS)."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor
