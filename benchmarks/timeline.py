"""What a timeline costs: `python -m benchmarks timeline [--files N] [--rows N] [--text N]`.

One environment of N files, a training log of N JSON lines (150 MB a million) with two changes of throughput, and a
text log with a crash near its end; page cache warm. CPU is user and system time of the whole process; memory is the
peak of the resident set. The limits are 10 s and 300 MB for 100,000 files and 1,000,000 lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import synthetic
from benchmarks.measuring import Cost, median, run, save

REPEATS = 3
LIMIT_S, LIMIT_MB = 10.0, 300.0
RATES = (21_500.0, 9_700.0, 4_300.0)


def write_log(path: Path, rows: int) -> None:
    """Rows at three levels of throughput, one after the other, a second apart."""
    noise = random.Random(1)
    with path.open("w", encoding="utf-8") as stream:
        for row in range(rows):
            rate = RATES[min(2, 3 * row // rows)] * (1 + noise.gauss(0, 0.02))
            line: dict[str, float | list[int]] = {
                "step": row,
                "time": 1_779_000_000.0 + row,
                "loss": round(3 + noise.random(), 4),
                "tok_s": round(rate, 1),
            }
            line.update({"q_pre": [50] * 5, "q_hs": [0], "samples": 902_087})
            stream.write(json.dumps(line) + "\n")


def write_text(path: Path, lines: int) -> None:
    """Ordinary lines, and one failure near the end."""
    with path.open("w", encoding="utf-8") as stream:
        for line in range(lines):
            stream.write(
                f"2026-05-18 20:{line // 60 % 60:02d}:{line % 60:02d} INFO step {line} loss 3.1 tok/s 21500\n"
            )
        stream.write("Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. GPU 6 has\n")


def main(arguments: list[str]) -> int:
    """Measures, prints a table, keeps the figures; 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks timeline")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--text", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="envguard-bench-") as folder:
        figures = measure(Path(folder), options.files, options.rows, options.text)
    table = Table("command", "CPU s", "wall s", "peak MB")
    for name, cost in figures.items():
        table.add_row(name, f"{cost.cpu:.2f}", f"{cost.wall:.2f}", f"{cost.memory:.0f}")
    Console().print(table)
    save("timeline", {
        "files": options.files, "rows": options.rows, "text_lines": options.text,
        **{name: {"cpu_s": round(cost.cpu, 2), "wall_s": round(cost.wall, 2), "peak_mb": round(cost.memory)}
           for name, cost in figures.items()},
    })  # fmt: skip
    # What is gathered on one machine is read on another one: the memory is held to the limit there, too.
    return int(figures["timeline"].cpu > LIMIT_S or any(cost.memory > LIMIT_MB for cost in figures.values()))


def measure(work: Path, files: int, rows: int, text: int) -> dict[str, Cost]:
    """`timeline` live, `collect`, and `timeline` of what it collected."""
    venv = synthetic.make_venv(work, files)
    project = work / "project"
    (project / "checkpoints" / "step_690").mkdir(parents=True)
    (project / "checkpoints" / "step_690" / "model.bin").write_bytes(b"weights")
    (project / "envguard.toml").touch()
    write_log(project / "checkpoints" / "train_log.jsonl", rows)
    write_text(project / "train.log", text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVGUARD_", "PYTHON"))}
    environ = {**kept, "HOME": str(work), "TMPDIR": str(work)}
    head = [sys.executable, "-m", "envguard"]
    bundle = str(work / "made.bundle")
    commands = {
        "timeline": [*head, "timeline", "--python", str(venv), "--json"],
        "collect": [*head, "collect", "-o", bundle, "--python", str(venv), "--json"],
        "timeline --bundle": [*head, "timeline", "--bundle", bundle, "--json"],
    }
    return {name: _median(command, environ, project) for name, command in commands.items()}


def _median(command: list[str], environ: dict[str, str], cwd: Path) -> Cost:
    run(command, environ, cwd, codes=(0, 1))  # warms the page cache
    return median([run(command, environ, cwd, codes=(0, 1))[0] for _ in range(REPEATS)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
