"""What the local part of a version (`2.8.3+cu12torch2.8cxx11abiTRUE`) states about a build.

The one table of these tags: the accelerator that a wheel was compiled for, and the torch that it was built with.
Spellings are those of the wheels of PyTorch, PyG, flash-attn, mamba, NATTEN, SageAttention, gsplat, detectron2, vLLM
and NVIDIA's containers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Accelerator = Literal["cuda", "rocm", "xpu", "cpu"]

_CUDA = re.compile(r"cu(?:da)?(\d{2,3})(?!\d)")
_OTHERS: tuple[tuple[Accelerator, re.Pattern[str]], ...] = (
    ("rocm", re.compile(r"(?<![a-z])rocm(?![a-z])")),
    ("xpu", re.compile(r"(?<![a-z])xpu(?![a-z])")),
    ("cpu", re.compile(r"(?<![a-z])cpu(?![a-z])")),
)
# A commit may stand before the tag without a separator: `0.6+2a420edpt2.1.1cu121`.
_TORCH = re.compile(
    r"(?:(?<![a-z])|(?<=[0-9a-f]{7}))(?:pytorch|torch|pt)\.?(?:(\d)\.(\d{1,2})(?!\d)|(\d{2,4})(?!\d))"
)
_NEWEST_MINOR = 30
"""Above any minor of torch: `26` in `torch260` is a minor and a patch, `pt210` may be 2.10 as well as 2.1.0."""


@dataclass(frozen=True)
class LocalTag:
    """`cuda` is (major, minor or None); `torch` holds each (major, minor) that the tag may mean, none where it is
    silent."""

    accelerator: Accelerator | None = None
    cuda: tuple[int, int | None] | None = None
    torch: frozenset[tuple[int, int]] = frozenset()


def parse_local(version: str) -> LocalTag:
    """`2.8.3+cu12torch2.8cxx11abiTRUE` → CUDA (12, None), torch 2.8; `0.26.0+cu128` → CUDA (12, 8)."""
    local = version.partition("+")[2].lower().replace("-", ".").replace("_", ".")
    if not local:
        return LocalTag()
    torch = _torch(local)
    match = _CUDA.search(local)
    if match is not None:
        digits = match.group(1)
        major = digits[:2] if int(digits[:2]) < 90 else digits[:1]  # cu92 was 9.2
        rest = digits.removeprefix(major)
        return LocalTag("cuda", (int(major), int(rest) if rest else None), torch)
    return LocalTag(next((name for name, pattern in _OTHERS if pattern.search(local)), None), None, torch)


def _torch(local: str) -> frozenset[tuple[int, int]]:
    match = _TORCH.search(local)
    if match is None:
        return frozenset()
    major, minor, digits = match.groups()
    if digits is None:
        return frozenset({(int(major), int(minor))})
    readings = {(int(digits[0]), int(digits[1 : 1 + length])) for length in (1, 2) if len(digits) - 1 - length <= 1}
    # Of `pt240` one reading is no torch.
    return frozenset(each for each in readings if each[0] and each[1] <= _NEWEST_MINOR)
