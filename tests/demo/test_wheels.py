"""The stand-ins are real where it matters: the loader maps the library, uv installs the wheel, RECORD is right."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envguard.demo import elf, wheels
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage


def test_the_library_is_loaded_by_the_real_loader_in_the_stage_venv(torch_stage: Stage) -> None:
    program = "import torch; print(torch.__version__, torch.cuda); print(open('/proc/self/maps').read())"
    done = subprocess.run([torch_stage.python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2.11.0+cu128 12.8\n")
    assert "torch/lib/libtorch_cuda.so" in done.stdout


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_identities() -> None:
    assert elf.shared_library("a.so", "x") == elf.shared_library("a.so", "x")
    assert elf.build_id("x") != elf.build_id("y")
    assert bytes.fromhex(elf.build_id("x")) in elf.shared_library("a.so", "x")


def test_two_builds_of_one_version_differ_in_record_only(tmp_path: Path) -> None:
    first = wheels.stand_in_torch(tmp_path / "a", "2.11.0+cu128")
    second = wheels.stand_in_torch(tmp_path / "b", "2.11.0+cu128", seed="rebuilt")
    assert first.name == second.name
    assert first.read_bytes() != second.read_bytes()


@pytest.mark.parametrize(("version", "cuda"), [("2.11.0+cu128", "'12.8'"), ("2.13.0+cpu", "None"), ("2.9.1", "None")])
def test_version_py_names_cuda_from_the_local_version(version: str, cuda: str) -> None:
    assert f"cuda: Optional[str] = {cuda}\n" in wheels.torch_version_py(version).decode()


def test_uv_installs_from_the_loopback_index_and_keeps_url_and_hash(stage: Stage, story_wheels: Path) -> None:
    with serve_index(story_wheels) as index:
        stage.install("sglang", index=index)
    pointers = list(stage.cache.glob("wheels-v*/index/*/torch/*.http"))
    assert len(pointers) == 1
    content = pointers[0].read_bytes()
    assert b"/files/torch-2.11.0%2Bcu130-py3-none-any.whl" in content
