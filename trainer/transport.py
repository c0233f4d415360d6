"""Rows of hidden states on their way from a target to a drafter.

Each pair of a target and a drafter has a group of its own. A row goes as three messages: a header, the
packed batch, the hidden states. A target sends its rows in order from one thread, a drafter receives its
rows in order in one thread, and each keeps at most ``queue_depth`` of them: the lowest row that is still on
its way always has a sender and a receiver that wait for it, so that nothing can lock up. Neither thread runs
a compiled function.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.batch import PackedBatch, TargetFeatures
from trainer.errors import RankFailed, TrainerError
from trainer.source import Facts, Plan, Supply, take

ROW, END = 0, 1
HEADER = ("kind", "epoch", "index", "length", "documents", "q_pre", "microseconds")


@dataclass(frozen=True)
class Link:
    """The groups of one target and one drafter, seen from either side."""

    peer: int  # the other one's rank
    control: Any  # gloo: headers and batches
    payload: Any  # hidden states: NCCL between GPUs, else gloo


def send_row(link: Link, supply: Supply, *, through_host: bool) -> None:
    """Sends one row; returns when it has left."""
    batch, taps = supply.features.batch, supply.features.taps
    header = [ROW, batch.epoch, batch.index, batch.length, len(batch.sample_ids), supply.q_pre]
    send_numbers(link, [*header, round(supply.target * 1e6)])
    dist.send(_pack(batch), link.peer, group=link.control)
    dist.send((taps.cpu() if through_host else taps).contiguous(), link.peer, group=link.payload)
    finish(taps)


def send_end(link: Link) -> None:
    """Says that no more rows come from here."""
    send_numbers(link, [END, *[0] * (len(HEADER) - 1)])


def send_numbers(link: Link, numbers: list[int]) -> None:
    """Sends a header."""
    dist.send(torch.tensor(numbers, dtype=torch.int64), link.peer, group=link.control)


def receive_row(link: Link, facts: Facts, device: torch.device, *, through_host: bool) -> Supply | None:
    """The next row from a target, its hidden states on ``device``; None if it has ended."""
    numbers = torch.zeros(len(HEADER), dtype=torch.int64)
    dist.recv(numbers, link.peer, group=link.control)
    header = dict(zip(HEADER, numbers.tolist(), strict=True))
    if header["kind"] == END:
        return None
    packed = torch.empty(4 * header["length"] + header["documents"], dtype=torch.int64)
    dist.recv(packed, link.peer, group=link.control)
    batch = _unpack(packed, header)
    width = len(facts.taps) * facts.shape.hidden_size
    where = torch.device("cpu") if through_host else device
    taps = torch.empty(batch.length, width, dtype=facts.dtype, device=where)
    dist.recv(taps, link.peer, group=link.payload)
    taps = taps.to(device)
    finish(taps)
    return Supply(TargetFeatures(batch, taps), 0.0, header["microseconds"] / 1e6, header["q_pre"])


def _pack(batch: PackedBatch) -> Tensor:
    columns = (batch.tokens, batch.position, batch.document.long(), batch.supervised.long())
    return torch.cat([*columns, torch.tensor(batch.sample_ids, dtype=torch.int64)])


def _unpack(packed: Tensor, header: dict[str, int]) -> PackedBatch:
    length = header["length"]
    tokens, position, document, supervised = packed[: 4 * length].view(4, length).unbind(0)
    return PackedBatch(
        header["epoch"],
        header["index"],
        tokens,
        position,
        document.int(),
        supervised.bool(),
        tuple(packed[4 * length :].tolist()),
    )


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream for a thread's messages: on the default one, a message that waits would hold up the computation."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield


def finish(taps: Tensor) -> None:
    """Waits until this thread's stream is through with a message, and lends the tensor to the default stream."""
    if taps.is_cuda:
        torch.cuda.current_stream(taps.device).synchronize()
        # Or the allocator would give the memory to the next message while the drafter still reads it.
        taps.record_stream(torch.cuda.default_stream(taps.device))


def raise_as_ours(error: BaseException, doing: str) -> NoReturn:
    """Raises what a thread met as a TrainerError, one that is none with what the thread was doing."""
    if isinstance(error, TrainerError):
        raise error
    raise TrainerError(f"{doing}: {error}") from error


class RemoteSource:
    """A drafter's rows, from all targets in turn, received ahead by a thread."""

    def __init__(
        self,
        facts: Facts,
        head: tuple[Tensor, Tensor],
        links: list[Link],
        *,
        drafter: int,
        drafters: int,
        depth: int,
        device: torch.device,
        through_host: bool,
    ) -> None:
        self.facts = facts
        self._head, self._links, self._device, self._through_host = head, links, device, through_host
        self._drafter, self._drafters = drafter, drafters
        self._ready: queue.Queue[Supply | BaseException] = queue.Queue(maxsize=depth)
        self._draining = threading.Event()
        self._thread: threading.Thread | None = None

    def head(self) -> tuple[Tensor, Tensor]:
        """As the first target sent them."""
        return self._head

    def start(self, plan: Plan) -> None:
        """Begins to receive."""
        rows = plan.rows_of(self._drafter, self._drafters)
        self._thread = threading.Thread(target=self._receive, args=(rows,), daemon=True, name="receive")
        self._thread.start()

    def _receive(self, rows: range) -> None:
        try:
            with own_stream(self._device):
                ended: set[int] = set()
                for row in rows:
                    target = row % len(self._links)
                    if target not in ended and not self._take(target, row):
                        ended.add(target)
                for target in range(len(self._links)):
                    while target not in ended and self._take(target, None):
                        pass
        except BaseException as error:  # handed to the loop
            self._put(error)

    def _take(self, target: int, row: int | None) -> bool:
        link = self._links[target]
        try:
            supply = receive_row(link, self.facts, self._device, through_host=self._through_host)
        except RuntimeError as error:
            raise RankFailed(f"rank {link.peer} (target {target}) sends no more: {error}") from error
        if supply is not None and row is not None:
            self._put(supply)
        elif supply is None and row is not None and not self._draining.is_set():
            raise RankFailed(f"target {target} ended before row {row}")
        return supply is not None

    def _put(self, item: Supply | BaseException) -> None:
        while not self._draining.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def next(self) -> Supply:
        """Waits for the next row."""
        if self._thread is None:
            raise TrainerError("the source has not been started")
        began = time.perf_counter()
        item: Supply | BaseException = take(self._ready, self._thread)
        if isinstance(item, BaseException):
            raise_as_ours(item, "receiving hidden states")
        item.wait = time.perf_counter() - began
        return item

    def q_hs(self) -> int:
        """Rows that wait."""
        return self._ready.qsize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Takes and drops what the targets still send, until each has said that it ends.

        After an error nobody tells them to, and the process is about to end.
        """
        self._draining.set()
        if self._thread is not None and kind is None:
            self._thread.join()


class Sender:
    """A target's way out: a bounded queue and the thread that empties it."""

    def __init__(self, links: list[Link], depth: int, device: torch.device, *, through_host: bool) -> None:
        self._links, self._through_host, self._device = links, through_host, device
        self._waiting: queue.Queue[tuple[int, Supply] | None] = queue.Queue(maxsize=depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._send, daemon=True, name="send")
        self._thread.start()

    def _send(self) -> None:
        try:
            with own_stream(self._device):
                while (item := self._waiting.get()) is not None:
                    drafter, supply = item
                    self._send_one(drafter, supply)
            for link in self._links:
                send_end(link)
        except BaseException as error:  # handed to the loop
            self._error = error

    def _send_one(self, drafter: int, supply: Supply) -> None:
        link = self._links[drafter]
        try:
            send_row(link, supply, through_host=self._through_host)
        except RuntimeError as error:
            raise RankFailed(f"rank {link.peer} (drafter {drafter}) takes no more rows: {error}") from error

    def put(self, drafter: int, supply: Supply, timeout: float) -> bool:
        """Queues a row; False if there is no room within ``timeout`` seconds. Raises what the thread met."""
        self._check()
        try:
            self._waiting.put((drafter, supply), timeout=timeout)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Sends what waits, then the end to all drafters."""
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise_as_ours(self._error, "sending hidden states")
