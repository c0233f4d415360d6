"""The curve of a drafter's acceptance length over its training: `python -m benchmarks acceptance`.

Reads a run's `train_log.jsonl` (simulated, on the rows it trains on) and the reports of `python -m trainer evaluate
--out` (real decoding on held-out prompts), and draws both. Needs matplotlib.

    python -m benchmarks acceptance --log RUN/train_log.jsonl --report eval-*.json --out docs/acceptance.png
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any


def smoothed(log: list[dict[str, Any]], parts: int = 120) -> tuple[list[int], list[float]]:
    """Medians of equal stretches of the log: (last step, simulated length) of each."""
    size = max(1, len(log) // parts)
    stretches = [log[first : first + size] for first in range(0, len(log), size)]
    return (
        [stretch[-1]["step"] for stretch in stretches],
        [statistics.median(line["acceptance_length"] for line in stretch) for stretch in stretches],
    )


def draw(log: list[dict[str, Any]], reports: list[dict[str, Any]], title: str, out: Path) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes.plot(*smoothed(log), color="#9aa5b1", linewidth=1.5, label="simulated, on the rows it trains on")
    points = sorted((report["step"], report["real"], report["simulated"]) for report in reports)
    steps, real, simulated = zip(*points, strict=True)
    where = f"{reports[0]['prompts']} held-out problems of {reports[0]['prompt_source']}"
    axes.plot(steps, real, color="#c2410c", marker="o", linewidth=2, label=f"real decoding, {where}")
    label = "simulated at the same anchors"
    axes.scatter(steps, simulated, s=110, facecolors="none", edgecolors="#1d4ed8", zorder=3, label=label)
    for step, length, _ in points:
        axes.annotate(f"{length:.2f}", (step, length), textcoords="offset points", xytext=(6, -16), color="#c2410c")
    axes.axhline(2.0, color="#9aa5b1", linewidth=0.8, linestyle=":")
    axes.set(xlabel="training step", ylabel="acceptance length", title=title, xlim=(0, None), ylim=(0.8, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(out)


def main(arguments: list[str] | None = None) -> int:
    """Draws one run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks acceptance")
    parser.add_argument("--log", type=Path, help="a run's train_log.jsonl; without it nothing is drawn")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="reports of `trainer evaluate --out`")
    parser.add_argument("--title", default="A drafter of SmolLM2-135M")
    parser.add_argument("--out", type=Path, default=Path("acceptance.png"))
    options = parser.parse_args(arguments)
    if options.log is None or not options.report:
        print("acceptance: draws a run that --log and --report name")
        return 0
    log = [json.loads(line) for line in options.log.read_text().splitlines()]
    draw(log, [json.loads(path.read_bytes()) for path in options.report], options.title, options.out)
    print(options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
