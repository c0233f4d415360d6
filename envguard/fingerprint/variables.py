"""The environment variables that a run depends on, without secrets."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase

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


def read_variables(host: Host) -> Section[Environment | None]:
    """Allow-listed variables of whoever asks; the digest leaves out what each rank has for itself."""
    notes = Notes()
    try:
        seen, withheld = host.environ(), host.withheld()
    except OSError as error:
        notes.unseen("env", error)
        return notes.section(None)
    hidden = {name for name in withheld if name.startswith(RUN_PREFIXES)}
    variables = {
        name: value for name, value in sorted(seen.items()) if name.startswith(RUN_PREFIXES) and name not in hidden
    }
    return notes.section(Environment(digest=_digest(variables), variables=variables, withheld=tuple(sorted(hidden))))


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
