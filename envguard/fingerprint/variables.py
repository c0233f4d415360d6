"""The environment variables that a run depends on, without secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from envguard.acquire.seam.collector.environment import visible_environment, withheld_names
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, Section
from envguard.fingerprint.rules import PER_RANK
from envguard.model.fingerprint import Environment

# The collector sees more, since places are found by it (HOME, PATH, XDG_*): these alone decide how a run computes.
RUN_PREFIXES = (
    "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "TORCH", "TRITON_", "PYTORCH_", "INDUCTOR", "OMP_", "MKL_",
    "OPENBLAS_",
    "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_", "TRANSFORMERS_", "TOKENIZERS_", "PYTHON", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "GLOO_", "UCX_", "FLASH_ATTENTION_", "XFORMERS_", "DEEPSPEED_", "ACCELERATE_",
)  # fmt: skip
# A launcher that gives each rank its number may give it its GPUs in the same breath; without one the mask is a
# choice for the whole run.
MASKS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def read_variables(host: Host, start: Mapping[str, str] | None = None) -> Section[Environment | None]:
    """Allow-listed variables of whoever asks; the digest leaves out what each rank has for itself.

    `start` are all variables as this process was started with them, where it is the process that counts: what differs
    is kept, and nothing of it but what would be kept of `os.environ`.
    """
    notes = Notes()
    try:
        seen, withheld = host.environ(), host.withheld()
    except OSError as error:
        notes.unseen("env", error)
        return notes.section(None)
    variables, hidden = _of_a_run(seen, withheld)
    started = _started(start, variables) if start is not None else None
    # The digest is of what was handed over: a stamp before the first kernel is compiled and one after it, and the
    # shell that started both, are of one environment, whatever torch has written into its own since.
    handed = {**variables, **(started or {})}
    return notes.section(
        Environment(
            digest=_digest({name: value for name, value in handed.items() if value is not None}),
            variables=variables,
            withheld=tuple(sorted(hidden)),
            started=started,
        )
    )


def _of_a_run(seen: Mapping[str, str], withheld: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """The variables that decide how a run computes, and the names of those whose value is stored nowhere."""
    hidden = {name for name in withheld if name.startswith(RUN_PREFIXES)}
    kept = {
        name: value for name, value in sorted(seen.items()) if name.startswith(RUN_PREFIXES) and name not in hidden
    }
    return kept, hidden


def _started(start: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str | None]:
    """What was otherwise at the start. Of a value that was withheld then nothing is claimed: it can be compared with
    nothing."""
    then, hidden = _of_a_run(visible_environment(start.items()), withheld_names(start.items()))
    return {
        name: then.get(name)
        for name in sorted(then.keys() | variables.keys())
        if name not in hidden and then.get(name) != variables.get(name)
    }


def is_per_rank(name: str) -> bool:
    """Whether a launcher sets the variable for each rank."""
    return any(fnmatchcase(name, pattern) for pattern in PER_RANK.split("|"))


def _digest(variables: dict[str, str]) -> str:
    ranked = any(is_per_rank(name) for name in variables)
    hasher = hashlib.sha256()
    for name, value in sorted(variables.items()):
        if not is_per_rank(name) and not (ranked and name in MASKS):
            hasher.update(f"{name}={value}\0".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()
