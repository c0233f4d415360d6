"""Fingerprints by hand: a machine without anything, and what a test gives it."""

from __future__ import annotations

from typing import Any

from envguard.model.fingerprint import Fingerprint, Python

PYTHON = Python(
    implementation="CPython", version="3.11.7", abi="cp311", platform="linux_x86_64", prefix="/venv",
    executable=None, base=None, kind="venv",
)  # fmt: skip
NOTHING = ("torch", "cuda", "driver", "compile_cache", "code", "config", "data", "env", "system", "processes")


def fingerprint(**fields: Any) -> Fingerprint:
    """No GPU, no torch, no packages; `fields` override."""
    base: dict[str, Any] = {
        "id": "eg1-0", "envguard": "0", "taken_at": "2026-05-18T20:52:00+00:00", "python": PYTHON, "sys_path": (),
        "packages": (), "shadowed": (), "problems": (), "unknown": (), "gpus": (),
    }  # fmt: skip
    return Fingerprint(**{**dict.fromkeys(NOTHING), **base, **fields})
