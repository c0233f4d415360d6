"""What benchmarks share: a command with the CPU time and memory that it took, and where results go."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Cost:
    """CPU seconds (user and system, children included), wall seconds, peak resident memory in MB."""

    cpu: float
    wall: float
    memory: float


def run(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    codes: Sequence[int] = (0,),
) -> tuple[Cost, str]:
    """Runs a command to its end: its cost, and what it printed. Raises RuntimeError for a code not in `codes`."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        # Little goes to stderr here: reading one after the other cannot fill the other's pipe.
        output, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
    wall = time.perf_counter() - started
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024), output


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure by itself."""
    return Cost(
        statistics.median(cost.cpu for cost in costs),
        statistics.median(cost.wall for cost in costs),
        max(cost.memory for cost in costs),
    )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def save(name: str, result: Mapping[str, Any]) -> Path:
    """Writes `results/NAME.json` and returns its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path
