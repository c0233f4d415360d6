"""The id of a fingerprint: one word for everything that decides which code a run executes on which hardware."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from envguard.model.fingerprint import Driver, Gpu, Package, Python, Torch

PREFIX = "eg1-"
DIGITS = 20


def fingerprint_id(
    python: Python,
    packages: Iterable[Package],
    torch: Torch | None,
    driver: Driver | None,
    gpus: Iterable[Gpu] | None,
) -> str:
    """`eg1-` and 20 hex digits.

    Covers the interpreter, packages by build identity, the torch, CUDA and triton builds, the driver and the GPU
    models with their count. Left out: prefix, link mode, installer, times, host, environment variables. An editable
    install counts by name and version: its RECORD holds the path of its source, and its source is `code`.
    """
    covered = {
        "python": (python.implementation, python.version, python.abi, python.platform),
        "packages": sorted(
            (each.name, each.version or "", "editable" if each.editable is not None else each.build or "")
            for each in packages
        ),
        "torch": None if torch is None else (torch.version, torch.git_version, torch.cuda, torch.hip, torch.triton),
        "driver": None if driver is None else driver.version,
        "gpus": None if gpus is None else sorted(Counter(gpu.name or "unknown" for gpu in gpus).items()),
    }
    return PREFIX + hashlib.sha256(_encode(covered)).hexdigest()[:DIGITS]


def _encode(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:
        # A version that is no text: any one-to-one spelling serves, the same on every run.
        return repr(value).encode("utf-8", "backslashreplace")
