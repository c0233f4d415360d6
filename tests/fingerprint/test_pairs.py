"""Which packages fit the torch beside them."""

from __future__ import annotations

import pytest

from envguard.fingerprint.pairs import check_driver, check_pairs
from envguard.model.fingerprint import Torch
from envguard.model.local_version import LocalTag, parse_local
from tests.fingerprint import made


def tag(*torch: tuple[int, int], cuda: tuple[int, int | None] | None = None) -> LocalTag:
    return LocalTag("cuda" if cuda else None, cuda, frozenset(torch))


@pytest.mark.parametrize(
    ("version", "states"),
    [
        ("0.26.0", tag()),
        ("0.26.0+cu128", tag(cuda=(12, 8))),
        ("0.4.0+cu92", tag(cuda=(9, 2))),
        ("0.9.2+cu118", tag(cuda=(11, 8))),
        ("0.26.0+cpu", LocalTag("cpu")),
        ("0.23.0+rocm6.4", LocalTag("rocm")),
        ("2.8.10+xpu", LocalTag("xpu")),
        ("2.8.3+cu12torch2.8cxx11abiTRUE", tag((2, 8), cuda=(12, None))),
        ("2.7.4.post1+cu124torch2.6cxx11abiFALSE", tag((2, 6), cuda=(12, 4))),
        ("2.7.4+rocm6.2torch2.5", LocalTag("rocm", None, frozenset({(2, 5)}))),
        ("2.1.2+pt28cu129", tag((2, 8), cuda=(12, 9))),
        ("2.1.2+pt20cpu", LocalTag("cpu", None, frozenset({(2, 0)}))),
        ("2.1.0+pt112cu116", tag((1, 1), (1, 12), cuda=(11, 6))),
        ("2.1.2+pt210cu128", tag((2, 1), (2, 10), cuda=(12, 8))),  # 2.10 and 2.1.0 are written alike
        ("0.7.8+pt2.4.0cu121", tag((2, 4), cuda=(12, 1))),
        ("0.6+18f6958pt2.5.1cu121", tag((2, 5), cuda=(12, 1))),
        ("0.6+2a420edpt2.1.1cu121", tag((2, 1), cuda=(12, 1))),
        ("0.17.5+torch260cu124", tag((2, 6), cuda=(12, 4))),
        ("0.15.1+torch200cu118", tag((2, 0), cuda=(11, 8))),
        ("0.21.1+torch2100cu128", tag((2, 10), cuda=(12, 8))),
        ("0.14.6+torch1121cu116", tag((1, 12), cuda=(11, 6))),
        ("2.2.0+cu124torch2.6.0", tag((2, 6), cuda=(12, 4))),
        ("1.0+torch2.11.cu130", tag((2, 11), cuda=(13, 0))),
        ("1.0+cu128.torch2.9.0.dev20250801", tag((2, 9), cuda=(12, 8))),
        ("1.0+pytorch2.7", tag((2, 7))),
        ("1.0+pt240cu121", tag((2, 4), cuda=(12, 1))),
        ("1.0+git3a5b9cu", tag()),
        ("1.0+gpt2", tag()),
        ("2.6.0a0+df5bbc09d1.nv24.11", tag()),
    ],
)
def test_a_local_tag_states_what_a_wheel_was_built_for(version: str, states: LocalTag) -> None:
    assert parse_local(version) == states


def a_torch(version: str, cuda: str | None) -> Torch:
    return made.torch(version, cuda, hip="6.4" if "+rocm" in version else None)


@pytest.mark.parametrize(
    ("torch", "cuda", "name", "version"),
    [
        ("2.11.0+cu130", "13.0", "torchvision", "0.26.0+cu130"),
        ("2.11.0+cu130", "13.0", "torchvision", "0.26.0"),
        ("2.13.0+cpu", None, "torchvision", "0.28.0+cpu"),
        ("2.15.0", "13.0", "torchvision", "0.29.2"),
        ("2.9.1+cu128", "12.8", "torchaudio", "2.9.1+cu128"),
        ("2.13.0", "13.0", "torchaudio", "2.11.1"),
        ("2.8.0+cu128", "12.8", "flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE"),
        ("2.8.0+cu128", "12.8", "sgl-kernel", "0.3.0+cu126"),  # one major version: newer minors run
        ("2.10.0+cu128", "12.8", "torch-scatter", "2.1.2+pt210cu128"),
        ("2.1.0+cu121", "12.1", "torch-scatter", "2.1.2+pt210cu121"),
        ("2.8.0+rocm6.4", None, "torchvision", "0.23.0+rocm6.4"),
        ("2.8.0+xpu", None, "torchvision", "0.23.0+xpu"),
        ("2.9.0.dev20250801+cu128", "12.8", "gsplat", "1.5.0+pt29cu128"),
        ("3.0.0", "13.0", "torchvision", "0.26.0"),  # no rule about a torch that is not known yet
    ],
)
def test_a_pair_that_fits_is_no_problem(torch: str, cuda: str | None, name: str, version: str) -> None:
    assert check_pairs(a_torch(torch, cuda), {name: version}) == ()


@pytest.mark.parametrize(
    ("torch", "cuda", "name", "version", "says"),
    [
        ("2.11.0+cu130", "13.0", "torchvision", "0.25.0", "is built for torch 2.10"),
        ("2.13.0", "13.0", "torchvision", "0.29.1", "is built for torch 2.14 or newer"),
        ("2.11.0+cu130", "13.0", "torchaudio", "2.10.0", "is built for torch 2.10"),
        ("2.10.0+cu128", "12.8", "torchaudio", "2.11.1", "is built for torch 2.11 or newer"),
        ("2.11.0+cu130", "13.0", "torchvision", "0.26.0+cu128", "for CUDA 12"),
        ("2.11.0+cu130", "13.0", "torchvision", "0.26.0+cpu", "is a CPU build"),
        ("2.11.0+cpu", None, "torchvision", "0.26.0+cu130", "is a CUDA build"),
        ("2.9.0+cu128", "12.8", "flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE", "for torch 2.8"),
        ("2.11.0+cu130", "13.0", "sgl-kernel", "0.3.0+cu129", "for CUDA 12"),
        ("2.7.0+cu126", "12.6", "natten", "0.17.5+torch260cu124", "for torch 2.6"),
        ("2.7.0+cu126", "12.6", "torch-scatter", "2.1.2+pt26cu124", "for torch 2.6"),
        ("2.7.0+cu126", "12.6", "sageattention", "2.2.0+cu124torch2.6.0", "for torch 2.6"),
        ("2.7.0+cu126", "12.6", "torch-sparse", "0.6.18+pt210cu126", "for torch 2.1 or 2.10"),
        ("2.5.1+cu121", "12.1", "detectron2", "0.6+2a420edpt2.1.1cu121", "for torch 2.1"),
        ("2.8.0+rocm6.4", None, "torchvision", "0.23.0+cu128", "is a CUDA build"),
        ("2.8.0+cu128", "12.8", "torchvision", "0.23.0+rocm6.4", "is a ROCm build"),
        ("2.8.0+xpu", None, "torchvision", "0.23.0+cpu", "is a CPU build"),
    ],
)
def test_a_pair_that_does_not_fit_is_named(torch: str, cuda: str | None, name: str, version: str, says: str) -> None:
    (problem,) = check_pairs(a_torch(torch, cuda), {"numpy": "2.0", name: version})
    assert problem.kind == "pair"
    assert problem.subject == name
    assert says in problem.says


def test_a_driver_must_know_the_major_version_of_the_build() -> None:
    assert check_driver("12.8", "12.2") == ()
    assert check_driver("12.8", "13.0") == ()
    assert check_driver(None, "12.2") == ()
    assert check_driver("13.0", None) == ()
    (problem,) = check_driver("13.0", "12.8")
    assert problem.kind == "driver-too-old"
    assert "CUDA 13.0" in problem.says
