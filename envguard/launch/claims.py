"""Two launches on one GPU: each running launch holds a claim on its GPUs, and a second one is told to try later.

A process shows on a GPU only once it has made a CUDA context, which a trainer does minutes after its start. The claim
is a listening socket in Linux's abstract namespace: no file to leave behind, gone with the process that holds it, and
seen by every user of this machine (of this network namespace). Nothing is ever sent over it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envguard.acquire.seam.host import Host

# Launches that a scheduler starts together share their GPUs by intent: one a rank, each with its own LOCAL_RANK.
_TOGETHER = ("SLURM_STEP_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")


@dataclass
class Claims:
    """The GPUs that this launch holds, and those that others hold: GPU key → PID of the holder."""

    held: list[socket.socket] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)

    def release(self) -> None:
        for item in self.held:
            item.close()
        self.held.clear()


def claim(host: Host, keys: Iterable[str], environ: Mapping[str, str]) -> Claims:
    """Claims each GPU that is free. The sockets are not inherited by the command."""
    claims = Claims()
    for key in keys:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"\0envguard/gpu/{key}")
            listener.listen(8)
            claims.held.append(listener)
        except OSError:
            listener.close()
            holder = _holder(key)
            if holder is not None and not _together(host, holder, environ):
                claims.taken[key] = holder
    return claims


def _holder(key: str) -> int | None:
    """The PID behind a claim; None where it has gone meanwhile."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, contextlib.suppress(OSError):
        asking.settimeout(1.0)
        asking.connect(f"\0envguard/gpu/{key}")
        data = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", data)[0])
    return None


def _together(host: Host, holder: int, environ: Mapping[str, str]) -> bool:
    """Whether the holder was started by the same job step as we."""
    if holder == os.getpid():
        return True
    ours = {name: environ[name] for name in _TOGETHER if name in environ}
    if not ours:
        return False
    try:
        pairs = os.fsdecode(host.read(f"/proc/{holder}/environ", 1 << 20)).split("\0")
    except OSError:
        return False  # another user's: no job of ours
    theirs = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return all(theirs.get(name) == value for name, value in ours.items())
