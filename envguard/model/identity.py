"""What a fingerprint says about itself.

Its id is one word for everything that decides which code a run executes on which hardware: two environments of one id
are one. Its checksum tells whether a stored one is as it was written.
"""

from __future__ import annotations

import hashlib
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from envguard.model import plain
from envguard.model.fingerprint import Driver, Fingerprint, Gpu, Package, Python, Torch

PREFIX = "eg1-"
DIGITS = 20


def is_id(text: str) -> bool:
    """Whether a word is a fingerprint's id."""
    digits = text.removeprefix(PREFIX)
    return text != digits and len(digits) == DIGITS and set(digits) <= set(string.hexdigits.lower())


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
        "packages": sorted((each.name, each.version or "", _content_of(each)) for each in packages),
        "torch": None if torch is None else _torch(torch),
        "driver": None if driver is None else driver.version,
        "gpus": None if gpus is None else sorted(Counter(gpu.name or "unknown" for gpu in gpus).items()),
    }
    return PREFIX + hashlib.sha256(_encode(covered)).hexdigest()[:DIGITS]


def _torch(torch: Torch) -> tuple[str | None, ...]:
    covered = (torch.version, torch.git_version, torch.cuda, torch.hip, torch.triton)
    # Only where there is one: an id of a fingerprint from before this field stays what it was.
    return covered if torch.xpu is None else (*covered, torch.xpu)


def _content_of(package: Package) -> str:
    if package.editable is not None:
        return "editable"
    return package.build or package.source or ""


def sealed(taken: Fingerprint) -> Fingerprint:
    """The fingerprint as it goes into a file: with the checksum of all else that it says."""
    stored = msgspec.json.decode(plain.encode(taken))
    return msgspec.structs.replace(taken, checksum=_checksum(stored))


def why_altered(taken: Fingerprint, stored: Mapping[str, Any]) -> str | None:
    """Why a fingerprint that was read from a file cannot be believed; `stored` is what the file holds.

    One that was edited, or damaged where it still parses, would else be held against the environment under the name
    of what it was. This is no signature: whoever edits one can compute both words anew.
    """
    given = fingerprint_id(taken.python, taken.packages, taken.torch, taken.driver, taken.gpus)
    if given != taken.id:
        return f"its id is {taken.id} and its content gives {given}: it was edited or damaged after it was written"
    if taken.checksum is not None and taken.checksum != _checksum(stored):
        return "its checksum is not that of its content: it was edited or damaged after it was written"
    return None


def _checksum(stored: Mapping[str, Any]) -> str:
    """64 hex digits; the order of keys and the white space of the file do not matter."""
    covered = {key: value for key, value in stored.items() if key != "checksum"}
    return hashlib.sha256(msgspec.json.encode(covered, order="deterministic")).hexdigest()


def _encode(covered: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(covered, order="deterministic")
    except UnicodeEncodeError:
        # A version that is no text: spelled as files spell it, or what was read back would have another id.
        stored = {name: plain.escaped(value) for name, value in covered.items()}
        for many in ("packages", "gpus"):
            stored[many] = stored[many] and sorted(stored[many])
        return msgspec.json.encode(stored, order="deterministic")
