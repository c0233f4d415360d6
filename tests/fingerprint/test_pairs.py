"""Which packages fit the torch beside them."""

from __future__ import annotations

import pytest

from envguard.fingerprint.pairs import LocalTag, check_driver, check_pairs, parse_local


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.26.0", LocalTag()),
        ("0.26.0+cu128", LocalTag(cuda=(12, 8))),
        ("0.26.0+cpu", LocalTag(cpu=True)),
        ("2.8.3+cu12torch2.8cxx11abiTRUE", LocalTag(cuda=(12, None), torch=(2, 8))),
        ("2.1.2+pt28cu129", LocalTag(cuda=(12, 9), torch=(2, 8))),
        ("0.7.8+pt2.4.0cu121", LocalTag(cuda=(12, 1), torch=(2, 4))),
        ("1.0+torch2.11.cu130", LocalTag(cuda=(13, 0), torch=(2, 11))),
        ("1.0+pt240cu121", LocalTag(cuda=(12, 1))),
        ("1.0+git3a5b9cu", LocalTag()),
        ("2.6.0a0+df5bbc09d1.nv24.11", LocalTag()),
    ],
)
def test_a_local_tag_says_what_a_wheel_was_built_for(version: str, tag: LocalTag) -> None:
    assert parse_local(version) == tag


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
        ("3.0.0", "13.0", "torchvision", "0.26.0"),  # no rule about a torch that is not known yet
    ],
)
def test_a_pair_that_fits_is_no_problem(torch: str, cuda: str | None, name: str, version: str) -> None:
    assert check_pairs(torch, cuda, {name: version}) == ()


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
    ],
)
def test_a_pair_that_does_not_fit_is_named(torch: str, cuda: str | None, name: str, version: str, says: str) -> None:
    (problem,) = check_pairs(torch, cuda, {"numpy": "2.0", name: version})
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
