"""What a start of Python runs before the program: lines of code in .pth files, and the modules that `site` imports if
they are there. Nothing of it is run here."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envguard.acquire.packages.sys_path import PthLine
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes

if TYPE_CHECKING:
    from envguard.acquire.packages.distributions import Distributions
    from envguard.acquire.packages.environment import Environment

# Put there by the makers of virtual environments themselves, which list them nowhere.
_OWN_PTH = frozenset({"_virtualenv.pth", "distutils-precedence.pth", "_uv_ephemeral_overlay.pth"})


@dataclass(frozen=True)
class Customizer:
    """`sitecustomize` or `usercustomize`, by the file that an import of that name finds first."""

    name: str
    path: str


@dataclass(frozen=True)
class StartupFile:
    """A file of no package that has a say in every start; times in ns since the epoch."""

    path: str
    what: str
    mtime_ns: int
    btime_ns: int | None


def is_strange(line: PthLine) -> bool:
    """Whether a line of a .pth runs code or leads out of the environment, and is not of the makers of venvs."""
    if posixpath.basename(line.file) in _OWN_PTH:
        return False
    return line.kind == "code" or (line.kind == "path" and line.leaves)


def read_customizers(host: Host, env: Environment, notes: Notes) -> Iterator[Customizer]:
    """Those that a start of this environment imports. What comes with Python itself or with the system's packages
    answers to them, and keeps later ones from being found."""
    # As `site` does: a venv that lets no other site-packages in asks for no usercustomize.
    origins = {entry.origin for entry in env.sys_path}
    names = ["sitecustomize"]
    if env.kind != "venv" or origins & {"user site", "system site"}:
        names.append("usercustomize")
    for name in names:
        found = _first(host, env, name, notes)
        if found is not None:
            yield found


def _first(host: Host, env: Environment, name: str, notes: Notes) -> Customizer | None:
    for entry in env.sys_path:
        for path in (f"{entry.path}/{name}/__init__.py", f"{entry.path}/{name}.py"):
            try:
                if host.find(path) is None:
                    continue
            except OSError as error:
                notes.unseen(f"whether {path} is run by every start", error)
                continue
            return None if entry.origin == "stdlib" or "/dist-packages/" in path else Customizer(name, path)
    return None


def read_startup_files(
    host: Host, env: Environment, distributions: Distributions, notes: Notes
) -> tuple[StartupFile, ...]:
    """Every .pth and customizer of the environment's own folders that no RECORD lists, with its times."""
    said = {line.file: "runs code" if line.kind == "code" else f"adds {line.path}"
            for line in reversed(env.pth) if is_strange(line)}  # fmt: skip
    said |= {item.path: "is imported" for item in read_customizers(host, env, notes)}
    found = []
    for path, what in sorted(said.items()):
        folder = next((item for item in env.site if path.startswith(f"{item}/")), None)
        if folder is None or not path.startswith(f"{env.prefix}/"):
            continue
        if any(dist.location == folder and dist.lists(path[len(folder) + 1 :]) for dist in distributions.found):
            continue
        try:
            stat = host.find(path)
        except OSError as error:
            notes.unseen(f"time of {path}", error)
            continue
        if stat is not None:
            found.append(StartupFile(path, what, stat.mtime_ns, stat.btime_ns))
    return tuple(found)
