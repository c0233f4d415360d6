"""Packages that must fit the torch beside them, even where `pip check` is content.

A compiled extension of another torch or another accelerator loads late and fails late ("operator torchvision::nms
does not exist"). Which release goes with which is data here; what a local version states is in `model.local_version`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envguard.model.fingerprint import ACCELERATORS, Problem, Torch
from envguard.model.local_version import parse_local


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


def check_pairs(torch: Torch, versions: Mapping[str, str]) -> tuple[Problem, ...]:
    """What does not fit this torch; nothing where its version is unknown.

    `versions` are full versions by normalised name, of packages built for torch: what is built for CUDA alone (a
    JAX, say) is none of its pairs.
    """
    if torch.version is None:
        return ()
    found: list[Problem] = []
    for name, version in sorted(versions.items()):
        if name != "torch":
            found.extend(_release(torch.version, name, version))
            found.extend(_local(torch, torch.version, name, version))
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


def _local(torch: Torch, full: str, name: str, version: str) -> Iterator[Problem]:
    tag, ours = parse_local(version), _minor(full)
    if tag.torch and ours is not None and ours not in tag.torch:
        built = " or ".join(".".join(map(str, each)) for each in sorted(tag.torch))
        yield _problem(name, f"{name} {version} is built for torch {built}, beside it lies torch {full}")
    have, accelerator = _major(torch.cuda), torch.accelerator
    if tag.accelerator is not None and accelerator is not None and tag.accelerator != accelerator:
        theirs, here = ACCELERATORS[tag.accelerator], torch.built_for
        yield _problem(name, f"{name} {version} is a {theirs} build, beside it lies torch {full}, built for {here}")
    elif tag.cuda is not None and have is not None and have != tag.cuda[0]:
        yield _problem(name, f"{name} {version} is built for CUDA {tag.cuda[0]}, torch {full} for CUDA {torch.cuda}")


def _problem(name: str, says: str) -> Problem:
    return Problem(kind="pair", subject=name, says=says)


def _minor(version: str | None) -> tuple[int, int] | None:
    match = _NUMBERS.match(version or "")
    return (int(match.group(1)), int(match.group(2))) if match is not None else None


def _major(version: str | None) -> int | None:
    found = _minor(version)
    return found[0] if found is not None else None
