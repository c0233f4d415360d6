"""What a plan can say before anything is done: whose environment it is, who runs from it, who may write to it."""

from __future__ import annotations

import os
from pathlib import Path

from envguard.acquire.packages.environment import Environment
from envguard.acquire.runs.elsewhere import said_of_another
from envguard.acquire.seam.host import Host
from envguard.restore.locks import occupants, who_may
from envguard.restore.wanted import Target


def of_another(host: Host, env: Environment, target: Target) -> str | None:
    """That the reference is of another environment, which is still there: this one would be made like it."""
    return said_of_another(host, target.reference, target.fingerprint, env.prefix, env.how)


def in_the_way(host: Host, env: Environment) -> list[str]:
    """Why a restore would be refused as things are now, though its plan is sound."""
    found = []
    living = occupants(host, env)
    if living:
        pids = ", ".join(str(process.pid) for process in living[:5])
        found.append(
            f"{len(living)} process(es) run from {env.prefix} (PID {pids}): a restore is refused until they end, or "
            "with --force goes ahead under them"
        )
    closed = next((path for path in (env.prefix, *env.site) if not os.access(path, os.W_OK)), None)
    if closed is not None:
        found.append(f"{closed} cannot be written by this user: {who_may(Path(closed))}")
    return found
