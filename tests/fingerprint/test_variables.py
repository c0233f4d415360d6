"""Environment variables: what a run depends on is kept, what is a secret is stored nowhere."""

from __future__ import annotations

import os

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.fingerprint.variables import read_variables
from envguard.model.fingerprint import Environment


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)


def read() -> Environment:
    section = read_variables(LiveHost())
    assert section.unknown == ()
    assert section.value is not None
    return section.value


def test_what_a_run_depends_on_is_kept_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        "CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "+dynamo", "OMP_NUM_THREADS": "8",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "HF_HOME": "/hf", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    other = {"HOME": "/root", "PATH": "/bin", "USER": "ada", "EDITOR": "vi", "PS1": "$", "UV_CACHE_DIR": "/c"}
    for name, value in {**kept, **other}.items():
        monkeypatch.setenv(name, value)
    assert read().variables == kept


def test_a_secret_is_named_and_stored_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "NCCL_AUTH_TOKEN": "hunter2", "TRITON_API_KEY": "hunter2", "TORCH_HUB": "hf_hunter2hunter2hunter2",
        "ACCELERATE_ARGS": "--password=hunter2", "HF_HOME": "ghp_hunter2hunter2hunter2hunter2",
    }  # fmt: skip
    for name, value in {**secrets, "WANDB_API_KEY": "hunter2", "HF_TOKEN": "hunter2"}.items():
        monkeypatch.setenv(name, value)
    found = read()
    assert "hunter2" not in msgspec.json.encode(found).decode()
    assert found.withheld == tuple(sorted(secrets))
    assert found.variables == {}


def test_user_info_leaves_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MIRROR", "https://ada:hunter2@mirror.example/simple")
    assert read().variables == {"CUDA_MIRROR": "https://mirror.example/simple"}


def test_ranks_of_one_run_share_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    digests = set()
    for rank in ("0", "1"):
        for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.setenv(name, rank)
        found = read()
        assert found.variables["LOCAL_RANK"] == rank
        digests.add(found.digest)
    assert len(digests) == 1
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert read().digest not in digests


def test_without_ranks_the_mask_of_gpus_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    first = read().digest
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert read().digest != first


def test_a_value_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    os.environb[b"TORCH_HOME"] = b"/caf\xe9"
    try:
        assert read().digest
    finally:
        del os.environb[b"TORCH_HOME"]
