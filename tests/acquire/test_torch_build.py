"""The torch build, read from the files of real installs that are sound, damaged, mixed or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.section import Section
from envguard.acquire.torch.torch_build import (
    UnreadableVersion,
    parse_version_file,
    read_pairs,
    read_torch,
)
from envguard.demo.elf import build_id
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel, stand_in_torch, torch_version_py
from envguard.model.fingerprint import Torch
from tests.permissions import held_host, unreadable

HOST = LiveHost()
_TAG = "cu12torch2.8cxx11abiTRUE"


def torch_of(stage: Stage, memo: dict[str, str] | None = None, host: Host = HOST) -> Section[Torch | None]:
    env = locate(host, str(stage.venv), str(stage.project))
    return read_torch(host, env, read_distributions(host, env), memo)


def test_a_sound_install_is_read_without_running_it(torch_stage: Stage) -> None:
    (torch_stage.site / "torch" / "__init__.py").write_text("raise RuntimeError('broken')")
    section = torch_of(torch_stage)
    torch = section.value
    assert torch is not None
    assert (torch.version, torch.metadata_version, torch.cuda) == ("2.11.0+cu128", "2.11.0+cu128", "12.8")
    assert (torch.debug, torch.hip, torch.triton) == (False, None, "3.6.0")
    assert torch.git_version is not None
    assert torch.ptxas == {"ptxas": "12.8.93"}
    assert torch.libraries == {
        "libc10.so": build_id("torch 2.11.0+cu128 c10 "),
        "libtorch_cpu.so": build_id("torch 2.11.0+cu128 cpu "),
        "libtorch_cuda.so": build_id("torch 2.11.0+cu128 cuda "),
    }
    assert section.problems == ()
    assert section.unknown == ()


def test_no_torch_is_a_fact(stage: Stage) -> None:
    assert torch_of(stage) == Section(None)


def test_a_pypi_wheel_whose_metadata_has_no_local_tag_is_sound(stage: Stage) -> None:
    plain = stand_in_torch(stage.wheels, "2.11.0", triton=None)
    stage.install(str(plain))
    (stage.site / "torch" / "version.py").write_bytes(torch_version_py("2.11.0+cu130"))
    section = torch_of(stage)
    assert section.value is not None
    assert (section.value.version, section.value.metadata_version) == ("2.11.0+cu130", "2.11.0")
    assert section.problems == ()


@pytest.mark.parametrize("written", ["2.11.0+cu130", "2.10.0+cu128", "2.11.0"])
def test_files_of_another_build_under_the_same_dist_info_are_a_mixture(torch_stage: Stage, written: str) -> None:
    replace(torch_stage.site / "torch" / "version.py", torch_version_py(written))
    (problem,) = torch_of(torch_stage).problems
    assert problem.kind == "torch-metadata"
    assert written in problem.says
    assert "2.11.0+cu128" in problem.says


def replace(path: Path, data: bytes) -> None:
    """By rename, as an installer does: the cache's copy of the file stays what it is."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


def test_a_version_file_that_is_no_python_leaves_the_dist_info_to_speak(torch_stage: Stage) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    replace(torch_stage.site / "torch" / "version.py", pointer)
    section = torch_of(torch_stage)
    assert section.value is not None
    assert (section.value.version, section.value.metadata_version) == (None, "2.11.0+cu128")
    (problem,) = section.problems
    assert (problem.kind, "Git LFS pointer" in problem.says) == ("torch-version", True)


def test_version_code_is_never_executed(torch_stage: Stage, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')\n__version__ = '9.9'\ncuda = __import__('os').name\n"
    replace(torch_stage.site / "torch" / "version.py", code.encode())
    section = torch_of(torch_stage)
    assert section.value is not None
    assert (section.value.version, section.value.cuda) == ("9.9", None)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b"__version__ = \"2.6.0a0+df5b.nv24.11\"\r\ncuda = '12.6'\r\n", ("2.6.0a0+df5b.nv24.11", "12.6")),
        (b"import typing\n__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'  # built\n", ("2.11.0", "13.0")),
        (b"__version__ = '2.11.0'\ncuda = None\n", ("2.11.0", None)),
        (b"__version__ = '1'\n__version__ = '2'\n", ("2", None)),
        (b"if True:\n    cuda = '1'\n__version__ = '2'\n", ("2", None)),
    ],
)
def test_the_forms_of_a_version_file(text: bytes, fields: tuple[str, str | None]) -> None:
    found = parse_version_file(text)
    assert (found.version, found.cuda) == fields


@pytest.mark.parametrize("text", [b"", b"\n \n", b"\x00\x01\xff", b"__version__ = version()\n", b"cuda = '12.8'\n"])
def test_a_version_file_without_a_version_says_so(text: bytes) -> None:
    with pytest.raises(UnreadableVersion):
        parse_version_file(text)


def test_a_torn_install_is_named_and_the_rest_is_there(torch_stage: Stage) -> None:
    library = torch_stage.site / "torch" / "lib" / "libtorch_cuda.so"
    whole = library.read_bytes()
    replace(library, whole[:100])
    replace(library.with_name("libc10.so"), b"")
    section = torch_of(torch_stage)
    assert section.value is not None
    assert section.value.libraries["libtorch_cuda.so"] is None
    assert section.value.libraries["libtorch_cpu.so"] == build_id("torch 2.11.0+cu128 cpu ")
    assert [(problem.kind, problem.subject) for problem in section.problems] == [
        ("library-damaged", "libc10.so"),
        ("library-damaged", "libtorch_cuda.so"),
    ]


def test_a_dist_info_without_files_and_files_without_a_dist_info(torch_stage: Stage) -> None:
    torch = torch_stage.site / "torch"
    torch.rename(torch.with_name("elsewhere"))
    section = torch_of(torch_stage)
    assert section.value is not None
    assert (section.value.version, section.value.metadata_version) == (None, "2.11.0+cu128")
    assert [problem.kind for problem in section.problems] == ["torch-missing"]
    torch.with_name("elsewhere").rename(torch)
    (torch_stage.site / "torch-2.11.0+cu128.dist-info").rename(torch_stage.site / "gone")
    section = torch_of(torch_stage)
    assert section.value is not None
    assert (section.value.version, section.value.metadata_version) == ("2.11.0+cu128", None)
    assert [problem.kind for problem in section.problems] == ["torch-metadata"]


def test_what_may_not_be_read_is_unknown_and_not_absent(torch_stage: Stage) -> None:
    with unreadable(torch_stage.site / "torch" / "lib"), held_host() as host:
        section = torch_of(torch_stage, host=host)
    assert [item.what for item in section.unknown] == ["torch libraries"]


def test_ptxas_is_searched_once_and_again_when_it_was_replaced(torch_stage: Stage) -> None:
    path = torch_stage.site / "triton" / "backends" / "nvidia" / "bin" / "ptxas"
    filler = bytes(5 << 20)
    replace(path, filler + b"Cuda compilation tools, release 12.9, V12.9.86\0" + filler)
    os.utime(path, (1, 1))
    memo: dict[str, str] = {}
    for _ in range(2):
        torch = torch_of(torch_stage, memo).value
        assert torch is not None
        assert torch.ptxas == {"ptxas": "12.9.86"}
    replace(path, filler)
    section = torch_of(torch_stage, memo)
    assert section.value is not None
    assert section.value.ptxas == {}
    assert [item.what for item in section.unknown] == ["torch: version of ptxas"]


def test_the_version_string_is_found_across_a_border_of_two_pieces(torch_stage: Stage) -> None:
    path = torch_stage.site / "triton" / "backends" / "nvidia" / "bin" / "ptxas"
    replace(path, bytes((4 << 20) - 10) + b"release 13.0, V13.0.48" + bytes(100))
    torch = torch_of(torch_stage).value
    assert torch is not None
    assert torch.ptxas == {"ptxas": "13.0.48"}


def test_the_packages_that_require_torch_with_their_full_versions(torch_stage: Stage) -> None:
    build_wheel(
        torch_stage.wheels, "torch-like", "1.0", requires=["torchao>=1; extra == 'x'", "torch; extra == 'gpu'"]
    )
    vision = {"torchvision/__init__.py": b"", "torchvision/version.py": b"__version__ = '0.26.0+cu130'\n"}
    build_wheel(torch_stage.wheels, "torchvision", "0.26.0", vision, ["torch==2.11.0"])
    # Compiled for torch without requiring it in METADATA, and with the tag in the name of the wheel alone.
    build_wheel(torch_stage.wheels, "torch-scatter", "2.1.2+pt26cu124")
    build_wheel(torch_stage.wheels, "jaxlib", "0.7.0+cuda12")
    named = build_wheel(torch_stage.wheels, "flash-attn", "2.8.3", requires=["torch"])
    torch_stage.install("torch-like", "torchvision", "torch-scatter", "jaxlib", str(named))
    url = f"https://github.com/Dao-AILab/flash-attention/releases/flash_attn-2.8.3%2B{_TAG}-cp311-cp311-linux_x86_64.whl"
    replace(
        torch_stage.site / "flash_attn-2.8.3.dist-info" / "direct_url.json",
        json.dumps({"url": url, "archive_info": {}}).encode(),
    )
    env = locate(HOST, str(torch_stage.venv), str(torch_stage.project))
    dists = read_distributions(HOST, env)
    torch = read_torch(HOST, env, dists).value
    assert read_pairs(HOST, torch, dists) == {
        "torchvision": "0.26.0+cu130",
        "torch-scatter": "2.1.2+pt26cu124",
        "flash-attn": f"2.8.3+{_TAG}",
    }


@pytest.mark.parametrize(
    ("lines", "built_for"),
    [
        ("cuda = '12.8'\nhip = None\nxpu = None\n", "CUDA 12.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", "ROCm 6.4.43482"),
        ("cuda = None\nhip = None\nxpu = '20250101'\n", "XPU 20250101"),
        ("cuda = None\nhip = None\nxpu = None\n", "CPU"),
        ("", "CPU"),
    ],
)
def test_what_a_build_computes_on_stands_in_version_py(torch_stage: Stage, lines: str, built_for: str) -> None:
    replace(torch_stage.site / "torch" / "version.py", f"__version__ = '2.11.0+cu128'\n{lines}".encode())
    torch = torch_of(torch_stage).value
    assert torch is not None
    assert torch.built_for == built_for
