"""Where the compile caches of an environment lie, by the rules of inductor and triton themselves.

inductor's own `cache_dir()` makes the folder and writes the environment, so it is never called: the rules are those
of `default_cache_dir` in `torch/_inductor/runtime/cache_dir_utils.py` and of `triton/knobs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from envguard.acquire.seam.host import Host, Machine

Kind = Literal["inductor", "triton"]


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
    host: Host, configured: Iterable[str], environs: Iterable[Mapping[str, str]] = (), base: str = "/"
) -> tuple[Place, ...]:
    """Each cache once, most telling first.

    `configured` are paths from the configuration (relative ones to `base`), `environs` those of the environment's
    living processes: a trainer may have been started with other variables than envguard.
    """
    machine = host.machine()
    found: dict[str, Place] = {}
    own = host.environ()
    for environ in (*environs, own):
        for place in _named(environ, machine):
            if place.path not in found or environ is own:
                found[place.path] = replace(place, own=environ is own)
    for path in configured:
        absolute = _absolute(path, base, machine)
        found.setdefault(absolute, Place(_kind(host, absolute), absolute, "configuration"))
    return tuple(found.values())


def _named(environ: Mapping[str, str], machine: Machine) -> list[Place]:
    home = environ.get("HOME") or machine.home
    if environ.get("TORCHINDUCTOR_CACHE_DIR"):
        path = _absolute(environ["TORCHINDUCTOR_CACHE_DIR"], machine.cwd, machine)
        places = [Place("inductor", path, "TORCHINDUCTOR_CACHE_DIR")]
    else:
        places = [Place("inductor", _default(environ, machine), "inductor's default", default=True)]
    if environ.get("TRITON_CACHE_DIR"):
        path = _absolute(environ["TRITON_CACHE_DIR"], machine.cwd, machine)
        places.append(Place("triton", path, "TRITON_CACHE_DIR"))
    else:
        root = environ.get("TRITON_HOME") or home
        places.append(Place("triton", f"{root.rstrip('/')}/.triton/cache", "triton's default", default=True))
    return places


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
    """By what lies in it: inductor keeps folders of two characters and named ones, triton folders of long hashes."""
    try:
        names = [name for name, kind in host.listing(path) if kind == "directory"]
    except OSError:
        return "inductor"
    inductor = any(name in ("fxgraph", "aotautograd", "triton", "locks") or len(name) == 2 for name in names)
    return "inductor" if inductor or not names else "triton"
