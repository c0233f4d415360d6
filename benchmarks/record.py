"""What a snapshot and a stamp cost, beside other tools: `python -m benchmarks record [--venv DIR] [--scale N …]`.

The environment is torch and 147 more packages (`requirements-148.txt`), installed with pip, which byte-compiles them.
The page cache is warm: the first pass over every file is thrown away. CPU is user and system time of the whole
process, its children included; memory is the peak of the resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import packaging
import uv
from rich.console import Console
from rich.table import Table

import envguard
from benchmarks import synthetic
from benchmarks.measuring import Cost, median, run, save

REQUIREMENTS = Path(__file__).with_name("requirements-148.txt")
REPEATS = 5
SCALES = (10_000, 50_000, 200_000)

# A plain pass: each file of RECORD once, as few system calls as there can be, nothing compared or kept.
PLAIN = """
import csv, fnmatch, glob, hashlib, os, sys
site, patterns = sys.argv[1], sys.argv[2:]
buffer = memoryview(bytearray(1 << 20))
total = 0
for record in glob.glob(site + "/*.dist-info/RECORD"):
    name = os.path.basename(os.path.dirname(record)).partition("-")[0].lower().replace("_", "-")
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
        continue
    for path, digest, size in csv.reader(open(record, newline="")):
        if not digest or path.startswith("..") or "__pycache__" in path:
            continue
        hasher = hashlib.sha256()
        descriptor = os.open(site + "/" + path, os.O_RDONLY)
        while count := os.readv(descriptor, [buffer]):
            hasher.update(buffer[:count])
            total += count
        os.close(descriptor)
print(total)
"""

# In a process that has torch loaded, as a trainer has: the first stamp pays for imports and fills the store.
STAMP = """
import envguard, json, pathlib, sys, time
import torch
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
(folder / "model.pt").write_bytes(b"x" * 1000000)
costs = []
for _ in range(8):
    started = time.process_time()
    envguard.stamp(folder)
    costs.append(time.process_time() - started)
print(json.dumps(costs))
"""

# What `launch` does again and again in one process.
RECHECK = """
import json, os, sys, time
from pathlib import Path
from envguard.project import open_project
from envguard.fingerprint.snapshot import take_live
project = open_project(Path.cwd(), os.environ)
costs = []
for _ in range(6):
    started = time.process_time()
    take_live(project, sys.argv[1])
    costs.append(time.process_time() - started)
print(json.dumps(costs))
"""


@dataclass(frozen=True)
class Line:
    """One row of the table: what, its cost, what was asked of it, and whether that is met."""

    what: str
    cost: Cost
    target: str = ""
    met: bool | None = None


class Bench:
    """One environment, one project with its state, and the ways in which envguard looks at it."""

    def __init__(self, venv: Path, work: Path) -> None:
        self.venv = venv
        self.python = venv / "bin" / "python"
        self.site = next(venv.glob("lib/python*/site-packages"))
        self.project = work / "project"
        self.project.mkdir()
        (self.project / "envguard.toml").touch()
        self.library = work / "library"
        self.library.mkdir()
        for module in (envguard, msgspec, packaging):
            assert module.__file__ is not None
            source = Path(module.__file__).parent
            (self.library / source.name).symlink_to(source)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVGUARD_", "PYTHON"))}
        self.environ = {**kept, "TMPDIR": str(work), "HOME": str(work)}

    def forget(self) -> None:
        shutil.rmtree(self.project / ".envguard", ignore_errors=True)

    def envguard(self, *arguments: str) -> Cost:
        command = [sys.executable, "-m", "envguard", *arguments]
        return run(command, self.environ, self.project)[0]

    def snapshot(self, *arguments: str) -> Cost:
        return self.envguard("snapshot", "--python", str(self.venv), "--json", *arguments)

    def first(self, *arguments: str) -> Cost:
        costs = []
        for _ in range(3):
            self.forget()
            costs.append(self.snapshot(*arguments))
        return median(costs)

    def known(self, *arguments: str) -> Cost:
        return median([self.snapshot(*arguments) for _ in range(REPEATS)])

    def plain(self, *patterns: str) -> tuple[Cost, int]:
        costs, total = [], 0
        for _ in range(3):
            cost, output = run([sys.executable, "-c", PLAIN, str(self.site), *patterns])
            costs.append(cost)
            total = int(output)
        return median(costs), total

    def in_process(self, script: str, argument: str, python: Path, path: Path | None = None) -> Cost:
        environ = {**self.environ, "PYTHONPATH": str(path)} if path is not None else self.environ
        cost, output = run([str(python), "-c", script, argument], environ, self.project)
        return Cost(statistics.median(json.loads(output)[2:]), float("nan"), cost.memory)


def build_venv(venv: Path) -> list[str]:
    """torch, then the list, by pip from its configured index; the requirements that could not be had."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = REQUIREMENTS.read_text().split()
    torch = next(line for line in wanted if line.startswith("torch=="))
    subprocess.run([*pip, torch], check=True)
    if subprocess.run([*pip, "--no-deps", "-r", str(REQUIREMENTS)], check=False).returncode == 0:
        return []
    return [line for line in wanted if subprocess.run([*pip, "--no-deps", line], check=False).returncode != 0]


def measure(bench: Bench) -> list[Line]:
    """Every row for the 148-package environment; the plain passes come first and warm the page cache."""
    from envguard.acquire.packages.contents import WATCHED

    bench.plain("*")
    plain_watched, watched_bytes = bench.plain(*WATCHED)
    plain_all, all_bytes = bench.plain("*")
    lines = [
        Line(f"plain sha256 of the watched files ({watched_bytes / 1e6:,.0f} MB)", plain_watched),
        Line(f"plain sha256 of all files ({all_bytes / 1e6:,.0f} MB)", plain_all),
        _line("envguard --help", median([bench.envguard("--help") for _ in range(REPEATS)]), 0.2),
        _line("start-up of a command", median([bench.envguard("schema", "error") for _ in range(REPEATS)]), 0.2),
        _line("snapshot, the first", bench.first(), 1.15 * plain_watched.cpu + 1),
        _line("snapshot, state known", bench.known(), 0.8),
        _line("snapshot --deep, the first", bench.first("--deep"), 1.15 * plain_all.cpu + 1),
        _line("snapshot --deep, nothing changed", bench.known("--deep"), 1.0),
        _line("envguard.stamp in a process with torch", _stamp(bench), 0.1, memory=False),
        _line(
            "the gate's re-check, in process",
            bench.in_process(RECHECK, str(bench.venv), Path(sys.executable), Path(envguard.__file__).parents[1]),
            0.6,
        ),
    ]
    known = next(line.cost.cpu for line in lines if line.what == "snapshot, state known")
    environ = {**bench.environ, "VIRTUAL_ENV": str(bench.venv)}
    freeze = [uv.find_uv_bin(), "pip", "freeze", "--python", str(bench.python)]
    inspect = [str(bench.python), "-m", "pip", "inspect"]
    collect = [str(bench.python), "-m", "torch.utils.collect_env"]
    lines += [
        Line("uv pip freeze", median([run(freeze, environ)[0] for _ in range(3)])),
        Line("pip inspect", median([run(inspect, environ)[0] for _ in range(3)])),
    ]
    collected = median([run(collect, environ)[0] for _ in range(3)])
    ratio = collected.cpu / known
    lines.append(Line("python -m torch.utils.collect_env", collected, f"snapshot ≤ 1/7 (1/{ratio:.1f})", ratio >= 7))
    return lines


def _stamp(bench: Bench) -> Cost:
    return bench.in_process(STAMP, "step_1", bench.python, bench.library)


def _line(what: str, cost: Cost, cpu: float, memory: bool = True) -> Line:
    met = cost.cpu <= cpu and (not memory or cost.memory <= 100)
    return Line(what, cost, f"≤ {cpu:.2f} s CPU" + (", ≤ 100 MB" if memory else ""), met)


def scale(sizes: tuple[int, ...], work: Path) -> list[Line]:
    """The same commands on made-up environments of so many files: what a file costs must not grow."""
    lines = []
    for size in sizes:
        folder = work / f"scale-{size}"
        folder.mkdir()
        bench = Bench(synthetic.make_venv(folder, size), folder)
        bench.snapshot()
        for what, cost in (("state known", bench.known()), ("--deep, the first", bench.first("--deep"))):
            lines.append(Line(f"{size:,} files, {what}", cost, f"{1e6 * cost.cpu / size:.1f} µs a file"))
        shutil.rmtree(folder)
    return lines


def show(lines: list[Line]) -> None:
    table = Table("", "CPU s", "wall s", "peak MB", "target", "met")
    for line in lines:
        wall = "" if line.cost.wall != line.cost.wall else f"{line.cost.wall:.3f}"
        met = {True: "yes", False: "NO", None: ""}[line.met]
        table.add_row(line.what, f"{line.cost.cpu:.3f}", wall, f"{line.cost.memory:.0f}", line.target, met)
    Console().print(table)


def _json(lines: list[Line]) -> list[dict[str, Any]]:
    return [
        {
            "what": line.what,
            "cpu_s": round(line.cost.cpu, 4),
            "wall_s": None if line.cost.wall != line.cost.wall else round(line.cost.wall, 4),
            "peak_mb": round(line.cost.memory, 1),
            "target": line.target or None,
            "met": line.met,
        }
        for line in lines
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the table, writes `results/record.json`; 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks record", description=__doc__)
    parser.add_argument("--venv", type=Path, help="an environment that is there already (it is not changed)")
    parser.add_argument("--scale", type=int, nargs="*", default=list(SCALES), help="sizes of made-up environments")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="envguard-bench-") as folder:
        work = Path(folder)
        absent = build_venv(work / "venv") if options.venv is None else []
        lines = measure(Bench((options.venv or work / "venv").absolute(), work))
        scaled = scale(tuple(options.scale), work)
    show(lines + scaled)
    if absent:
        print(f"not to be had from the configured index: {', '.join(absent)}")
    print(save("record", {"absent": absent, "rows": _json(lines), "scale": _json(scaled)}))
    return int(any(line.met is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
