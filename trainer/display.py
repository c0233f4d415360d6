"""The live screen of a terminal; elsewhere one plain line now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from typing import Any

from trainer.config import Config
from trainer.runlog import Sink, StepRecord

logger = logging.getLogger("trainer")
PLAIN_EVERY = 10.0
"""Seconds between plain lines."""
BARS = "▁▂▃▄▅▆▇█"


def open_display(config: Config, total_steps: int) -> Sink:
    """The screen if configured, or if stdout is a terminal."""
    wanted = config.log.display if config.log.display is not None else sys.stdout.isatty()
    return LiveDisplay(config, total_steps) if wanted else PlainDisplay(total_steps)


def duration(seconds: float) -> str:
    """``2d 03:04:05``."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock


def rate(value: float) -> str:
    """Three digits and a unit."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g} "


def share(value: float | None) -> str:
    """A percentage, or n/a."""
    return "n/a" if value is None else f"{value:.1%}"


class PlainDisplay:
    """A line on the log at the first step, the last one and every few seconds."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self.shown = -PLAIN_EVERY

    def write(self, record: StepRecord) -> None:
        """Logs a line if it is time."""
        now = time.monotonic()
        if now - self.shown < PLAIN_EVERY and record.step != self.total_steps:
            return
        self.shown = now
        length = "n/a" if record.acceptance_length is None else f"{record.acceptance_length:.2f}"
        logger.info(
            "step %d/%d  loss %.4f  simulated length %s  %stok/s  q_pre %s  q_hs %s  MFU %s  ETA %s",
            record.step,
            self.total_steps,
            record.loss_mean,
            length,
            rate(record.tok_s),
            record.q_pre,
            record.q_hs,
            share(record.mfu),
            duration(record.eta_s),
        )

    def close(self) -> None:
        """Nothing to undo."""


class LiveDisplay:
    """A table that is redrawn each step."""

    def __init__(self, config: Config, total_steps: int) -> None:
        from rich.live import Live

        self.total_steps = total_steps
        self.title = f"{config.target.shape or config.target.kind} → {config.checkpoint.dir}"
        self.losses: deque[float] = deque(maxlen=60)
        self.live = Live(refresh_per_second=4)
        self.live.start()

    def write(self, record: StepRecord) -> None:
        """Redraws."""
        self.losses.append(record.loss_mean)
        self.live.update(self.render(record))

    def render(self, record: StepRecord) -> Any:
        """The screen for a record, as a rich renderable."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        length = "n/a" if record.acceptance_length is None else f"{record.acceptance_length:.2f}"
        accuracy = " ".join("--" if value is None else f"{100 * value:.0f}" for value in record.accuracy)
        rows = {
            "step": f"{record.step} of {self.total_steps}, epoch {record.epoch}, {record.documents} documents",
            "speed": f"{rate(record.tok_s)}tok/s, {rate(record.draft_pos_s)}draft positions/s, "
            f"MFU {share(record.mfu)}, ETA {duration(record.eta_s)}",
            "loss": f"{record.loss_mean:.4f}  [{', '.join(f'{loss:.4f}' for loss in record.loss)}]",
            "": sparkline(list(self.losses)),
            "accuracy %": accuracy,
            "simulated length": f"{length}, {record.anchors_per_token:.3f} anchors a token",
            "learning rate": f"{record.lr:.3g}, gradient norm {record.grad_norm:.3g}",
            "queues": f"q_pre {record.q_pre}  q_hs {record.q_hs}, "
            f"data wait {share(record.data_wait_s / record.step_s if record.step_s else None)}",
            "compiled": f"{record.recompiles} recompiles, cache {record.cache_hits} hits "
            f"{record.cache_misses} misses, attention {record.attention}, "
            f"peak memory {record.peak_memory / 2**30:.1f} GiB",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return Panel(Group(ProgressBar(self.total_steps, record.step), table), title=self.title)

    def close(self) -> None:
        """Gives the terminal back; the last screen stays."""
        self.live.stop()


def sparkline(values: list[float]) -> str:
    """The course of a number in one line of bars."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)
