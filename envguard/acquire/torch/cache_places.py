"""Where the compile caches of an environment lie, by the rules of inductor and triton themselves.

inductor's own `cache_dir()` makes the folder and writes the environment, so it is never called: the rules are those
of `default_cache_dir` in `torch/_inductor/runtime/cache_dir_utils.py` and of `triton/knobs.py`.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envguard.acquire.seam.host import Host, Machine, NotRecorded
from envguard.acquire.seam.patterns import is_pattern, matching
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import CacheKind

INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
EXTENSIONS = "TORCH_EXTENSIONS_DIR"
Kind = CacheKind
# The folder that a library gives its cache by default, and so the kind of one that is not there any more.
_BY_NAME: dict[str, Kind] = {
    "torch_extensions": "torch_extensions", "vllm": "vllm", "torch_compile_cache": "vllm", "flashinfer": "flashinfer",
    ".flashinfer": "flashinfer",
}  # fmt: skip
_EXTENSIONS = re.compile(r"py\d+t?_(cu\d*|cpu|rocm\S*|xpu\S*)")
_TRITON = re.compile(r"[A-Za-z0-9_-]{32,}")


@dataclass(frozen=True)
class Place:
    """A folder that is, or would be, a compile cache; `how` says what names it."""

    kind: Kind
    path: str
    how: str
    default: bool = False
    own: bool = True
    """Named by the variables of whoever asks or by the configuration, and not by those of another process."""


def cache_places(
    host: Host,
    configured: Iterable[str],
    environs: Iterable[Mapping[str, str]] = (),
    base: str = "/",
    unknown: list[Unknown] | None = None,
) -> tuple[Place, ...]:
    """Each cache once, most telling first.

    `configured` are paths and shell patterns from the configuration (relative ones to `base`), `environs` those of
    the environment's living processes: a trainer may have been started with other variables than envguard. A folder
    that a pattern leads to and that cannot be listed goes into `unknown`.
    """
    machine = host.machine()
    found: dict[str, Place] = {}
    own = host.environ()
    for environ in (*environs, own):
        for place in (*_named(environ, machine), *_extensions(host, environ, machine)):
            if place.path not in found or environ is own:
                found[place.path] = replace(place, own=environ is own)
    for path in configured:
        for absolute in _folders(host, _absolute(path, base, machine), unknown):
            found.setdefault(absolute, Place(_kind(host, absolute), absolute, "configuration"))
    return tuple(found.values())


def _folders(host: Host, path: str, unknown: list[Unknown] | None) -> list[str]:
    """The path itself, there or not; of a pattern the folders that fit: one that nothing fits is no empty cache.

    As in a shell a mark stands for no hidden name, such as that of a folder that is being made under another one.
    """

    def unseen(error: OSError) -> None:
        if unknown is not None:
            unknown.append(Unknown.refused(f"compile_cache {path}", error))

    if not is_pattern(path) or _is_folder(host, path):
        return [path]
    hidden = posixpath.basename(path).startswith(".")
    found = [each for each in matching(host, path, unseen) if hidden or not posixpath.basename(each).startswith(".")]
    return [each for each in found if _is_folder(host, each)]


def _is_folder(host: Host, path: str) -> bool:
    try:
        return host.stat_target(path).is_directory
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return not is_pattern(path)  # it is there: its reader says why it cannot be seen


def launch_place(host: Host, environ: Mapping[str, str], site: Sequence[str], abi: str) -> str | None:
    """The private compile cache that `envguard launch` gives a command of this torch build; None where the user has
    set one (`TORCHINDUCTOR_CACHE_DIR`) or there is no torch.

    inductor's default is `/tmp/torchinductor_<user>`: a name that anyone may take first (its entries are pickles),
    in a folder that a reboot or a tidy colleague empties. Builds get folders of their own, so that going back to the
    old build finds the old cache warm.
    """
    if environ.get(INDUCTOR_CACHE):
        return None
    home = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else None)
    if home is None or not home.startswith("/"):
        return None
    build = _build(host, site, abi)
    return None if build is None else posixpath.join(posixpath.normpath(home), "envguard", "inductor", build)


def _build(host: Host, site: Sequence[str], abi: str) -> str | None:
    """A folder name for the build: torch's version, and a digest of what else decides whether entries fit."""
    for folder in site:
        try:
            text = host.read(f"{folder}/torch/version.py", limit=65536)
            names = [name for name, kind in host.listing(folder) if kind == "directory"]
        except OSError:
            continue
        parts = [name for name in names if name.endswith(".dist-info") and name.startswith(("torch-", "triton-"))]
        digest = hashlib.sha256(b"\0".join([text, abi.encode(), *(os.fsencode(part) for part in parts)])).hexdigest()
        version = next((part[6:-10] for part in parts if part.startswith("torch-")), "unknown")
        return f"torch-{version}-{digest[:10]}"
    return None


def filled_launch_place(host: Host, environ: Mapping[str, str], site: Sequence[str], abi: str) -> Place | None:
    """`launch`'s private cache where it holds anything; the folder alone is made before its first run compiles."""
    path = launch_place(host, environ, site, abi)
    try:
        return Place("inductor", path, "envguard launch") if path is not None and host.listing(path) else None
    except (FileNotFoundError, NotADirectoryError, NotRecorded):
        return None  # a bundle in which nobody asked for it is of a machine that had none, or of an older envguard
    except OSError:
        return Place("inductor", str(path), "envguard launch")  # its reader says why it cannot be seen


def _named(environ: Mapping[str, str], machine: Machine) -> list[Place]:
    home = environ.get("HOME") or machine.home
    if environ.get(INDUCTOR_CACHE):
        path = _absolute(environ[INDUCTOR_CACHE], machine.cwd, machine)
        places = [Place("inductor", path, INDUCTOR_CACHE)]
    else:
        places = [Place("inductor", _default(environ, machine), "inductor's default", default=True)]
    if environ.get("TRITON_CACHE_DIR"):
        path = _absolute(environ["TRITON_CACHE_DIR"], machine.cwd, machine)
        places.append(Place("triton", path, "TRITON_CACHE_DIR"))
    else:
        root = environ.get("TRITON_HOME") or home
        places.append(Place("triton", f"{root.rstrip('/')}/.triton/cache", "triton's default", default=True))
    return places


def _extensions(host: Host, environ: Mapping[str, str], machine: Machine) -> list[Place]:
    """Where `torch.utils.cpp_extension.load` keeps what it compiled: named by a variable, else where it is there."""
    if environ.get(EXTENSIONS):
        return [Place("torch_extensions", _absolute(environ[EXTENSIONS], machine.cwd, machine), EXTENSIONS)]
    home = environ.get("HOME") or machine.home
    path = f"{(environ.get('XDG_CACHE_HOME') or f'{home}/.cache').rstrip('/')}/torch_extensions"
    try:
        there = host.find(path) is not None
    except NotRecorded:
        there = False  # a bundle of an envguard that did not ask
    except OSError:
        there = True  # its reader says why it cannot be seen
    return [Place("torch_extensions", path, "torch's default")] if there else []


def _default(environ: Mapping[str, str], machine: Machine) -> str:
    """`<tmp>/torchinductor_<user>`; the user as `getpass.getuser` finds him."""
    names = (environ.get(name) for name in ("LOGNAME", "USER"))
    user = next((name for name in names if name), machine.user)
    folder = environ.get("TMPDIR") or machine.tmpdir
    return f"{folder.rstrip('/')}/torchinductor_{re.sub(r'[/:*?<>|]', '_', user)}"


def _absolute(path: str, base: str, machine: Machine) -> str:
    if path == "~" or path.startswith("~/"):
        path = machine.home + path[1:]
    return (path if path.startswith("/") else f"{base.rstrip('/')}/{path}").rstrip("/") or "/"


def _kind(host: Host, path: str) -> Kind:
    """By what lies in it: inductor keeps folders of two characters and named ones, triton folders of long hashes,
    torch_extensions one a Python and accelerator. By its name where nothing lies there."""
    named = _BY_NAME.get(posixpath.basename(path))
    try:
        names = [name for name, kind in host.listing(path) if kind == "directory"]
    except OSError:
        return named or "inductor"
    if any(_EXTENSIONS.fullmatch(name) for name in names):
        return "torch_extensions"
    if named is not None:
        return named
    if not names or any(name in ("fxgraph", "aotautograd", "triton", "locks") or len(name) == 2 for name in names):
        return "inductor"
    return "triton" if any(_TRITON.fullmatch(name) for name in names) else "other"
