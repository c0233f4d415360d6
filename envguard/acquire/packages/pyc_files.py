"""`.pyc` headers: which source the interpreter compiled, and so which source was there at the first import.

A header holds the source's mtime and size. Where the source is another one now, and the `.pyc` was not yet made anew,
the header still tells that an older source was imported.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envguard.acquire.packages.installs import Install
from envguard.acquire.seam.host import Host
from envguard.clock import NS

MOST = 400


@dataclass(frozen=True)
class Compiled:
    """One `.pyc` (times in ns): when it was written, and of which source (whole seconds), against the source now."""

    package: str
    path: str
    source: str
    written_ns: int
    source_mtime_s: int
    source_size: int
    now_mtime_s: int | None
    now_size: int | None

    @property
    def of_another_source(self) -> bool:
        """The source that was compiled is not the one that lies there now."""
        return (self.now_mtime_s, self.now_size) != (self.source_mtime_s, self.source_size)


def read_pycs(host: Host, installs: tuple[Install, ...], tag: str | None) -> tuple[Compiled, ...]:
    """The `.pyc` of each package's own `__init__.py` and `version.py`: when the package was first imported."""
    found = []
    for install in installs[:MOST]:
        top = install.name.replace("-", "_")
        for module in ("__init__", "version"):
            folder = f"{install.location}/{top}"
            path = f"{folder}/__pycache__/{module}.{tag}.pyc"
            compiled = _read(host, install.name, path, f"{folder}/{module}.py")
            if compiled is not None:
                found.append(compiled)
    return tuple(found)


def _read(host: Host, package: str, path: str, source: str) -> Compiled | None:
    try:
        stat = host.find(path)
        if stat is None:
            return None
        header = host.read(path, 16)
        now = host.find(source)
    except OSError:
        return None  # no witness: an unreadable .pyc says nothing, and others date the install
    if len(header) < 16:
        return None
    flags, mtime, size = struct.unpack_from("<III", header, 4)
    if flags & 1:
        return None  # checked by hash: holds no time
    return Compiled(
        package=package,
        path=path,
        source=source,
        written_ns=stat.mtime_ns,
        source_mtime_s=mtime,
        source_size=size,
        now_mtime_s=now.mtime_ns // NS & 0xFFFFFFFF if now else None,
        now_size=now.size & 0xFFFFFFFF if now else None,
    )
