"""`python -m benchmarks [NAME [OPTIONS]]`: what the README claims, measured again; without a name, everything."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "restore": "a restore of the real torch beside uv's own reinstall",
    "record": "snapshots and stamps on an environment of 148 packages, beside other tools",
    "launch": "the gate on an unchanged environment, and the watch at rest beside a run",
    "timeline": "the past of 100,000 files and 1,000,000 log lines",
    "drafter": "the drafter's step against its FLOP floor",
    "training": "whole training runs beside what their parts allow",
    "ranks": "targets and drafters as ranks beside one process: losses and queues",
    "acceptance": "the curve of acceptance over training, drawn from logs and reports",
    "race": "threads that compile in one process beside the trainer's ranks, from a cold cache",
}


def main(arguments: list[str]) -> int:
    """Runs one benchmark with its options, or all of them as they come."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        for name, says in BENCHMARKS.items():
            print(f"  {name:<12}{says}")
        return 0
    if arguments and arguments[0] not in BENCHMARKS:
        print(f"error: no benchmark {arguments[0]!r}\nhint: there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    chosen = [(arguments[0], arguments[1:])] if arguments else [(name, []) for name in BENCHMARKS]
    try:
        return max(importlib.import_module(f"benchmarks.{name}").main(options) for name, options in chosen)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
