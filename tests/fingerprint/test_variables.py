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


def read(start: dict[str, str] | None = None) -> Environment:
    section = read_variables(LiveHost(), start)
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


def test_what_a_process_made_of_its_start_is_kept_beside_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"NCCL_DEBUG": "INFO", "CUDA_CACHE_PATH": "/a", "TORCH_LOGS": "+dynamo", "PATH": "/bin", "EDITOR": "vi"}
    now = {"NCCL_DEBUG": "INFO", "CUDA_CACHE_PATH": "/b", "TRITON_PTXAS_PATH": "/p", "PATH": "/opt", "PAGER": "less"}
    for name, value in now.items():
        monkeypatch.setenv(name, value)
    found = read(start)
    assert found.variables == {"NCCL_DEBUG": "INFO", "CUDA_CACHE_PATH": "/b", "TRITON_PTXAS_PATH": "/p"}
    assert found.started == {"CUDA_CACHE_PATH": "/a", "TORCH_LOGS": "+dynamo", "TRITON_PTXAS_PATH": None}
    assert read().started is None
    for name in now:
        monkeypatch.delenv(name)
    for name, value in start.items():
        monkeypatch.setenv(name, value)
    assert read(start).started == {}
    assert read().digest == read(start).digest == found.digest  # the shell's, the first stamp's, a later one's


def test_a_secret_of_the_start_is_stored_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {
        "NCCL_AUTH_TOKEN": "hunter2", "TORCH_HUB": "hf_hunter2hunter2hunter2", "HF_HOME": "/hf",
        "WANDB_API_KEY": "hunter2", "CUDA_MIRROR": "https://ada:hunter2@mirror.example/simple",
    }  # fmt: skip
    monkeypatch.setenv("TORCH_HUB", "/hub")
    monkeypatch.setenv("HF_HOME", "hf_hunter2hunter2hunter2")
    monkeypatch.setenv("TRITON_API_KEY", "hunter2")
    found = read(start)
    assert "hunter2" not in msgspec.json.encode(found).decode()
    assert found.withheld == ("HF_HOME", "TRITON_API_KEY")
    # Of one whose value was a secret then nothing is said; one whose value is a secret now was plain text then.
    assert found.started == {"HF_HOME": "/hf", "CUDA_MIRROR": "https://mirror.example/simple"}


def test_a_record_from_before_there_was_one() -> None:
    old = msgspec.json.decode(b'{"digest":"d","variables":{"A":"1"},"withheld":[]}', type=Environment)
    assert old == Environment(digest="d", variables={"A": "1"})
    assert old.started is None
