"""From a step's sums to its log line."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

from trainer.checkpoint import State
from trainer.runlog import StepRecord
from trainer.step import RowRunner, Summary


class Clock:
    """Turns a step's sums into its log line."""

    def __init__(self, peak: float | None, drafters: int, total_steps: int) -> None:
        self.peak, self.drafters, self.total_steps = peak, drafters, total_steps
        self.recent: deque[float] = deque(maxlen=50)
        self.last = time.perf_counter()

    def record(self, state: State, summary: Summary, norm: float, rate: float, runner: RowRunner) -> StepRecord:
        """The line of the step that has just ended."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.recent.append(seconds)
        counts, totals = summary.counts, summary.totals
        anchors, tokens = round(counts["anchors"]), counts["tokens"]
        capacity = self.peak * self.drafters * seconds if self.peak else None
        return StepRecord(
            step=state.step,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            epoch=state.epoch,
            batch=state.batch_index,
            samples=state.samples,
            loss=summary.losses,
            loss_mean=totals.loss,
            accuracy=totals.accuracy,
            acceptance_length=totals.acceptance_length,
            lr=rate,
            grad_norm=norm,
            tok_s=tokens / seconds,
            draft_pos_s=anchors * runner.drafter.shape.block_size / seconds,
            anchors=anchors,
            anchors_per_document=anchors / counts["documents"],
            anchors_per_token=anchors / tokens,
            mfu=counts["flops"] / capacity if capacity else None,
            step_s=seconds,
            data_wait_s=counts["wait"] / self.drafters,
            target_s=counts["target"],
            q_pre=summary.q_pre,
            q_hs=summary.q_hs,
            attention=runner.backend,
            recompiles=round(counts["recompiles"]),
            cache_hits=round(counts["hits"]),
            cache_misses=round(counts["misses"]),
            peak_memory=summary.peak_memory,
            eta_s=(self.total_steps - state.step) * sum(self.recent) / len(self.recent),
            dropped_documents=round(counts["dropped"]),
        )
