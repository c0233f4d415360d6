"""From a step's sums to its log line."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

from trainer.checkpoint import State
from trainer.runlog import StepRecord
from trainer.step import RowRunner, Summary
from trainer.topology import Place


class Clock:
    """Turns a step's sums into its log line."""

    def __init__(self, peak: float | None, place: Place, rows_per_step: int, total_steps: int) -> None:
        self.peak, self.place, self.drafters, self.total_steps = peak, place, place.drafters, total_steps
        self.rows_per_step = rows_per_step
        self.recent: deque[float] = deque(maxlen=50)
        self.q_pre = [0] * place.targets
        self.rows, self.target_seconds, self.drafter_seconds = 0, 0.0, 0.0
        self.last = time.perf_counter()

    def record(self, state: State, summary: Summary, norm: float, rate: float, runner: RowRunner) -> StepRecord:
        """The line of the step that has just ended."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.recent.append(seconds)
        self.q_pre = [old if new is None else new for old, new in zip(self.q_pre, summary.q_pre, strict=True)]
        self._measure(summary, seconds)
        counts, totals = summary.counts, summary.totals
        anchors, tokens = round(counts["anchors"]), counts["tokens"]
        capacity = self.peak * self.drafters * seconds if self.peak else None
        return StepRecord(
            step=state.step,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            epoch=state.epoch,
            batch=state.batch_index,
            documents=state.samples,
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
            q_pre=self.q_pre,
            q_hs=summary.q_hs,
            attention=runner.backend,
            recompiles=round(counts["recompiles"]),
            cache_hits=round(counts["hits"]),
            cache_misses=round(counts["misses"]),
            peak_memory=summary.peak_memory,
            eta_s=(self.total_steps - state.step) * sum(self.recent) / len(self.recent),
            dropped_documents=round(counts["dropped"]),
        )

    def skip(self) -> None:
        """The time since the last step is part of no step: a checkpoint was saved."""
        self.last = time.perf_counter()

    def _measure(self, summary: Summary, seconds: float) -> None:
        if len(self.recent) == 1:
            return  # the first step waits for the pipeline to fill
        waited, target = summary.counts["wait"], summary.counts["target"]
        self.rows += self.rows_per_step
        self.target_seconds += target
        self.drafter_seconds += seconds * self.drafters - waited - (target if self.place.alone else 0.0)

    def advice(self) -> str | None:
        """Which split of targets and drafters the measured rates recommend; None before there are any."""
        if not self.rows or min(self.target_seconds, self.drafter_seconds) <= 0:
            return None
        target, drafter = self.target_seconds / self.rows, self.drafter_seconds / self.rows
        ranks = max(2, self.place.world)
        best = recommended_split(target, drafter, ranks)
        return (
            f"a row costs a target {target * 1e3:.0f} ms and a drafter {drafter * 1e3:.0f} ms: "
            f"{target / drafter:.2f} targets keep a drafter busy; best split of {ranks} ranks: "
            f"{best} targets + {ranks - best} drafters"
        )


def recommended_split(target: float, drafter: float, ranks: int) -> int:
    """Targets of ``ranks`` at which the slower side is fastest, given the seconds a row costs each side."""
    return max(range(1, ranks), key=lambda targets: min(targets / target, (ranks - targets) / drafter))
