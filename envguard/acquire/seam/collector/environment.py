"""The environment variables that a witness may see: of this process, and of another one's list of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .redaction import is_secret_variable, redact, spans

# Environment variables that a witness may want. Everything else stays where it is: a variable that is not listed
# is never read into a fact, so a secret cannot reach a file by being forgotten on a deny-list.
ENVIRONMENT_PREFIXES = (
    "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "TORCH", "TRITON_", "PYTORCH_", "INDUCTOR", "OMP_", "MKL_",
    "OPENBLAS_", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_", "TRANSFORMERS_", "TOKENIZERS_", "XDG_", "UV_",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "HOME",
    "USER", "LOGNAME", "TMPDIR", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "GLOO_", "UCX_", "FLASH_ATTENTION_", "XFORMERS_", "ENVGUARD_", "DEEPSPEED_", "ACCELERATE_",
    "KUBERNETES_SERVICE_HOST", "container",
)  # fmt: skip


def environ() -> dict[str, str]:
    """The environment variables that a witness may see, without secrets."""
    return visible_environment(os.environ.items())


def visible_environment(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    kept = {}
    for name, value in items:
        if name.startswith(ENVIRONMENT_PREFIXES) and not is_secret_variable(name):
            kept[name] = redact(value)
    return kept


def withheld() -> list[str]:
    """Names of listed variables whose value looks like a secret, or holds one; no value leaves here."""
    return withheld_names(os.environ.items())


def withheld_names(items: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(
        name
        for name, value in items
        if name.startswith(ENVIRONMENT_PREFIXES) and (is_secret_variable(name) or _hidden(value))
    )


def _hidden(value: str) -> bool:
    """Whether the value holds a secret beside user info, which goes from a URL without a trace."""
    return any(not is_user for _, _, is_user in spans(value.encode("utf-8", "surrogateescape")))
