"""Runs on disk: their records, the fingerprints they were started with, and the recorded first start.

<state>/runs/<id>.json          the record of one run (`envguard.model.run.RunRecord`)
<state>/fingerprints/<id>.json  the environment as that run was started in it
<state>/baseline.json           the fingerprint that `launch --baseline` recorded
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import sealed
from envguard.model.run import RunRecord
from envguard.state.files import open_state, write_atomically

# What `launch` tells the command that it starts, read by `envguard.stamp` inside it: the file with the environment
# as it was when the command started, and the run it belongs to.
LAUNCH_FINGERPRINT = "ENVGUARD_LAUNCH"
RUN_ID = "ENVGUARD_RUN_ID"


def baseline_file(state: Path) -> Path:
    """Where `launch --baseline` keeps the fingerprint of the first start."""
    return state / "baseline.json"


def run_file(state: Path, run: str) -> Path:
    return state / "runs" / f"{run}.json"


def fingerprint_file(state: Path, run: str) -> Path:
    return state / "fingerprints" / f"{run}.json"


def new_run_id(now: float | None = None) -> str:
    """Sorts by start and is free on every host that shares the state folder: `20260518T204107.250Z-3f9c`."""
    moment = time.time() if now is None else now
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(moment))
    return f"{stamp}.{int(moment * 1000) % 1000:03d}Z-{secrets.token_hex(2)}"


def write_run(state: Path, record: RunRecord) -> None:
    """Writes the record whole. Raises OSError where the state folder cannot be written."""
    _write(run_file(open_state(state), record.id), record)


def write_fingerprint(path: Path, fingerprint: Fingerprint) -> None:
    """Writes a fingerprint into the state folder. Raises OSError."""
    _write(path, sealed(fingerprint))


def _write(path: Path, value: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
