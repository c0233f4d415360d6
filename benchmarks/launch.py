"""What a launch costs: `python -m benchmarks launch [--venv DIR] [--files N] [--seconds S]`.

The gate: user and system time of a whole `launch --dry-run` on an environment that has not changed since the last
launch. The watch: the launch process alone (not the command beside it) while nothing happens, and its resident
memory; then again while another process opens and reads the environment's files, as loaders and imports do. The page
cache is warm. What is called at rest begins when the watches are set: when five seconds have passed in which next to
nothing was used.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import synthetic
from benchmarks.measuring import median, run, save

REPEATS = 5
LOOK_S, CALM_S, LONGEST_S = 5.0, 0.005, 120.0
GATE_CPU_S, WATCH_SHARE, WATCH_MB = 0.600, 0.001, 60.0


class Bench:
    """One environment and a project whose first start is recorded."""

    def __init__(self, venv: Path, work: Path) -> None:
        self.venv = venv
        self.project = work / f"project-{venv.parent.name}"
        self.project.mkdir()
        (self.project / "envguard.toml").touch()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVGUARD_", "PYTHON"))}
        self.environ = {**kept, "HOME": str(work), "TMPDIR": str(work), "CUDA_VISIBLE_DEVICES": ""}
        self.head = [sys.executable, "-m", "envguard", "launch", "--python", str(venv)]
        run([*self.head, "--baseline", "--", "true"], self.environ, self.project)

    def gate(self) -> dict[str, float]:
        """CPU and wall seconds, peak MB of the gate alone."""
        costs = [
            run([*self.head, "--dry-run", "--json", "--", "true"], self.environ, self.project)[0]
            for _ in range(REPEATS)
        ]
        cost = median(costs)
        return {"cpu_s": cost.cpu, "wall_s": cost.wall, "peak_mb": cost.memory}

    def watch(self, seconds: float) -> dict[str, float]:
        """The share of one core that the watch takes at rest, its memory, and what setting it up took."""
        process = subprocess.Popen(
            [*self.head, "-q", "--", "sleep", str(LONGEST_S + seconds + 60)], env=self.environ, cwd=self.project
        )
        try:
            settle(process.pid)
            begun, clock = cpu_of(process.pid), time.monotonic()
            time.sleep(seconds)
            used, passed = cpu_of(process.pid) - begun, time.monotonic() - clock
            return {
                "share": used / passed,
                "share_while_read": self._while_read(process.pid, min(seconds, 20.0)),
                "rss_mb": rss_of(process.pid),
                "start_cpu_s": begun,
                "seconds": passed,
            }
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)

    def _while_read(self, pid: int, seconds: float) -> float:
        """The share of one core that the watch takes while every file of the environment is read, over and over."""
        begun, clock = cpu_of(pid), time.monotonic()
        while (passed := time.monotonic() - clock) < seconds:
            for path in self.venv.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        file.read(4096)
                if time.monotonic() - clock >= seconds:
                    break
        return (cpu_of(pid) - begun) / passed


def settle(pid: int) -> None:
    """Until the process has come to rest; on a busy machine setting 5,000 watches takes a while."""
    deadline, before = time.monotonic() + LONGEST_S, -1.0
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = cpu_of(pid)
        if now - before < CALM_S:
            return
        before = now


def cpu_of(pid: int) -> float:
    """User and system seconds of one process, by the scheduler's nanoseconds: clock ticks are too coarse for rest."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def rss_of(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def rows(name: str, gate: dict[str, float], watch: dict[str, float]) -> list[dict[str, Any]]:
    """What was asked and what was measured, a line each."""
    return [
        {"what": f"{name}: gate, CPU s", "got": gate["cpu_s"], "most": GATE_CPU_S},
        {"what": f"{name}: gate, wall s", "got": gate["wall_s"], "most": None},
        {"what": f"{name}: watch at rest, share of a core", "got": watch["share"], "most": WATCH_SHARE},
        {"what": f"{name}: watch while its files are read", "got": watch["share_while_read"], "most": WATCH_SHARE},
        {"what": f"{name}: watch, resident MB", "got": watch["rss_mb"], "most": WATCH_MB},
        {"what": f"{name}: gate and setting up the watch, CPU s", "got": watch["start_cpu_s"], "most": None},
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the table, writes `results/launch.json`; 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks launch", description=__doc__)
    parser.add_argument("--venv", type=Path, help="measure this environment too (it is not changed)")
    parser.add_argument("--files", type=int, default=50_000, help="size of the made-up environment")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the watch is measured at rest")
    options = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="envguard-bench-") as folder:
        work = Path(folder)
        made = work / f"{options.files}-files"
        made.mkdir()
        places = [(f"{options.files:,} files", synthetic.make_venv(made, options.files))]
        if options.venv is not None:
            places.append((options.venv.name, options.venv.absolute()))
        for name, venv in places:
            bench = Bench(venv, work)
            found += rows(name, bench.gate(), bench.watch(options.seconds))
    table = Table("", "measured", "at most", "met")
    for row in found:
        row["met"] = None if row["most"] is None else row["got"] <= row["most"]
        table.add_row(
            row["what"], f"{row['got']:.5g}", "" if row["most"] is None else f"{row['most']:g}",
            {True: "yes", False: "NO", None: ""}[row["met"]],
        )  # fmt: skip
    Console().print(table)
    print(save("launch", {"rows": found}))
    return int(any(row["met"] is False for row in found))


if __name__ == "__main__":
    sys.exit(main())
