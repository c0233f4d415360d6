"""Who does what: this process's role among the ranks, its device and its number formats.

Ranks 0 .. D - 1 are drafters, the T after them targets; rank 0 keeps log and checkpoints. A world of one
process is drafter and target at once.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.config import Config
from trainer.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """One process among T targets and D drafters."""

    rank: int
    world: int
    targets: int
    drafters: int
    device: torch.device

    @property
    def alone(self) -> bool:
        """Whether this process is target and drafter."""
        return self.world == 1

    @property
    def drafter(self) -> int | None:
        """This drafter's number."""
        return self.rank if self.rank < self.drafters else None

    @property
    def target(self) -> int | None:
        """This target's number."""
        return 0 if self.alone else self.rank - self.drafters if self.rank >= self.drafters else None

    @property
    def leads(self) -> bool:
        """Whether this process writes log and checkpoints."""
        return self.rank == 0

    def rank_of_target(self, target: int) -> int:
        """The rank of a target."""
        return self.drafters + target


class Group(Protocol):
    """The drafters as one, and what they tell the targets."""

    def sum(self, tensor: Tensor) -> None:
        """Sums a tensor over drafters, in place."""
        ...

    def share(self, tensors: list[Tensor]) -> None:
        """Gives drafter 0's tensors to all, in place."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Holds the block back until the first drafter of this machine is through it."""
        ...

    def begin(self, step: int, row: int) -> None:
        """Tells the targets where the run stands."""
        ...

    def stop_asked(self) -> bool:
        """Whether another process was asked to stop."""
        ...

    def stop(self) -> None:
        """Tells the targets that no more rows are wanted."""
        ...


class Alone:
    """The only process."""

    def sum(self, tensor: Tensor) -> None:
        """A sum of one."""

    def share(self, tensors: list[Tensor]) -> None:
        """Nobody to share with."""

    def turn(self) -> AbstractContextManager[None]:
        """Always its turn."""
        return nullcontext()

    def begin(self, step: int, row: int) -> None:
        """Nobody to tell."""

    def stop_asked(self) -> bool:
        """Nobody else."""
        return False

    def stop(self) -> None:
        """Nobody to tell."""


def find_place(config: Config) -> Place:
    """Reads torchrun's environment; ConfigError where the world does not fit the topology."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    targets, drafters = config.topology.targets, config.topology.drafters
    wanted = 1 if targets == drafters == 1 and world == 1 else targets + drafters
    if world != wanted:
        raise ConfigError(
            f"{targets} targets and {drafters} drafters need {targets + drafters} ranks and there are {world}: "
            f"start them with torchrun --nproc-per-node {targets + drafters} -m trainer train ..."
        )
    return Place(rank, world, targets, drafters, choose_device(config))


def choose_device(config: Config) -> torch.device:
    """This rank's device; on CUDA always cuda:0 if torchrun shows each rank its own, else by local rank."""
    kind = config.train.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("train.device = 'cuda' and torch sees no GPU")
    local, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    device = torch.device("cuda", local % visible)
    torch.cuda.set_device(device)
    # cuDNN's attention, torch's first choice on Hopper from cuDNN 9.15 on, makes a plan for each new shape, and here
    # shapes are new all the time: caches grow, documents differ.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def choose_dtype(name: str, device: torch.device | None = None) -> torch.dtype:
    """The number format behind a configured name; only ``auto`` depends on the device."""
    if name == "auto":
        return torch.bfloat16 if device is not None and device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
