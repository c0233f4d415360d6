"""Which build of its Python an environment runs on: the program, and its shared library where it has one.

Two builds of one release differ in compiler, options and patches. Size and build-id are those of a build wherever it
is unpacked; conda writes its prefix into the program, so that a digest holds for one place alone.
"""

from __future__ import annotations

import posixpath

from envguard.acquire.memo import Memo, remembered_file
from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host, NotRecorded
from envguard.acquire.section import Notes
from envguard.acquire.torch.elf import CorruptElf, read_build_id
from envguard.model.fingerprint import Binary


def read_binaries(host: Host, env: Environment, memo: Memo, notes: Notes) -> dict[str, Binary] | None:
    """`python`, and the name of a shared library → what is there; None where there is no interpreter, or where a
    bundle of an earlier version does not hold it."""
    if env.executable is None or env.base is None:
        return None
    places = {"python": host.realpath(env.executable)}
    version = ".".join((env.version or "").split(".")[:2])
    abi = (env.abi or "").split("-")
    suffix = "t" if len(abi) > 1 and abi[1].endswith("t") else ""
    library = f"libpython{version}{suffix}.so.1.0"
    places[library] = f"{env.base}/lib/{library}"
    found: dict[str, Binary] = {}
    for name, path in places.items():
        try:
            found[name] = _binary(host, path, memo)
        except (FileNotFoundError, NotADirectoryError):
            continue  # most interpreters are linked statically
        except NotRecorded:
            return None
        except OSError as error:
            notes.unseen(f"python binary {posixpath.basename(path)}", error)
    return found or None


def _binary(host: Host, path: str, memo: Memo) -> Binary:
    stat = host.stat_target(path)
    answer = remembered_file(memo, "binary", path, stat, lambda: f"{_build_id(host, path)} {host.digest(path)}")
    build_id, _, digest = answer.partition(" ")
    return Binary(size=stat.size, build_id=build_id or None, digest=digest)


def _build_id(host: Host, path: str) -> str:
    try:
        return read_build_id(host, path) or ""
    except CorruptElf:
        return ""
