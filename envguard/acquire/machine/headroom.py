"""What a run needs of the machine at this moment: idle GPUs, room in memory and on disk, descriptors.

Read when a launch is about to start, and kept in no fingerprint: all of it is other in a minute.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envguard.acquire.seam.host import Host, Space
from envguard.acquire.section import reason

SHARED_MEMORY = "/dev/shm"
_LIMIT = re.compile(r"^Max open files\s+(\S+)\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class GpuNow:
    """One GPU at this moment; each field is a fact as NVML gave it, or its refusal."""

    index: int
    uuid_digest: str | None
    name: str | None
    facts: Mapping[str, Any]

    def get(self, field: str) -> Any:
        """The value, or None where NVML refused it."""
        fact = self.facts.get(field)
        return fact[1] if fact is not None and fact[0] == "is" else None

    def refusal(self, field: str) -> tuple[int, str] | None:
        """NVML's error number and words, None where it answered."""
        fact = self.facts.get(field)
        if fact is None:
            return 13, "not asked for"
        return None if fact[0] == "is" else (int(fact[1]), str(fact[2]))


@dataclass(frozen=True)
class GpusNow:
    """The GPUs that NVML sees; `all` is None, with the reason in `why`, where it cannot say."""

    all: tuple[GpuNow, ...] | None
    why: str | None = None


@dataclass(frozen=True)
class Disk:
    """A place that will be written to, and how much room there is; `space` None with the reason in `why`."""

    path: str
    space: Space | None
    why: str | None = None


@dataclass(frozen=True)
class Headroom:
    """`open_files` is the soft and the hard limit; None in it means no limit, None in place of it not known."""

    gpus: GpusNow
    shared_memory: Disk
    disks: tuple[Disk, ...]
    open_files: tuple[int | None, int | None] | None
    commands: Mapping[int, str]
    """PID → command line, of the processes that are on a GPU."""


def read_headroom(host: Host, places: Iterable[str]) -> Headroom:
    """`places` are folders that the run will write to; one that is not there yet is judged by its parent."""
    gpus = _gpus(host)
    on_gpu = {int(pid) for gpu in gpus.all or () for pid, _ in gpu.get("processes") or ()}
    return Headroom(
        gpus=gpus,
        shared_memory=_disk(host, SHARED_MEMORY),
        disks=tuple(_disk(host, _existing(host, place)) for place in dict.fromkeys(places)),
        open_files=_open_files(host),
        commands=_commands(host, on_gpu),
    )


def _gpus(host: Host) -> GpusNow:
    try:
        nvml = host.nvml()
    except OSError as error:
        return GpusNow(None, reason(error))
    if nvml["source"] is None:
        return GpusNow((), "no NVML and no nvidia-smi")
    if nvml["source"] != "pynvml":
        return GpusNow(None, "only nvidia-smi is at hand, which is not asked for what changes by the minute")
    if nvml["start"][0] != "is":
        return GpusNow(None, f"NVML refuses: {nvml['start'][2]} (error {nvml['start'][1]})")
    found = []
    for index, facts in enumerate(nvml["gpus"]):
        digest, name = facts.get("uuid_digest", ["refused"]), facts.get("name", ["refused"])
        found.append(
            GpuNow(
                index=index,
                uuid_digest=str(digest[1]) if digest[0] == "is" else None,
                name=str(name[1]) if name[0] == "is" else None,
                facts=facts,
            )
        )
    return GpusNow(tuple(found))


def visible(gpus: tuple[GpuNow, ...], setting: str | None) -> tuple[GpuNow, ...] | None:
    """Those of `gpus` that CUDA_VISIBLE_DEVICES leaves; None where it cannot be told which they are.

    CUDA stops at the first entry that names none, so that `0,-1,1` is GPU 0 alone. A MIG instance is none of the
    whole GPUs. Abbreviated UUIDs (`GPU-3f`) are allowed by CUDA, and cannot be told from a digest.
    """
    if setting is None:
        return gpus
    chosen: list[GpuNow] = []
    for word in (part.strip() for part in setting.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            digest = hashlib.sha256(word.encode()).hexdigest()[:16]
            named = [gpu for gpu in gpus if gpu.uuid_digest == digest]
            if not named:
                return None
            chosen.append(named[0])
        elif word.isdigit() and int(word) < len(gpus):
            chosen.append(gpus[int(word)])
        else:
            break
    return tuple(chosen)


def _existing(host: Host, place: str) -> str:
    while place not in ("/", ""):
        try:
            host.stat_target(place)
            return place
        except OSError:
            place = posixpath.dirname(place)
    return "/"


def _disk(host: Host, path: str) -> Disk:
    try:
        return Disk(path, host.space(path))
    except OSError as error:
        return Disk(path, None, reason(error))


def _open_files(host: Host) -> tuple[int | None, int | None] | None:
    """The limits of this process, which the command inherits."""
    try:
        found = _LIMIT.search(host.read("/proc/self/limits").decode("ascii", "replace"))
    except OSError:
        return None
    if found is None:
        return None
    soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
    return soft, hard


def _commands(host: Host, pids: set[int]) -> Mapping[int, str]:
    if not pids:
        return {}
    return {process.pid: " ".join(process.argv[:3]) for process in host.processes() if process.pid in pids}
