"""A host that a test makes up at the seam: files by path, answers by operation, refusals where it wants them."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any

from envguard.acquire.seam.host import Host

MACHINE = {
    "uid": 1000, "user": "ada", "home": "/home/ada", "host": "box", "kernel": "6.8.0", "system": "Linux",
    "arch": "x86_64", "boot_time": 1_700_000_000, "now": 1_800_000_000.0, "utc_offset": 0, "cwd": "/srv",
    "cpus": 8, "tmpdir": "/tmp",
}  # fmt: skip


class MadeUp(Host):
    """Whatever is not named is not there; a value that is an `OSError` is raised."""

    label = "made up"

    def __init__(self, files: Mapping[str, bytes | OSError] | None = None, **answers: Any) -> None:
        self.files = dict(files or {})
        self.answers: dict[str, Any] = {"machine": MACHINE, "environ": {}, "withheld": [], **answers}
        self.links: dict[str, str] = {}
        self.asked: list[str] = []

    def call(self, operation: str, *arguments: Any) -> Any:
        self.asked.append(operation)
        if operation in self.answers:
            answer = self.answers[operation]
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, OSError):
                raise answer
            return answer
        return getattr(self, f"_{operation}")(*arguments)

    def _content(self, path: str) -> bytes:
        found = self.files.get(path)
        if isinstance(found, OSError):
            raise found
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    def _stat(self, path: str) -> tuple[Any, ...]:
        if path not in self.files and any(name.startswith(f"{path}/") for name in self.files):
            return ("directory", 0o755, 0, 2, 0, 0, 1, 1, 0, 0, None)
        return ("file", 0o644, len(self._content(path)), 1, 0, 0, 1, 1, 0, 0, None)

    _stat_target = _stat

    def _read(self, path: str, limit: int | None = None, offset: int = 0) -> bytes:
        data = self._content(path)[offset:]
        return data if limit is None else data[:limit]

    def _digest(self, path: str) -> str:
        return hashlib.sha256(self._content(path)).hexdigest()

    def _listing(self, path: str) -> list[tuple[str, str]]:
        below = [name[len(path) + 1 :] for name in self.files if name.startswith(f"{path}/")]
        if not below:
            raise FileNotFoundError(2, "No such file or directory", path)
        names = {name.partition("/")[0]: "directory" if "/" in name else "file" for name in below}
        return sorted(names.items())

    def _realpath(self, path: str) -> str:
        return posixpath.normpath(self.links.get(path, path))

    def _readlink(self, path: str) -> str:
        if path not in self.links:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.links[path]
