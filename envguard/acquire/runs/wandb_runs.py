"""Weights & Biases run directories, offline and online: what each run had installed, and where it ran.

    wandb/run-20260518_120412-<id>/files/{requirements.txt, wandb-metadata.json, config.yaml}
    wandb/offline-run-…           the same

`cudaVersion` in the metadata is the driver's, not torch's. Arguments and remotes may hold secrets and are redacted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from envguard.acquire.machine.zone import Span, Zone, parse_moment
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.seam.host import Host
from envguard.model.evidence import Unknown

MOST = 500
_RUN = re.compile(r"(?:offline-)?run-(\d{8}_\d{6})-(\w+)$")


@dataclass(frozen=True)
class Pin:
    """One line of a requirements.txt: name, version, and the line's number."""

    name: str
    version: str
    line: int


@dataclass(frozen=True)
class WandbRun:
    """One run as W&B recorded it at its start."""

    path: str
    id: str
    started: Span | None
    started_from: str
    """Which file and field gave the start."""
    pins: tuple[Pin, ...]
    skipped: int
    """Lines of requirements.txt that name no version, such as a bare `==`."""
    commit: str | None
    driver_cuda: str | None
    python: str | None
    gpus: int | None
    executable: str | None = None
    """The interpreter that ran it: whose packages requirements.txt lists."""

    @property
    def requirements(self) -> str:
        return f"{self.path}/files/requirements.txt"


def read_wandb_runs(host: Host, places: tuple[str, ...], zone: Zone) -> tuple[tuple[WandbRun, ...], list[Unknown]]:
    """Runs below `wandb/` in each of `places`, by start."""
    found: dict[str, WandbRun] = {}
    unknown: list[Unknown] = []
    for place in places:
        for folder in (f"{place}/wandb", place):
            try:
                names = host.listing(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                unknown.append(Unknown.refused(f"W&B runs in {folder}", error))
                continue
            for name, kind in names:
                match = _RUN.fullmatch(name)
                if match is not None and kind == "directory" and len(found) < MOST:
                    path = f"{folder}/{name}"
                    found[path] = _run(host, path, match.group(1), match.group(2), zone, unknown)
    ordered = sorted(found.values(), key=lambda run: (run.started.start_ns if run.started else 0, run.path))
    return tuple(ordered), unknown


def _run(host: Host, path: str, stamp: str, identity: str, zone: Zone, unknown: list[Unknown]) -> WandbRun:
    metadata = _metadata(host, f"{path}/files/wandb-metadata.json", unknown)
    started, source = None, ""
    if isinstance(metadata.get("startedAt"), str):
        text = str(metadata["startedAt"])
        # Older clients write UTC without saying so; newer ones end it with Z.
        started, source = parse_moment(text if _has_offset(text) else f"{text}+00:00", zone), "startedAt"
    if started is None:
        # The folder's name is local time of the machine.
        started, source = zone.moments(datetime.strptime(stamp, "%Y%m%d_%H%M%S")), "directory name"
    pins, skipped = _pins(host, f"{path}/files/requirements.txt", unknown)
    git = metadata.get("git")
    gpus = metadata.get("gpu_count")
    return WandbRun(
        path=path,
        id=identity,
        started=started,
        started_from=source,
        pins=pins,
        skipped=skipped,
        commit=_text(git.get("commit")) if isinstance(git, dict) else None,
        driver_cuda=_text(metadata.get("cudaVersion") or metadata.get("cuda")),
        python=_text(metadata.get("python")),
        gpus=gpus if isinstance(gpus, int) else None,
        executable=_text(metadata.get("executable")),
    )


def _has_offset(text: str) -> bool:
    return text.endswith("Z") or bool(re.search(r"[+-]\d{2}:?\d{2}$", text))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _metadata(host: Host, path: str, unknown: list[Unknown]) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(host.read(path, 1 << 20))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        unknown.append(Unknown.refused(path, error))
        return {}
    return value if isinstance(value, dict) else {}


def _pins(host: Host, path: str, unknown: list[Unknown]) -> tuple[tuple[Pin, ...], int]:
    try:
        text = host.read(path, 4 << 20).decode("utf-8", "replace")
    except FileNotFoundError:
        return (), 0
    except OSError as error:
        unknown.append(Unknown.refused(path, error))
        return (), 0
    pins, skipped = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, version = line.strip().partition("==")
        if not line.strip() or line.startswith("#"):
            continue
        if name and equals and version:
            pins.append(Pin(canonical(name.strip()), version.strip(), number))
        else:
            skipped += 1
    return tuple(pins), skipped
