"""Many ranks: T targets feed D drafters under torchrun, over torch.distributed.

Control messages go over gloo. Hidden states and gradients go over NCCL where each rank has a GPU of its own,
else over gloo, through host memory if they are on a GPU: several ranks on one GPU are for tests.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer import checkpoint
from trainer.config import Config
from trainer.errors import ConfigError, RankFailed, exit_code, is_expected, message
from trainer.process import catch_stop
from trainer.resume import Start
from trainer.source import Facts, LocalSource, Plan, open_local
from trainer.topology import Place
from trainer.train import train
from trainer.transport import Link, RemoteSource, Sender
from trainer.watch import DeathWatch, machine, wait_for

logger = logging.getLogger("trainer")
TIMEOUT = timedelta(minutes=30)
"""Of a collective: longer than the slowest cold compilation. Dead ranks are noticed by the watch, not by this."""
FACTS, BEGIN, STOP, ASKED = "facts", "begin", "stop", "asked"


@dataclass
class Fabric:
    """The connections of this rank; to the drafters, their ``Group``."""

    place: Place
    store: Store
    drafters: Any  # the drafters' group
    head: Any  # the drafters and target 0, on gloo; None over NCCL
    links: list[list[Link]]  # [target][drafter]; the peer is the other side's rank
    nccl: bool

    @property
    def through_host(self) -> bool:
        """Whether hidden states leave the GPU by way of host memory."""
        return not self.nccl and self.place.device.type == "cuda"

    @property
    def carrier(self) -> torch.device:
        """Where a tensor must lie for the backend to reach it."""
        return self.place.device if self.nccl else torch.device("cpu")

    def sum(self, tensor: Tensor) -> None:
        """Sums over the drafters, in place."""
        with self._movable(tensor) as moved:
            dist.all_reduce(moved, group=self.drafters)

    def share(self, tensors: list[Tensor]) -> None:
        """Gives drafter 0's tensors to all drafters, in place."""
        for tensor in tensors:
            with self._movable(tensor) as moved:
                dist.broadcast(moved, 0, group=self.drafters)

    @contextmanager
    def _movable(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensor, or a copy where the drafters' backend can reach it, copied back at the end."""
        moved = tensor.to(self.carrier)
        with connected():
            yield moved
        if moved is not tensor:
            tensor.copy_(moved)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """On each machine one drafter goes first and fills the compile cache; the others follow."""
        leaders: dict[bytes, int] = {}
        for rank in range(self.place.drafters):
            leaders.setdefault(wait_for(self.store, f"machine/{rank}"), rank)
        leader = leaders[machine().encode()]
        if self.place.rank != leader:
            wait_for(self.store, f"turn/{leader}")
        yield
        if self.place.rank == leader:
            self.store.set(f"turn/{leader}", "1")

    def begin(self, step: int, row: int) -> None:
        """Tells the targets where the run stands."""
        self.store.set(BEGIN, f"{step} {row}")

    def stop_asked(self) -> bool:
        """Whether a target's process was asked to stop."""
        return bool(self.store.check([ASKED]))

    def stop(self) -> None:
        """Tells the targets that no more rows are wanted."""
        self.store.set(STOP, "1")

    def spread_head(self, tensor: Tensor) -> None:
        """Gives target 0's tensor, which lies on the carrier, to the drafters, in place.

        Embedding and LM head of a large vocabulary are gigabytes: through host memory they would take longer than
        all else of a warm start.
        """
        target = self.place.rank_of_target(0)
        if self.nccl:
            to_drafters = self.links[0]
            for link in to_drafters if self.place.drafter is None else [to_drafters[self.place.rank]]:
                dist.broadcast(tensor, target, group=link.payload)
        else:
            for part in torch.split(tensor.view(-1), 2**28):  # well below 2 GiB a message
                dist.broadcast(part, target, group=self.head)


def run_rank(config: Config, start: Start, place: Place) -> int:
    """This rank's whole run. An error ends the process at once, and with it all ranks."""
    store, _, _ = next(rendezvous("env://", rank=place.rank, world_size=place.world, timeout=TIMEOUT))
    watch = DeathWatch(PrefixStore("watch", store), place.rank, place.world)
    try:
        dist.init_process_group(
            "gloo", store=PrefixStore("group", store), rank=place.rank, world_size=place.world, timeout=TIMEOUT
        )
        fabric = connect(place, PrefixStore("trainer", store))
        code = serve(config, place, fabric) if place.drafter is None else draft(config, start, place, fabric)
        with catch_stop(), connected():  # a rank that is done must not die of a signal while others train and save
            dist.barrier()
    except BaseException as raised:
        error: BaseException = raised
        if isinstance(raised, dist.DistError):
            error = RankFailed(f"the connection to the other ranks broke: {raised}")
        if (told := watch.fail(error)) is not None:
            error = RankFailed(told)
        says = f"{type(error).__name__}: {message(error)}"
        logger.error("rank %d: %s", place.rank, says, exc_info=not is_expected(error))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Threads may be stuck in messages from ranks that are gone, and no exit handler must wait for them.
        os._exit(exit_code(error))
    watch.close()
    dist.destroy_process_group()
    return code


@contextmanager
def connected() -> Iterator[None]:
    """RankFailed where a collective meets another rank's end, which is a mere RuntimeError over gloo."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankFailed(f"the connection to the other ranks broke: {error}") from error


def gpu_each(gpus: list[bytes]) -> bool:
    """Whether each rank has a GPU of its own, by their ids, empty for none; ConfigError where only some have one."""
    if any(gpus) and not all(gpus):
        rank = gpus.index(b"")
        raise ConfigError(f"rank {rank} sees no GPU and others do: set train.device or CUDA_VISIBLE_DEVICES")
    return all(gpus) and len(set(gpus)) == len(gpus)


def connect(place: Place, store: Store) -> Fabric:
    """Opens all groups; the same calls in the same order on every rank."""
    device = place.device
    unique = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    store.set(f"machine/{place.rank}", machine())
    store.set(f"gpu/{place.rank}", unique)
    gpus = [wait_for(store, f"gpu/{rank}") for rank in range(place.world)]
    nccl = gpu_each(gpus)
    backend = "nccl" if nccl else "gloo"
    drafters = list(range(place.drafters))
    group = dist.new_group(drafters, backend=backend, timeout=TIMEOUT)
    head = None if nccl else dist.new_group([*drafters, place.rank_of_target(0)], backend="gloo", timeout=TIMEOUT)
    links: list[list[Link]] = []
    for target in range(place.targets):
        links.append([])
        for drafter in drafters:
            pair = [drafter, place.rank_of_target(target)]
            control = dist.new_group(pair, backend="gloo", timeout=TIMEOUT)
            payload = dist.new_group(pair, backend="nccl", timeout=TIMEOUT) if nccl else control
            links[-1].append(Link(pair[0] if place.drafter is None else pair[1], control, payload))
    if place.leads:
        logger.info("%d targets, %d drafters over %s", place.targets, place.drafters, backend)
    return Fabric(place, store, group, head, links, nccl)


def draft(config: Config, start: Start, place: Place, fabric: Fabric) -> int:
    """A drafter's run."""
    facts = msgspec.json.decode(wait_for(fabric.store, FACTS), type=Facts)
    shape = (facts.shape.vocab_size, facts.shape.hidden_size)
    heads = [
        torch.empty(shape, dtype=facts.dtype, device=fabric.carrier) for _ in range(1 if facts.shape.tied else 2)
    ]
    for tensor in heads:
        fabric.spread_head(tensor)
    source = RemoteSource(
        facts,
        (heads[0], heads[-1]),
        [fabric.links[target][place.rank] for target in range(place.targets)],
        drafter=place.rank,
        drafters=place.drafters,
        depth=config.topology.queue_depth,
        device=place.device,
        through_host=fabric.through_host,
    )
    with checkpoint.run_lock(Path(config.checkpoint.dir)) if place.leads else nullcontext():
        return train(config, start, place, source, fabric)


def serve(config: Config, place: Place, fabric: Fabric) -> int:
    """A target's run: its rows, in order, each to its drafter."""
    source = open_local(config, place)
    publish(source, place, fabric)
    step, row = map(int, wait_for(fabric.store, BEGIN).split())
    plan = Plan(source.facts.rows, config.rows_per_step(), config.train.max_steps, step, row)
    sender = Sender(
        fabric.links[place.target or 0],
        config.topology.queue_depth,
        place.device,
        through_host=fabric.through_host,
    )
    with catch_stop() as stop, source:
        source.start(plan)
        for number in plan.rows_of(place.target or 0, place.targets):
            supply = source.next()
            while not sender.put(number % place.drafters, supply, timeout=0.2):
                if stop.asked:
                    fabric.store.set(ASKED, "1")
                if fabric.store.check([STOP]):
                    break
            if stop.asked:
                fabric.store.set(ASKED, "1")
            if fabric.store.check([STOP]):
                break
        sender.close()
    return 0


def publish(source: LocalSource, place: Place, fabric: Fabric) -> None:
    """Target 0 tells the drafters what they must know; ConfigError where another target differs from it."""
    if place.target == 0:
        fabric.store.set(FACTS, msgspec.json.encode(source.facts).decode())
        embedding, head = source.head()
        for tensor in (embedding,) if source.facts.shape.tied else (embedding, head):
            fabric.spread_head(tensor.detach().to(fabric.carrier).contiguous())
        return
    first = msgspec.json.decode(wait_for(fabric.store, FACTS), type=Facts)
    if first != source.facts:
        raise ConfigError(f"target {place.target} differs from target 0: {source.facts}, {first}")
