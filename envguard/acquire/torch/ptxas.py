"""Which CUDA the assemblers come from that triton (and some torch wheels) carry inside.

triton compiles every kernel with its own ptxas, whatever CUDA torch was built for: a triton of the same version with
another ptxas makes other machine code. The version stands in the binary as a plain string.
"""

from __future__ import annotations

import re

from envguard.acquire.memo import Memo, remembered_file
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes

FOLDERS = ("triton/backends/nvidia/bin", "torch/bin")
RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
MAX_BYTES = 256 << 20
_CHUNK = 4 << 20
_OVERLAP = 64


def read_ptxas(host: Host, roots: tuple[str, ...], memo: Memo, notes: Notes) -> dict[str, str]:
    """Name of each bundled ptxas → its version ("12.8.93"); the first root that has a folder wins, as import does."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for root in roots:
            try:
                names = [name for name, kind in host.listing(f"{root}/{folder}") if kind in ("file", "link")]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                notes.unseen(f"torch: ptxas in {root}/{folder}", error)
                continue
            for name in names:
                if name.startswith("ptxas"):
                    label = name if folder.startswith("triton/") else f"torch/{name}"
                    _take(host, f"{root}/{folder}/{name}", label, memo, notes, found)
            break
    return found


def _take(host: Host, path: str, label: str, memo: Memo, notes: Notes, found: dict[str, str]) -> None:
    try:
        stat = host.stat_target(path)
        version = remembered_file(memo, "ptxas", path, stat, lambda: _version(host, path))
    except OSError as error:
        notes.unseen(f"torch: version of {label}", error)
        return
    if version:
        found[label] = version
    else:
        notes.unseen(f"torch: version of {label}", "the binary names none")


def _version(host: Host, path: str) -> str:
    """The version string inside, "" where there is none; read in pieces, so that memory stays small."""
    tail = b""
    for offset in range(0, MAX_BYTES, _CHUNK):
        chunk = host.read(path, _CHUNK, offset)
        match = RELEASE.search(tail + chunk)
        if match is not None:
            return match.group(1).decode()
        if len(chunk) < _CHUNK:
            break
        tail = chunk[-_OVERLAP:]
    return ""
