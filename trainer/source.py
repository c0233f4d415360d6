"""Where the drafter's batches come from: rows in a fixed order, and what the target says of them.

The rows of a run are those of its epochs one after the other, numbered from 0. Row i is a pure function of
(seed, epoch, index), is read by target i mod T and trained on by drafter i mod D, so that a run is resumed
with one number. One process that does both work is the case T = D = 1, with the same order and the same code.
"""

from __future__ import annotations

import bisect
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from trainer.batch import TargetFeatures
from trainer.config import Config
from trainer.data import Dataset, open_dataset
from trainer.errors import ConfigError, TrainerError
from trainer.shapes import TargetShape
from trainer.targets import open_target
from trainer.targets.interface import DecodableTarget
from trainer.topology import Place, choose_dtype


@dataclass(frozen=True)
class Facts:
    """What a drafter must know of target and data, whichever process holds them."""

    identity: dict[str, str | int | float]
    shape: TargetShape
    mask_token_id: int
    taps: tuple[int, ...]
    data_digest: str
    row_lengths: tuple[int, ...]
    rows: tuple[int, ...]  # an epoch
    report: tuple[str, ...] = field(compare=False)  # what became of the text, for the log; it names files

    @classmethod
    def of(cls, target: DecodableTarget, dataset: Dataset, epochs: int) -> Facts:
        """Of an opened target and data set."""
        return cls(
            target.identity(),
            target.shape,
            target.mask_token_id,
            target.tap_layers,
            dataset.digest,
            dataset.lengths,
            tuple(dataset.num_batches(epoch) for epoch in range(epochs)),
            tuple(dataset.report.lines()),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of embedding, LM head and hidden states."""
        return choose_dtype(str(self.identity["dtype"]))


@dataclass(frozen=True)
class Plan:
    """The order of a run: which rows, and how many steps they make.

    Counted from where the run stands: a run that goes on with another number of rows a step, or with other data, has
    made its steps of other rows.
    """

    rows: tuple[int, ...]  # of each epoch
    rows_per_step: int
    max_steps: int | None = None
    step: int = 0  # updates done
    row: int = 0  # the next one

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise ConfigError(
                f"{sum(self.rows)} packed rows make no step of {self.rows_per_step}: "
                "lower train.rows_per_step, or raise train.epochs"
            )

    @property
    def total_steps(self) -> int:
        """Updates; rows at the very end that make no whole step are left out."""
        steps = self.step + max(0, sum(self.rows) - self.row) // self.rows_per_step
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def epochs(self) -> str:
        """In words: how many, of how many rows."""
        least, most = min(self.rows), max(self.rows)
        return f"{len(self.rows)} of {least} rows" if least == most else f"{len(self.rows)} of {least} to {most} rows"

    def locate(self, row: int) -> tuple[int, int]:
        """(epoch, index) of a row; the row past the last one is index 0 of the epoch after it."""
        ends = list(itertools.accumulate(self.rows))
        epoch = bisect.bisect_right(ends, row)
        return epoch, row - (ends[epoch - 1] if epoch else 0)

    def rows_of(self, worker: int, workers: int) -> range:
        """The rows that are left for one of several workers."""
        end = self.row + (self.total_steps - self.step) * self.rows_per_step
        return range(self.row + (worker - self.row) % workers, end, workers)


@dataclass
class Supply:
    """One row for the drafter, and what its making cost."""

    features: TargetFeatures
    wait: float  # seconds that the drafter stood still for want of it
    target: float  # seconds that the target took
    q_pre: int  # rows that waited for that target


class Source(Protocol):
    """The rows of one drafter, in order."""

    facts: Facts

    def head(self) -> tuple[Tensor, Tensor]:
        """The target's embedding and LM head, [V, H] each."""
        ...

    def start(self, plan: Plan) -> None:
        """Begins with the first of this drafter's rows."""
        ...

    def next(self) -> Supply:
        """The next row; TrainerError where its maker failed."""
        ...

    def q_hs(self) -> int:
        """Rows of hidden states that wait for this drafter."""
        ...

    def __enter__(self) -> Self:
        """Leaving stops all that ``start`` began."""
        ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


def take(ready: queue.Queue[Any], maker: threading.Thread) -> Any:
    """The next value that a thread makes; waits for it. TrainerError where the thread has ended and none is left."""
    while True:
        try:
            return ready.get(timeout=1.0)
        except queue.Empty:
            if not maker.is_alive() and ready.empty():
                raise TrainerError("there are no more rows") from None


class Prefetcher:
    """Makes values ahead in a thread, at most ``depth`` of them; an error in the thread is raised by ``get``.

    The thread packs rows and moves bytes. It never runs a compiled function.
    """

    def __init__(self, make: Callable[[int], Any], rows: Iterable[int], depth: int) -> None:
        self._ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make, iter(rows)), daemon=True, name="prefetch")
        self._thread.start()

    def _work(self, make: Callable[[int], Any], rows: Iterator[int]) -> None:
        try:
            for row in rows:
                if not self._put((make(row), None)):
                    return
        except BaseException as error:  # handed to the consumer, whichever it is
            self._put((None, error))

    def _put(self, item: tuple[Any, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def get(self) -> Any:
        """The next value; waits for it."""
        value, error = take(self._ready, self._thread)
        if error is not None:
            raise error
        return value

    def depth(self) -> int:
        """Values that wait."""
        return self._ready.qsize()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()


class LocalSource:
    """A target's rows, each read when it is asked for: all of them where target and drafter are one process."""

    def __init__(
        self, target: DecodableTarget, dataset: Dataset, epochs: int, prefetch: int, worker: int = 0, workers: int = 1
    ) -> None:
        self.facts = Facts.of(target, dataset, epochs)
        self._worker, self._workers = worker, workers
        self._target, self._dataset, self._prefetch = target, dataset, prefetch
        self._batches: Prefetcher | None = None

    def head(self) -> tuple[Tensor, Tensor]:
        """The target's own tensors."""
        return self._target.embedding(), self._target.lm_head()

    def start(self, plan: Plan) -> None:
        """Begins to pack rows."""
        rows = plan.rows_of(self._worker, self._workers)
        self._batches = Prefetcher(lambda row: self._dataset.batch(*plan.locate(row)), rows, self._prefetch)

    def next(self) -> Supply:
        """Waits for a packed row, then runs the target."""
        if self._batches is None:
            raise TrainerError("the source has not been started")
        began = time.perf_counter()
        waiting = self._batches.depth()
        batch = self._batches.get()
        packed = time.perf_counter()
        features = self._target.features(batch)
        if features.taps.is_cuda:
            torch.cuda.synchronize(features.taps.device)
        return Supply(features, packed - began, time.perf_counter() - packed, waiting)

    def q_hs(self) -> int:
        """0: hidden states are made on demand."""
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._batches is not None:
            self._batches.close()


def open_local(config: Config, place: Place) -> LocalSource:
    """Target and data of this process: of a target rank, or of the only one."""
    dtype = choose_dtype(config.target.dtype, place.device)
    target = open_target(config.target, place.device, dtype, config.model.num_taps)
    dataset = open_dataset(config.data, target.tokenizer)
    worker = place.target or 0
    return LocalSource(target, dataset, config.train.epochs, config.topology.prefetch, worker, place.targets)
