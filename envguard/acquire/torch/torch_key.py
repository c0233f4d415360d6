"""inductor's `torch_key` and the tag that it leaves in cache entries, computed from files.

torch hashes its version and the source of every module below it into each cache key (`torch_key` in
`torch/_inductor/codecache.py`), so that one patched file makes a whole cache cold. The same digest is taken here by
the same rules, those of `pkgutil.iter_modules` and of the import system's file finder, without importing torch.
"""

from __future__ import annotations

import base64
import hashlib
import io
import pickle
import re
from typing import Literal

from envguard.acquire.seam.host import Host

Part = tuple[Literal["text", "file"], str]
EXTRA_FILES = ("codegen/aoti_runtime/interface.cpp", "script.ld")
MAX_MODULES = 50_000


def read_torch_key(host: Host, directory: str, version: str, python: str) -> str:
    """The key (sha256, hex) of the torch in `directory` under Python `python` ("3.11"). Raises `OSError`."""
    parts: list[Part] = [("text", version)]
    modules = _Modules(host, python)
    modules.collect(directory, "", parts)
    inductor = f"{directory}/_inductor"
    for name in EXTRA_FILES:
        if host.find(f"{inductor}/{name}") is not None:
            parts.append(("file", f"{inductor}/{name}"))
    return host.chain(tuple(parts))


def cache_tag(key: str, python: str) -> str:
    """What inductor writes before "torch_version" in an entry's debug lines: base32 of a sha256, 51 characters.

    It hashes the key as `FxGraphCachePickler` pickles it: without memo marks, in the default protocol of the
    environment's Python, which is 4 up to 3.13 and 5 from 3.14 on.
    """
    stream = io.BytesIO()
    major, minor = (int(part) for part in python.split(".")[:2])
    pickler = pickle.Pickler(stream, 5 if (major, minor) >= (3, 14) else 4)
    pickler.fast = True
    pickler.dump(bytes.fromhex(key))
    return base64.b32encode(hashlib.sha256(stream.getvalue()).digest())[:51].decode().lower()


class _Modules:
    """The modules below a package, in the order and with the files that `build_code_hash` takes."""

    def __init__(self, host: Host, python: str) -> None:
        self.host = host
        digits = re.sub(r"\D", "", ".".join(python.split(".")[:2]))
        # In the order in which the file finder tries them: extension modules, source, bytecode.
        self.suffixes = (
            re.compile(rf"\.cpython-{digits}t?-[\w-]+\.so$"),
            re.compile(r"\.abi3\.so$"),
            re.compile(r"\.so$"),
            re.compile(r"\.py$"),
            re.compile(r"\.pyc$"),
        )
        self.count = 0

    def collect(self, directory: str, prefix: str, parts: list[Part]) -> None:
        files: dict[str, tuple[int, str]] = {}
        folders: list[str] = []
        for name, kind in self.host.listing(directory):
            if kind == "directory" or (kind == "link" and "." not in name):
                folders.append(name)
                continue
            module = self._module(name)
            if module is not None:
                rank, stem = module
                if stem not in files or rank < files[stem][0]:
                    files[stem] = (rank, name)
        packages = {name: start for name in folders if "." not in name and (start := self._start(directory, name))}
        for module_name in sorted(packages.keys() | files.keys() - {"__init__"}):
            self.count += 1
            if self.count > MAX_MODULES:
                raise OSError(f"more than {MAX_MODULES} modules below {directory}")
            full = f"{prefix}{module_name}"
            start = packages.get(module_name)
            path = f"{module_name}/{start}" if start else files[module_name][1]
            parts += [("text", full), ("file", f"{directory}/{path}")]
            if start:
                self.collect(f"{directory}/{module_name}", f"{full}.", parts)

    def _start(self, directory: str, name: str) -> str | None:
        """The file that makes a folder a package, or None."""
        best: tuple[int, str] | None = None
        try:
            entries = self.host.listing(f"{directory}/{name}")
        except NotADirectoryError:
            return None  # a link to a file
        for file, kind in entries:
            module = self._module(file) if kind != "directory" else None
            if module is not None and module[1] == "__init__" and (best is None or module[0] < best[0]):
                best = (module[0], file)
        return best[1] if best else None

    def _module(self, name: str) -> tuple[int, str] | None:
        """(rank of the suffix, module name) of a file name; None where it is no module."""
        for rank, suffix in enumerate(self.suffixes):
            found = suffix.search(name)
            if found is not None:
                stem = name[: found.start()]
                return (rank, stem) if stem and "." not in stem else None
        return None
