"""Packages that must fit the torch beside them, even where `pip check` is content.

A compiled extension of another torch or another CUDA loads late and fails late ("operator torchvision::nms does not
exist"). The rules are data: which release goes with which, and what a local version tag such as
`+cu128torch2.8cxx11abiTRUE` says about the torch that a wheel was built for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envguard.model.fingerprint import Problem


@dataclass(frozen=True)
class Release:
    """Releases of one package that are tied to torch: `major.(n + shift)` goes with torch `2.n` and no other.

    From the first minor in `at_least` on the tie is gone (torch's stable interface); those need a minor of torch.
    """

    major: int
    shift: int
    at_least: tuple[int, int]
    """(the package's first untied minor, the torch minor that it asks for)."""


# From the Requires-Dist lines of the releases themselves: torchvision pins torch up to 0.28, torchaudio up to 2.10.
RELEASES: dict[str, Release] = {
    "torchvision": Release(major=0, shift=15, at_least=(29, 14)),
    "torchaudio": Release(major=2, shift=0, at_least=(11, 11)),
}

_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_CUDA_TAG = re.compile(r"cu(?:da)?(\d{2,3})(?!\d)")
_TORCH_TAG = re.compile(r"(?:^|[^a-z])(?:torch|pt)\.?(\d)\.?(\d{1,2})(?![0-9])")


@dataclass(frozen=True)
class LocalTag:
    """What a local version says about the torch and CUDA that a wheel was built for; None where it is silent."""

    cuda: tuple[int, int | None] | None = None
    cpu: bool = False
    torch: tuple[int, int] | None = None


def parse_local(version: str) -> LocalTag:
    """`2.8.3+cu12torch2.8cxx11abiTRUE` → CUDA (12, None), torch (2, 8); `0.26.0+cu128` → CUDA (12, 8)."""
    local = version.partition("+")[2].lower()
    if not local:
        return LocalTag()
    cuda, torch = None, None
    cuda_match, torch_match = _CUDA_TAG.search(local), _TORCH_TAG.search(local)
    if cuda_match is not None:
        digits = cuda_match.group(1)
        cuda = (int(digits[:2]), int(digits[2:]) if len(digits) > 2 else None)
    if torch_match is not None and int(torch_match.group(2)) <= 30:  # `pt240` may be 2.4.0 as well: no witness
        torch = (int(torch_match.group(1)), int(torch_match.group(2)))
    return LocalTag(cuda, bool(re.search(r"(?:^|\.)cpu(?:$|\.)", local)), torch)


def check_pairs(torch: str, cuda: str | None, versions: Mapping[str, str]) -> tuple[Problem, ...]:
    """What does not fit the torch of that full version built for CUDA `cuda` (None: a CPU build).

    `versions` are full versions by normalised name, of packages that require torch: what is built for CUDA without
    being built for torch (a JAX, say) is none of its pairs.
    """
    found: list[Problem] = []
    for name, version in sorted(versions.items()):
        if name != "torch":
            found.extend(_release(torch, name, version))
            found.extend(_local(torch, cuda, name, version))
    return tuple(found)


def check_driver(cuda: str | None, driver_cuda: str | None) -> tuple[Problem, ...]:
    """A CUDA build whose major version the driver does not know; within a major version newer builds run."""
    built, known = _major(cuda), _major(driver_cuda)
    if built is None or known is None or built <= known:
        return ()
    says = f"torch is built for CUDA {cuda}, the driver knows CUDA up to {driver_cuda}: no kernel of it will start"
    return (Problem(kind="driver-too-old", subject="torch", says=says),)


def _release(torch: str, name: str, version: str) -> Iterator[Problem]:
    rule, ours, theirs = RELEASES.get(name), _minor(torch), _minor(version)
    if rule is None or ours is None or theirs is None or ours[0] != 2 or theirs[0] != rule.major:
        return
    expected = None
    untied, needs = rule.at_least
    if theirs[1] >= untied:
        if ours[1] < needs:
            expected = f"torch 2.{needs} or newer"
    elif theirs[1] - rule.shift != ours[1]:
        expected = f"torch 2.{theirs[1] - rule.shift}"
    if expected is not None:
        yield _problem(name, f"{name} {version} is built for {expected}, beside it lies torch {torch}")


def _local(torch: str, cuda: str | None, name: str, version: str) -> Iterator[Problem]:
    tag, ours = parse_local(version), _minor(torch)
    if tag.torch is not None and ours is not None and tag.torch != ours:
        built = ".".join(map(str, tag.torch))
        yield _problem(name, f"{name} {version} is built for torch {built}, beside it lies torch {torch}")
    have = _minor(cuda) if cuda else None
    if tag.cuda is not None:
        if cuda is None:
            yield _problem(name, f"{name} {version} is a CUDA build, beside it lies torch {torch}, which is not")
        elif have is not None and have[0] != tag.cuda[0]:
            yield _problem(name, f"{name} {version} is built for CUDA {tag.cuda[0]}, torch {torch} for CUDA {cuda}")
    elif tag.cpu and cuda is not None:
        yield _problem(name, f"{name} {version} is a CPU build, beside it lies torch {torch} for CUDA {cuda}")


def _problem(name: str, says: str) -> Problem:
    return Problem(kind="pair", subject=name, says=says)


def _minor(version: str | None) -> tuple[int, int] | None:
    match = _NUMBERS.match(version or "")
    return (int(match.group(1)), int(match.group(2))) if match is not None else None


def _major(version: str | None) -> int | None:
    found = _minor(version)
    return found[0] if found is not None else None
