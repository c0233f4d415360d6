"""What a restore of the real torch costs, beside uv's own reinstall: `python -m benchmarks restore [--wheel FILE]`.

u is `uv pip install --offline --reinstall --link-mode copy` of the same wheel from the same warm cache, h is one
sha256 pass over its installed files. A restore verifies its source before and the installed files after, and keeps
what it replaces. The environment's torch is made to differ by one edited file; whatever differs, all of it is
replaced. Each round runs u, h and both ways of restoring, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uv
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Cost, median, run, save
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel

ROUNDS = 3
ARCHIVES = 200

HASH = """
import csv, hashlib, os, sys
site, total = sys.argv[1], 0
buffer = memoryview(bytearray(1 << 20))
(record,) = [f"{site}/{name}/RECORD" for name in os.listdir(site) if name.startswith("torch-")]
for path, digest, size in csv.reader(open(record, newline="")):
    if digest and not path.startswith(".."):
        hasher = hashlib.sha256()
        descriptor = os.open(f"{site}/{path}", os.O_RDONLY)
        while count := os.readv(descriptor, [buffer]):
            hasher.update(buffer[:count])
            total += count
        os.close(descriptor)
print(total)
"""

INSTALL = """
import sys
from pathlib import Path
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
stage = Stage(Path(sys.argv[1]))
with serve_index(stage.wheels) as index:
    stage.install("torch", index=index, arguments=["--no-deps", "--link-mode", "copy"])
print(index)
"""

PLAN = """
import json, sys, time
from pathlib import Path
from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.runs.stamps import parse_fingerprint
from envguard.config import Config
from envguard.project import Project
from envguard.restore import service
from envguard.restore.wanted import from_fingerprint
venv, project, stamp, live = sys.argv[1:]
host, root = LiveHost(), Path(project)
env = locate(host, venv, project)
target = from_fingerprint("step_690", parse_fingerprint(Path(stamp).read_bytes()))
now = parse_fingerprint(Path(live).read_bytes())
request = service.Request(host, env, Project(root, root, Config(), root / ".envguard"), target, now)
started = time.perf_counter(), time.process_time()
plan = service.find_and_plan(request)
print(json.dumps([time.perf_counter() - started[0], time.process_time() - started[1], len(plan.steps)]))
"""


def main(options: list[str]) -> int:
    """Measures, prints a table and writes `results/restore.json`; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks restore", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="the torch wheel; else pip fetches torch==2.13.0")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args(options)
    with tempfile.TemporaryDirectory(prefix="envguard-bench-") as folder:
        stage = Stage(Path(folder))
        wheel = chosen.wheel or _download(stage)
        result = _measure(stage, wheel, chosen.rounds)
    save("restore", result)
    _show(result)
    return int(not all(goal["met"] for goal in result["goals"]))


def _download(stage: Stage) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "torch==2.13.0", "-d"]
    subprocess.run([*command, str(stage.root / "download")], check=True)
    (wheel,) = (stage.root / "download").glob("torch-*.whl")
    return wheel


def _measure(stage: Stage, wheel: Path, rounds: int) -> dict[str, Any]:
    (stage.wheels / wheel.name).symlink_to(wheel.absolute())
    stage.make_venv()
    # In a process of its own: a child's peak memory counts from the parent's, and the index reads the wheel whole.
    index = run([sys.executable, "-P", "-c", INSTALL, str(stage.root)])[1].split()[-1]
    _stamp(stage)
    costs: dict[str, list[Cost]] = {"u": [], "h": [], "pylock": [], "rebuilt-wheel": []}
    for _ in range(rounds):
        costs["u"].append(_uv(stage, index))
        costs["h"].append(run([sys.executable, "-c", HASH, str(stage.site)])[0])
        costs["pylock"].append(_restore(stage, "pylock"))
        costs["rebuilt-wheel"].append(_restore(stage, "rebuilt-wheel"))
    plan = _plan(stage)
    figures = {name: median(each) for name, each in costs.items()}
    u, h = figures["u"], figures["h"]
    goals = [
        _goal("pylock ≤ 2u + 2h", figures["pylock"], u, h, 2),
        _goal("rebuilt-wheel ≤ 3u + 2h", figures["rebuilt-wheel"], u, h, 3),
        {"goal": f"plan over {ARCHIVES} archives ≤ 1.5 s", "took": plan[0], "bound": 1.5, "met": plan[0] <= 1.5},
        _memory(figures),
    ]
    return {
        "wheel": wheel.name,
        "rounds": rounds,
        "costs": {name: {"cpu": c.cpu, "wall": c.wall, "memory": c.memory} for name, c in figures.items()},
        "plan": {"wall": plan[0], "cpu": plan[1]},
        "goals": goals,
    }


def _goal(says: str, took: Cost, u: Cost, h: Cost, factor: int) -> dict[str, Any]:
    bound = factor * u.wall + 2 * h.wall
    cpu = factor * u.cpu + 2 * h.cpu
    return {
        "goal": says,
        "took": took.wall,
        "bound": bound,
        "cpu": took.cpu,
        "cpu bound": cpu,
        "met": took.wall <= bound,
    }


def _memory(figures: dict[str, Cost]) -> dict[str, Any]:
    most = max(figures[name].memory for name in ("pylock", "rebuilt-wheel"))
    return {"goal": "peak memory ≤ 200 MB", "took": most, "bound": 200, "met": most <= 200}


def _stamp(stage: Stage) -> None:
    folder = stage.checkpoints / "step_690"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    (stage.project / "envguard.toml").write_text("")
    _envguard(stage, "snapshot", "--into", "step_690", "-q")


def _envguard(stage: Stage, *arguments: str) -> None:
    run(stage.envguard_command(*arguments), stage.environ(), stage.project)


def _uv(stage: Stage, index: str) -> Cost:
    command = [uv.find_uv_bin(), "pip", "install", "--offline", "--reinstall", "--no-deps", "--link-mode", "copy"]
    command += ["--python", str(stage.python), "--index-url", index, "torch"]
    return run(command, stage.environ(), stage.project)[0]


def _restore(stage: Stage, source: str) -> Cost:
    """Edits one file, restores, and holds the answer against what was to be measured."""
    edited = stage.site / "torch" / "version.py"
    text = edited.read_bytes()
    edited.unlink()
    edited.write_bytes(text + b"# edited\n")
    hidden = []
    if source == "rebuilt-wheel":
        hidden = [(path, path.with_name(f"hidden-{path.name}")) for path in stage.cache.glob("wheels-v*")]
    for path, away in hidden:
        path.rename(away)
    try:
        cost, output = run(
            stage.envguard_command("restore", "step_690", "-y", "--json"), stage.environ(), stage.project
        )
    finally:
        for path, away in hidden:
            away.rename(path)
    report = json.loads(output)
    assert report["verified"], report
    assert [item["source"] for item in report["plan"]] == [source], report["plan"]
    return cost


def _plan(stage: Stage) -> tuple[float, float]:
    """Seconds (wall, CPU) of finding and planning in a cache of many archives."""
    made = stage.root / "many"
    for number in range(ARCHIVES - 1):
        files = {f"p{number}/m{inner}.py": b"x" for inner in range(300)}
        wheel = build_wheel(made, f"p{number}", "1.0", files)
        target = stage.cache / "archive-v0" / f"many{number}"
        shutil.unpack_archive(wheel, target, "zip")
    live = stage.root / "live.json"
    edited = stage.site / "torch" / "version.py"
    edited.write_bytes(edited.read_bytes() + b"# edited\n")
    _envguard(stage, "snapshot", "-o", str(live), "-q")
    stamp = stage.checkpoints / "step_690" / "envguard.json"
    arguments = [str(stage.venv), str(stage.project), str(stamp), str(live)]
    walls, cpus = [], []
    for _ in range(3):
        command = [sys.executable, "-P", "-c", PLAN, *arguments]
        _, output = run(command, stage.environ(), stage.project)
        wall, cpu, steps = json.loads(output)
        assert steps == 1
        walls.append(wall)
        cpus.append(cpu)
        time.sleep(0.1)
    return sorted(walls)[1], sorted(cpus)[1]


def _show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table("", "wall s", "CPU s", "peak MB", title=f"{result['wheel']}, median of {result['rounds']}")
    for name, cost in result["costs"].items():
        table.add_row(name, f"{cost['wall']:.2f}", f"{cost['cpu']:.2f}", f"{cost['memory']:.0f}")
    table.add_row("plan", f"{result['plan']['wall']:.2f}", f"{result['plan']['cpu']:.2f}", "")
    console.print(table)
    for goal in result["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        console.print(f"{goal['goal']}: {goal['took']:.2f} against {goal['bound']:.2f}: {verdict}")
