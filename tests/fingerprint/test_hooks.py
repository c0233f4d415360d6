"""Packages that came later and run by themselves, by real installs of real wheels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel

CODE = b"import os; os.environ.setdefault('X', '1')\n"


def entry_points(name: str, text: str) -> dict[str, bytes]:
    return {f"{name}/__init__.py": b"", f"{name}-1.0.dist-info/entry_points.txt": text.encode()}


NEWCOMERS: dict[str, tuple[dict[str, bytes], str]] = {
    "pth-code": ({"newcomer.pth": CODE}, "newcomer.pth"),
    "pth-import": ({"newcomer/__init__.py": b"", "zz_newcomer.pth": b"import newcomer\n"}, "zz_newcomer.pth"),
    "pth-path": ({"newcomer.pth": b"/tmp\n"}, "/tmp"),
    "sitecustomize": ({"sitecustomize.py": b"X = 1\n"}, "sitecustomize"),
    "sitecustomize package": ({"sitecustomize/__init__.py": b"X = 1\n"}, "sitecustomize"),
    "torch.backends": (entry_points("newcomer", "[torch.backends]\nnpu = newcomer:load\n"), "torch.backends: npu"),
    "torchrun.handlers": (entry_points("newcomer", "[torchrun.handlers]\nx = newcomer:x\n"), "torchrun.handlers: x"),
    "triton.backends": (entry_points("newcomer", "[triton.backends]\nfoo = newcomer\n"), "triton.backends: foo"),
    "vllm.general_plugins": (
        entry_points("newcomer", "[console_scripts]\nn = newcomer:main\n\n[vllm.general_plugins]\nx = newcomer:x\n"),
        "vllm.general_plugins: x",
    ),
    "vllm.platform_plugins": (
        entry_points("newcomer", "[vllm.platform_plugins]\nx=newcomer:x"),
        "platform_plugins: x",
    ),
    "lightning": (
        entry_points("newcomer", "[lightning.pytorch.callbacks_factory]\nx = newcomer:x\n"),
        "lightning.pytorch.callbacks_factory: x",
    ),
    "jax_plugins": (entry_points("newcomer", "[jax_plugins]\nx = newcomer\n"), "jax_plugins: x"),
    "inside torch": ({"torch/_new_backend.py": b"X = 1\n"}, "torch of torch"),
    "inside a part of a namespace": ({"nvidia/cublas/late.py": b"X = 1\n"}, "nvidia/cublas of nvidia-cublas-cu12"),
    "inside deeper": ({"transformers/models/mine/__init__.py": b""}, "transformers of transformers"),
}
HARMLESS: dict[str, dict[str, bytes]] = {
    "plain": {"newcomer/__init__.py": b""},
    "console scripts": entry_points("newcomer", "[console_scripts]\nnewcomer = newcomer:main\n"),
    "pytest plugin": entry_points("newcomer", "[pytest11]\nx = newcomer\n"),
    "named backend": entry_points("newcomer", "[torch_dynamo_backends]\nx = newcomer:x\n"),
    "path inside": {"newcomer/__init__.py": b"", "newcomer.pth": b"newcomer\n"},
    "a namespace": {"google/newcomer/__init__.py": b""},
    "a part of its own": {"nvidia/newcomer/__init__.py": b""},
    "comment": {"newcomer/__init__.py": b"", "newcomer.pth": b"# import os\n"},
}


def rows(stage: Stage) -> dict[str, dict[str, Any]]:
    done = stage.envguard("diff", "step_690", "--json")
    return {item["subject"]: item for item in json.loads(done.stdout)["drifts"] if item["facet"] == "packages"}


@pytest.fixture
def stamped(torch_stage: Stage) -> Stage:
    build_wheel(torch_stage.wheels, "nvidia-cublas-cu12", "12.8", {"nvidia/cublas/__init__.py": b""})
    torch_stage.install("nvidia-cublas-cu12")
    build_wheel(torch_stage.wheels, "google-one", "1.0", {"google/one/__init__.py": b""})
    torch_stage.install("transformers==5.6.0", "google-one")
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    torch_stage.envguard("snapshot", "--into", str(torch_stage.checkpoints / "step_690"))
    return torch_stage


@pytest.mark.parametrize("kind", NEWCOMERS)
def test_a_newcomer_that_runs_by_itself_warns_and_is_named(stamped: Stage, kind: str) -> None:
    files, named = NEWCOMERS[kind]
    build_wheel(stamped.wheels, "newcomer", "1.0", files)
    stamped.install("newcomer")
    row = rows(stamped)["newcomer"]
    assert row["severity"] == "warn"
    assert named in row["why"]


@pytest.mark.parametrize("kind", HARMLESS)
def test_one_that_waits_to_be_asked_is_info(stamped: Stage, kind: str) -> None:
    build_wheel(stamped.wheels, "newcomer", "1.0", HARMLESS[kind])
    stamped.install("newcomer")
    assert rows(stamped)["newcomer"]["severity"] == "info"


def test_another_version_that_begins_to_run_by_itself_is_named(torch_stage: Stage) -> None:
    build_wheel(torch_stage.wheels, "litellm", "1.82.7")
    build_wheel(torch_stage.wheels, "litellm", "1.82.8", {"litellm/__init__.py": b"", "litellm_init.pth": CODE})
    torch_stage.install("litellm==1.82.7")
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    torch_stage.envguard("snapshot", "--into", str(torch_stage.checkpoints / "step_690"))
    torch_stage.install("litellm==1.82.8")
    done = torch_stage.envguard("diff", "step_690", "--json")
    whys = [item["why"] for item in json.loads(done.stdout)["drifts"] if item["subject"] == "litellm"]
    assert done.returncode == 1
    assert any("litellm_init.pth runs at every start" in why for why in whys)


@pytest.mark.parametrize("kind", ["pth-code", "torch.backends", "inside torch"])
def test_the_timeline_has_it_in_a_finding(stamped: Stage, kind: str) -> None:
    files, named = NEWCOMERS[kind]
    build_wheel(stamped.wheels, "newcomer", "1.0", files)
    stamped.install("newcomer")
    done = stamped.envguard("timeline", "--since-checkpoint", "step_690", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert any("newcomer" in item["title"] + item["says"] for item in answer["findings"])
    assert any(named in item["says"] for item in answer["findings"])
    kinds = [item["kind"] for item in answer["events"] if item["subject"] == "newcomer"]
    assert kinds == ["package.installed"]
