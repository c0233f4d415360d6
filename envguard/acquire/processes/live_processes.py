"""Living processes of an environment, and what was replaced underneath them.

A reinstall gives every file a new inode at the old path; a process that mapped the old one keeps running it. The
kernel shows that: the mapped name is "(deleted)", or the name now leads to another inode.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from envguard import clock
from envguard.acquire.seam.host import Host, Process
from envguard.acquire.seam.host import Mapping as MappedFile
from envguard.acquire.section import Notes, Section
from envguard.acquire.torch.mapped_builds import LoadedTorch, MappedBuilds, StaleFile
from envguard.model.fingerprint import LiveProcess, Problem

if TYPE_CHECKING:
    from envguard.acquire.packages.environment import Environment

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?$")
MAX_COMMAND = 1000


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
    torch: LoadedTorch | None = None
    """Set where a library of torch is stale."""
    environ: dict[str, str] = field(default_factory=dict, repr=False)
    """Its allow-listed variables, without secrets."""

    def as_model(self) -> LiveProcess:
        return LiveProcess(
            pid=self.pid,
            started=clock.iso(self.started),
            command=self.command,
            stale=tuple(file.path for file in self.stale),
            torch=self.torch.version if self.torch is not None else None,
        )

    def as_problem(self) -> Problem | None:
        """What is wrong where files were replaced underneath; None in a sound process."""
        if not self.stale:
            return None
        if self.torch is not None:
            old = f"the old torch {self.torch.version}" if self.torch.version else "an old torch (version not known)"
            says = f"process {self.pid} still runs {old}: {self.torch.library} was replaced underneath it"
        else:
            more = f" and {len(self.stale) - 1} more files" if len(self.stale) > 1 else ""
            says = f"process {self.pid} still runs files that were replaced underneath it: {self.stale[0].path}{more}"
        return Problem(kind="process-stale", subject=str(self.pid), says=says, path=self.stale[0].path)


def roots_of(env: Environment) -> tuple[str, ...]:
    """The folders whose files belong to this environment and to no other."""
    if env.kind == "system":
        # /usr holds every program of the machine: only site-packages tells this Python's users from the rest.
        return tuple(env.site)
    return tuple(dict.fromkeys((env.prefix, *env.site)))


def read_processes(
    host: Host,
    env: Environment,
    leave_out: frozenset[int] = frozenset(),
    uv_caches: tuple[str, ...] = (),
    builds: Mapping[str, str] | None = None,
) -> Section[tuple[EnvironmentProcess, ...]]:
    """The environment's living processes in PID order, without those in `leave_out` (envguard itself).

    A file that was replaced by the same build is not stale: what runs is what lies there. Where a torch library is
    stale, its old version is sought by inode in the archives of `uv_caches` and by build-id in `builds` (build-id →
    full version, from earlier fingerprints).
    """
    notes = Notes()
    roots = roots_of(env)
    try:
        living = host.processes(roots)
    except OSError as error:
        notes.unseen("processes", error)
        return notes.section(())
    mapped = MappedBuilds(host, env.site, uv_caches, builds or {})
    namespace = _namespace(host, "self")
    found = []
    for process in living:
        how = None if process.pid in leave_out else _belongs(process, env, roots)
        if how is None or _lives_elsewhere(host, process, namespace):
            continue
        if "maps" in process.refused:
            notes.unseen(f"processes: libraries of {process.pid}", "its maps may not be read by this user")
        stale = mapped.changed(process.pid, _stale(host, process, roots, notes))
        command = " ".join(process.argv)
        command = command if len(command) <= MAX_COMMAND else f"{command[:MAX_COMMAND]}…"
        torch = mapped.torch(process.pid, stale)
        found.append(
            EnvironmentProcess(process.pid, process.started, command, process.uid, how, stale, torch, process.environ)
        )
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


def _namespace(host: Host, pid: str) -> str | None:
    try:
        return host.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None  # another user's process, or a kernel without namespaces: its paths are taken as ours


def _lives_elsewhere(host: Host, process: Process, ours: str | None) -> bool:
    """Another mount namespace, where the same path names another file: a container with its own `/opt/venv`.

    It is ours all the same where one of its mapped files is a file of ours, by device and inode.
    """
    theirs = _namespace(host, str(process.pid))
    if ours is None or theirs is None or ours == theirs:
        return False
    for mapping in process.maps:
        try:
            here = host.stat_target(mapping.path)
        except OSError:
            continue
        if (here.inode, here.device) == (mapping.inode, mapping.device):
            return False
    return True


def _stale(host: Host, process: Process, roots: tuple[str, ...], notes: Notes) -> tuple[StaleFile, ...]:
    under = tuple(f"{root}/" for root in roots)
    found, uncertain = [], []
    for mapping in process.maps:
        if not mapping.path.startswith(under):
            continue
        state = "gone" if mapping.deleted else _state(host, mapping, notes)
        if state == "gone":
            found.append(StaleFile(mapping.path, mapping.inode, mapping.deleted, mapping.device))
        elif state == "uncertain":
            uncertain.append(mapping.path)
    if uncertain:
        why = f"this file system's inode numbers cannot be compared with the mapped ones ({uncertain[0]})"
        notes.unseen(f"processes: replaced libraries of {process.pid}", why)
    return tuple(found)


def _state(host: Host, mapping: MappedFile, notes: Notes) -> Literal["same", "gone", "uncertain"]:
    try:
        now = host.stat_target(mapping.path)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except OSError as error:
        notes.unseen(f"processes: whether {mapping.path} is still the mapped file", error)
        return "same"
    if now.inode == mapping.inode:
        return "same"
    # On an overlay the map may name the inode of the layer below: a difference proves nothing there.
    return "gone" if mapping.device in (None, now.device) else "uncertain"
