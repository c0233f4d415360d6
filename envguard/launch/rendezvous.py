"""Where the nodes of a run meet: from the options, else from torchrun's, a scheduler's or Kubernetes' own words.

Nothing is made up: where the command line says how many nodes there are, it also says where they meet. The store is
opened one port above torchrun's own, which must be free for torchrun when the first node goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envguard.errors import UsageError

DEFAULT_PORT = 29500  # torchrun's
_TORCHRUN = re.compile(r"(?:^|/)torchrun$|^torch\.distributed\.(?:run|launch)$")


@dataclass(frozen=True)
class Rendezvous:
    """`rank` is None where nodes are numbered as they come; `key` tells runs that meet at one place apart."""

    nodes: int
    rank: int | None
    host: str
    port: int
    key: str


def explicit(nodes: int | None, rank: int | None, meet: str | None) -> Rendezvous | None:
    """From `--nodes`, `--node-rank`, `--meet HOST:PORT`. `UsageError` where one is missing or makes no sense."""
    if nodes is None and rank is None and meet is None:
        return None
    if nodes is None or rank is None or meet is None:
        raise UsageError(
            "--nodes, --node-rank and --meet belong together", "each node: how many, which one, and where"
        )
    host, port = _endpoint(meet, "--meet")
    if nodes < 1 or not 0 <= rank < nodes:
        raise UsageError(f"--node-rank {rank} is none of the {nodes} nodes", "ranks count from 0")
    return Rendezvous(nodes, rank, host, port, "envguard") if nodes > 1 else None


def find_rendezvous(command: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """From the command line or the environment; None for one node. Raises `UsageError` for a range of nodes."""
    if any(_TORCHRUN.search(word) for word in command[:4]):
        return _of_torchrun(options_of(command), environ)
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environ:
        return _of_slurm(environ)
    return _of_variables(environ)


def options_of(command: Sequence[str]) -> dict[str, str]:
    """`--name value` and `--name=value` of a command line, names with dashes."""
    found: dict[str, str] = {}
    for position, word in enumerate(command):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            following = command[position + 1] if position + 1 < len(command) else ""
            found.setdefault(name.replace("_", "-"), value if equals else following)
    return found


def _of_torchrun(options: Mapping[str, str], environ: Mapping[str, str]) -> Rendezvous | None:
    def option(name: str) -> str | None:
        return options.get(name) or environ.get("PET_" + name.upper().replace("-", "_"))

    if "standalone" in options:
        return None
    wanted = option("nnodes") or "1"
    if ":" in wanted:
        least, _, most = wanted.partition(":")
        if least != most:
            raise UsageError(
                f"--nnodes {wanted}: nodes that come and go cannot be held against each other before the start",
                "give one number, or say `--nodes N --node-rank K --meet HOST:PORT` for those that begin",
            )
        wanted = least
    nodes = int(wanted) if wanted.isdigit() else 1
    if nodes < 2:
        return None
    endpoint = option("rdzv-endpoint")
    if endpoint:
        host, port = _endpoint(endpoint, "--rdzv-endpoint", DEFAULT_PORT)
    else:
        host, port = option("master-addr") or "127.0.0.1", int(option("master-port") or DEFAULT_PORT)
    number = option("node-rank")
    rank = int(number) if number is not None and number.isdigit() and not endpoint else None
    return Rendezvous(nodes, rank, host, port + 1, f"envguard/{option('rdzv-id') or 'none'}")


def _of_slurm(environ: Mapping[str, str]) -> Rendezvous | None:
    """One launch a task of a job step (`srun envguard launch …`)."""
    tasks = int(environ["SLURM_STEP_NUM_TASKS"])
    host = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1")
    job, step = environ.get("SLURM_JOB_ID", "0"), environ.get("SLURM_STEP_ID", "0")
    # Two jobs on one node must not meet each other; below the kernel's ephemeral ports, whose start is 32768.
    port = 20_000 + (int(job) if job.isdigit() else 0) % 10_000
    return Rendezvous(tasks, int(environ["SLURM_PROCID"]), host, port, f"envguard/{job}.{step}")


def first_host(nodelist: str) -> str:
    """The first of Slurm's host list: `gpu[03-06,9],login1` → `gpu03`."""
    match = re.match(r"([^,\[]+)(?:\[([0-9]+))?", nodelist)
    return f"{match.group(1)}{match.group(2) or ''}" if match else nodelist


def _of_variables(environ: Mapping[str, str]) -> Rendezvous | None:
    """MASTER_ADDR, WORLD_SIZE and RANK, as Kubernetes' training operators set them: one pod a rank."""
    world, rank, host = environ.get("WORLD_SIZE", "1"), environ.get("RANK"), environ.get("MASTER_ADDR")
    if not world.isdigit() or int(world) < 2 or rank is None or not rank.isdigit() or host is None:
        return None
    port = int(environ.get("MASTER_PORT") or DEFAULT_PORT)
    return Rendezvous(int(world), int(rank), host, port + 1, "envguard/variables")


def _endpoint(text: str, option: str, default: int | None = None) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon and default is not None:
        return text, default
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{option} {text!r} is no HOST:PORT", "name the first node, as in `--meet node0:29400`")
    return host.strip("[]"), int(port)
