"""The sections of a fingerprint together, on a real venv with the story's wheels."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.acquire.torch.cache_places import launch_place
from envguard.acquire.torch.compile_cache import content_name
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint import snapshot
from envguard.fingerprint.snapshot import Request
from envguard.model.fingerprint import Fingerprint
from envguard.state.digests import Digests
from tests.caches import tag_of, write_cache


class GpuMachine(LiveHost):
    """This machine with GPUs as NVML would name them."""

    def __init__(self, cuda: int = 13000, environ: dict[str, str] | None = None) -> None:
        self.cuda, self.variables = cuda, environ or {}

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == "nvml":
            gpu = {"name": ["is", "NVIDIA H200"], "memory": ["is", 1 << 37], "capability": ["is", [9, 0]]}
            return {
                "source": "pynvml", "start": ["is", None], "count": ["is", 1], "gpus": [gpu], "links": [],
                "driver": ["is", "580.159.04"], "cuda": ["is", self.cuda],
            }  # fmt: skip
        if operation == "environ":
            return self.variables
        return super().call(operation, *arguments)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "inductor"
    folder.mkdir()
    return folder


def take(stage: Stage, host: Host, digests: Digests | None = None, **more: Any) -> Fingerprint:
    root = str(stage.project)
    request = Request(root, str(stage.venv), root, more.pop("config", Config()), **more)
    return snapshot.take(host, request, digests or Digests())


def environ(cache: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache), "NCCL_DEBUG": "INFO"}


def test_a_cold_cache_needs_no_key_and_a_written_one_is_judged_by_it(torch_stage: Stage, cache: Path) -> None:
    host = GpuMachine(environ=environ(cache))
    cache.rmdir()
    cold = take(torch_stage, host)
    assert cold.torch is not None
    assert cold.torch.cache_tag is None
    assert cold.compile_cache is not None
    assert [(found.path, found.verdict) for found in cold.compile_cache] == [(str(cache), "EMPTY")]
    deep = take(torch_stage, host, deep=True)
    assert deep.torch is not None
    tag = deep.torch.cache_tag
    assert tag is not None
    assert deep.id == cold.id
    data = pickle.dumps([f"[{tag}] torch_version: x"])
    entry = cache / "fxgraph" / "ab" / "fab" / content_name(hashlib.sha256(data).hexdigest())
    entry.parent.mkdir(parents=True)
    entry.write_bytes(data)
    digests = Digests()
    warm = take(torch_stage, host, digests)
    assert warm.compile_cache is not None
    assert [found.verdict for found in warm.compile_cache] == ["VALID"]
    assert any(question.startswith("torch_key") for question in digests.memo)
    # One patched module of torch makes the whole cache cold, whatever was kept about the build before.
    patched = torch_stage.site / "torch" / "nn" / "__init__.py"
    fresh = patched.with_name("fresh")
    fresh.write_text("is_fx_symbolic_tracing = lambda: False\n")
    fresh.replace(patched)
    after = take(torch_stage, host, digests)
    assert after.compile_cache is not None
    assert [found.verdict for found in after.compile_cache] == ["FOREIGN"]


def test_every_section_is_there(torch_stage: Stage, cache: Path) -> None:
    (torch_stage.project / "train.jsonl").write_text("{}\n{}\n")
    (torch_stage.project / "run.yaml").write_text("lr: 1\n")
    subprocess.run(["git", "init", "-q"], cwd=torch_stage.project, check=True)
    found = take(
        torch_stage, GpuMachine(environ=environ(cache)), config=Config(data=("train.jsonl",), config=("run.yaml",))
    )
    assert found.driver is not None
    assert found.driver.cuda == "13.0"
    assert found.gpus is not None
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA H200"]
    assert found.data is not None
    assert [(each.path, each.rows) for each in found.data] == [("train.jsonl", 2)]
    assert found.config is not None
    assert [each.files for each in found.config] == [1]
    assert found.env is not None
    assert found.env.variables["NCCL_DEBUG"] == "INFO"
    assert found.system is not None
    assert found.system.kernel == os.uname().release
    assert found.processes == ()
    assert found.code is not None
    assert [code.path for code in found.code] == [str(torch_stage.project)]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Fingerprint) == found


def test_the_id_covers_driver_and_gpus_and_no_variable(torch_stage: Stage, cache: Path) -> None:
    host = GpuMachine(environ=environ(cache))
    first = take(torch_stage, host)
    assert take(torch_stage, GpuMachine(environ={**environ(cache), "RANK": "1", "NCCL_DEBUG": "WARN"})).id == first.id
    assert take(torch_stage, LiveHost()).id != first.id


def kinds(found: Fingerprint) -> set[tuple[str, str]]:
    return {(problem.kind, problem.subject) for problem in found.problems}


def test_pairs_and_the_driver_are_held_against_torch(torch_stage: Stage, cache: Path) -> None:
    vision = {"torchvision/__init__.py": b"", "torchvision/version.py": b"__version__ = '0.26.0+cu130'\n"}
    build_wheel(torch_stage.wheels, "torchvision", "0.26.0", vision, ["torch==2.11.0"])
    build_wheel(torch_stage.wheels, "flash-attn", "2.8.3+cu12torch2.8", requires=["torch"])
    torch_stage.install("torchvision", "flash-attn", arguments=["--no-deps"])
    host = GpuMachine(11080, environ(cache))
    assert kinds(take(torch_stage, host)) >= {
        ("pair", "torchvision"), ("pair", "flash-attn"), ("driver-too-old", "torch"),
    }  # fmt: skip


def test_a_process_on_an_old_torch_is_named_from_what_an_earlier_snapshot_kept(
    torch_stage: Stage, cache: Path
) -> None:
    host, digests = GpuMachine(environ={**environ(cache), "UV_CACHE_DIR": str(torch_stage.cache)}), Digests()
    take(torch_stage, host, digests)
    program = "import torch, sys; print('ready', flush=True); sys.stdin.read()"
    command = [str(torch_stage.python), "-c", program]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        torch_stage.install("torch==2.11.0+cu130")
        found = take(torch_stage, host, digests)
    finally:
        child.communicate()
    assert found.processes is not None
    assert [(process.pid, process.torch) for process in found.processes] == [(child.pid, "2.11.0+cu128")]
    assert ("process-stale", str(child.pid)) in kinds(found)


def test_a_stamp_looks_for_no_process_and_hashes_no_large_data(torch_stage: Stage, cache: Path) -> None:
    (torch_stage.project / "big.bin").write_bytes(bytes(65 << 20))
    host = GpuMachine(environ=environ(cache))
    found = take(torch_stage, host, in_process=True, config=Config(data=("big.bin",)))
    assert found.processes is None
    assert found.data is not None
    assert found.data[0].digest is None
    assert any(item.what == "data big.bin" for item in found.unknown)


def test_a_probe_of_an_environment_whose_torch_raises_is_a_finding_among_facts(
    torch_stage: Stage, cache: Path
) -> None:
    (torch_stage.site / "torch" / "__init__.py").unlink()
    (torch_stage.site / "torch" / "__init__.py").write_text("raise RuntimeError('broken')")
    found = take(torch_stage, GpuMachine(environ=environ(cache)), probe=True)
    assert found.torch is not None
    assert found.torch.version == "2.11.0+cu128"
    assert found.runtime is not None
    assert found.runtime.error == "RuntimeError: broken"
    assert ("torch-import", "torch") in kinds(found)
    assert found.gpus is not None
    assert found.gpus[0].context_bytes is None


def test_a_probe_tells_when_torch_cannot_use_the_gpus_that_are_there(torch_stage: Stage, cache: Path) -> None:
    with (torch_stage.site / "torch" / "__init__.py").open("a") as stream:
        stream.write("\nclass cuda:\n    is_available = staticmethod(lambda: False)\n")
        stream.write("class version:\n    cuda = '12.8'\n")
    found = take(torch_stage, GpuMachine(environ=environ(cache)), probe=True)
    assert ("cuda-unavailable", "torch") in kinds(found)


def test_a_bundle_gives_the_same_fingerprint(torch_stage: Stage, cache: Path) -> None:
    recording = RecordingHost(GpuMachine(environ=environ(cache)))
    config = Config(config=("*.yaml",))
    (torch_stage.project / "run.yaml").write_text("lr: 1\n")
    live = take(torch_stage, recording, config=config)
    assert take(torch_stage, BundleHost(recording.record, "x"), config=config) == live


def test_live_looks_where_a_fingerprint_of_this_machine_had_its_cache(torch_stage: Stage, cache: Path) -> None:
    """A trainer sets its own place: no variable of the shell that looks afterwards names it."""
    write_cache(cache, tag_of(torch_stage))
    ran = take(torch_stage, GpuMachine(environ=environ(cache)))
    shell = GpuMachine(environ={"HOME": str(torch_stage.home), "TMPDIR": str(torch_stage.tmp)})
    default = f"{torch_stage.tmp}/torchinductor_{shell.machine().user}"

    def seen(*witnesses: Fingerprint, **more: Any) -> dict[str, str]:
        found = take(torch_stage, shell, witnesses=witnesses, **more).compile_cache
        assert found is not None
        return {each.path: each.verdict for each in found}

    assert seen() == {default: "EMPTY"}
    assert seen(ran) == {default: "EMPTY", str(cache): "VALID"}
    assert seen(ran, in_process=True) == {default: "EMPTY"}, "a trainer knows its own"
    shutil.rmtree(cache)
    assert seen(ran) == {default: "EMPTY", str(cache): "EMPTY"}
    assert ran.system is not None
    elsewhere = msgspec.structs.replace(ran, system=msgspec.structs.replace(ran.system, host="another"))
    assert seen(elsewhere) == {default: "EMPTY"}


def test_the_place_that_launch_gives_its_command_is_looked_at(torch_stage: Stage) -> None:
    shell = GpuMachine(environ={"HOME": str(torch_stage.home), "TMPDIR": str(torch_stage.tmp)})
    env = locate(shell, str(torch_stage.venv), str(torch_stage.project))
    private = launch_place(shell, shell.environ(), env.site, env.abi or "")
    assert private is not None
    write_cache(Path(private), tag_of(torch_stage))
    found = take(torch_stage, shell).compile_cache
    assert found is not None
    assert [(each.path, each.verdict) for each in found][1:] == [(private, "VALID")]


def test_a_pattern_in_the_configuration_finds_the_folder_of_each_build(torch_stage: Stage) -> None:
    config = Config(compile_caches=(".cache/inductor/*",))
    shell = GpuMachine(environ={"HOME": str(torch_stage.home), "TMPDIR": str(torch_stage.tmp)})
    nothing = take(torch_stage, shell, config=config).compile_cache
    assert nothing is not None
    assert [each.verdict for each in nothing] == ["EMPTY"], "the default place, and none that the pattern would name"
    write_cache(torch_stage.project / ".cache" / "inductor" / "torch-2.11.0+cu128", tag_of(torch_stage))
    found = take(torch_stage, shell, config=config).compile_cache
    assert found is not None
    assert [each.verdict for each in found] == ["EMPTY", "VALID"]
