"""Living processes of an environment, and what was replaced underneath them.

A reinstall gives every file a new inode at the old path; a process that mapped the old one keeps running it. The
kernel shows that: the mapped name is "(deleted)", or the name now leads to another inode.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envguard import clock
from envguard.acquire.host import Host, Mapping, Process, Stat
from envguard.acquire.section import Notes, Section
from envguard.model.fingerprint import LiveProcess

if TYPE_CHECKING:
    from envguard.acquire.environment import Environment

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*$")


@dataclass(frozen=True)
class StaleFile:
    """A mapped file that is no longer what its path names; `inode` is the mapped one."""

    path: str
    inode: int
    deleted: bool


@dataclass(frozen=True)
class EnvironmentProcess:
    """A living process that runs from the environment; times in seconds since the epoch."""

    pid: int
    started: float
    command: str
    uid: int
    how: str
    """Which fact ties it to the environment: "maps", "executable", "command" or "VIRTUAL_ENV"."""
    stale: tuple[StaleFile, ...]

    def as_model(self) -> LiveProcess:
        return LiveProcess(
            pid=self.pid,
            started=clock.iso(self.started),
            command=self.command,
            stale=tuple(file.path for file in self.stale),
        )


def roots_of(env: Environment) -> tuple[str, ...]:
    """The folders whose files belong to this environment and to no other."""
    if env.kind == "system":
        # /usr holds every program of the machine: only site-packages tells this Python's users from the rest.
        return tuple(env.site)
    return tuple(dict.fromkeys((env.prefix, *env.site)))


def read_processes(
    host: Host, env: Environment, leave_out: frozenset[int] = frozenset()
) -> Section[tuple[EnvironmentProcess, ...]]:
    """The environment's living processes in PID order, without those in `leave_out` (envguard itself)."""
    notes = Notes()
    roots = roots_of(env)
    try:
        living = host.processes(roots)
    except OSError as error:
        notes.unseen("processes", error)
        return notes.section(())
    found = []
    for process in living:
        how = None if process.pid in leave_out else _belongs(process, env, roots)
        if how is None:
            continue
        if "maps" in process.refused:
            notes.unseen(f"libraries of process {process.pid}", "its maps are another user's")
        stale = _stale(host, process.maps, roots, notes)
        command = " ".join(process.argv)
        found.append(EnvironmentProcess(process.pid, process.started, command, process.uid, how, stale))
    return notes.section(tuple(found))


def _belongs(process: Process, env: Environment, roots: tuple[str, ...]) -> str | None:
    under = tuple(f"{root}/" for root in roots)
    if any(mapping.path.startswith(under) for mapping in process.maps):
        return "maps"
    if process.exe is not None and process.exe.startswith(under):
        return "executable"
    if process.argv and (process.argv[0].startswith(under) or process.argv[0] == env.executable):
        return "command"
    # A shell in which the environment is merely activated runs nothing of it.
    name = posixpath.basename(process.exe or (process.argv[0] if process.argv else ""))
    if process.environ.get("VIRTUAL_ENV") == env.prefix and _PYTHON.match(name):
        return "VIRTUAL_ENV"
    return None


def _stale(host: Host, maps: tuple[Mapping, ...], roots: tuple[str, ...], notes: Notes) -> tuple[StaleFile, ...]:
    under = tuple(f"{root}/" for root in roots)
    found = []
    for mapping in maps:
        if not mapping.path.startswith(under):
            continue
        if mapping.deleted or _replaced(host, mapping, notes):
            found.append(StaleFile(mapping.path, mapping.inode, mapping.deleted))
    return tuple(found)


def _replaced(host: Host, mapping: Mapping, notes: Notes) -> bool:
    try:
        now: Stat = host.stat_target(mapping.path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        notes.unseen(f"whether {mapping.path} is still the mapped file", error)
        return False
    return now.inode != mapping.inode
