"""Where a run begins: from nothing, from weights, or exactly where a checkpoint left it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from trainer import checkpoint
from trainer.config import Config
from trainer.errors import CheckpointError
from trainer.model import Drafter, DrafterShape
from trainer.optimizer import DrafterOptimizer
from trainer.source import Facts
from trainer.topology import Group, Place

logger = logging.getLogger("trainer")
COUNTERS = ("step", "epoch", "batch_index", "row", "samples")


@dataclass(frozen=True)
class Start:
    """Where a run begins: by default at its newest checkpoint, if it has one."""

    fresh: bool = False
    """From nothing; earlier checkpoints and logs are set aside."""
    weights_only: Path | None = None
    """A new run from this checkpoint's weights."""
    checkpoint: Path | None = None
    """Resume here instead of at the newest one."""
    new_data: bool = False
    """Where the data is another than the checkpoint's, keep weights and optimizer and begin it at its first row."""


def fresh_state(config: Config, shape: DrafterShape, facts: Facts) -> checkpoint.State:
    """The state before the first step."""
    return checkpoint.State(
        step=0,
        seed=config.train.seed,
        epoch=0,
        batch_index=0,
        row=0,
        samples=0,
        config=json.loads(msgspec.json.encode(config)),
        config_digest=config.digest(),
        identity=facts.identity,
        mask_token_id=facts.mask_token_id,
        taps=facts.taps,
        block_size=config.model.block_size,
        drafter=json.loads(msgspec.json.encode(shape)),  # as it will be read back: lists, not tuples
        data_digest=facts.data_digest,
        topology=msgspec.to_builtins(config.topology),
        torch_version=str(torch.__version__),
    )


def restore(
    config: Config,
    start: Start,
    fresh: checkpoint.State,
    drafter: Drafter,
    optimizer: DrafterOptimizer,
    directory: Path,
) -> tuple[checkpoint.State, dict[str, Tensor]]:
    """Loads what ``start`` asks for; returns the state to go on from and the drafters' generators, if saved.

    Raises ResumeRefused, CheckpointError.
    """
    path = checkpoint.find(directory, start.weights_only or start.checkpoint)
    if start.weights_only is not None and path is not None:
        saved = checkpoint.load_state(path)
        for change in checkpoint.differences(saved, fresh):
            logger.warning("weights of another kind of run: %s", change)
        load_weights(drafter, path)
        optimizer.adopt()
        logger.info("a new run from the weights of %s", path)
    if start.fresh or start.weights_only is not None:
        checkpoint.set_aside(directory, config.log.jsonl)
        return fresh, {}
    if path is None:
        return fresh, {}
    saved = checkpoint.load_state(path)
    if start.new_data:
        saved = checkpoint.begin_new_data(saved, fresh)
    checkpoint.refuse_mismatch(saved, fresh)
    if saved.torch_version != str(torch.__version__):
        logger.warning(
            "saved by torch %s, now %s; `envguard diff %s live` shows what else differs",
            *(saved.torch_version, torch.__version__, path),
        )
    for change in checkpoint.changed_settings(saved, fresh):
        logger.warning("changed since the checkpoint: %s", change)
    load_weights(drafter, path)
    optimizer.load_state(checkpoint.load_tensors(path, checkpoint.OPTIMIZER, torch.device("cpu")))
    generators = checkpoint.load_tensors(path, checkpoint.RNG, torch.device("cpu"))
    logger.info("resumed from %s: epoch %d, row %d", path, saved.epoch, saved.batch_index)
    if start.checkpoint is not None:
        # Left in place, they would be the newest: this branch's own would be pruned, and the next start go to theirs.
        checkpoint.set_aside(directory, after=saved.step)
    kept = {name: getattr(saved, name) for name in (*COUNTERS, "earlier_data")}
    return msgspec.structs.replace(fresh, **kept), generators


def load_weights(drafter: Drafter, path: Path) -> None:
    """Loads the checkpoint's weights; CheckpointError where names or sizes do not fit."""
    tensors = checkpoint.load_tensors(path, checkpoint.MODEL, torch.device("cpu"))
    try:
        drafter.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path} holds another drafter: {error}") from error


def agree(
    state: checkpoint.State,
    generators: dict[str, Tensor],
    place: Place,
    group: Group,
    drafter: Drafter,
    optimizer: DrafterOptimizer,
) -> checkpoint.State:
    """Gives drafter 0's weights, moments and counters to all drafters, and each its own generators."""
    own = gather_generators(place, group)
    if place.leads:
        own |= {kind: saved for kind, saved in generators.items() if kind in own and saved.shape == own[kind].shape}
    if place.drafters > 1:
        counters = torch.tensor([getattr(state, name) for name in COUNTERS])
        moments = optimizer.state()
        group.share([counters, *own.values(), *(p.data for p in drafter.parameters()), *moments.values()])
        optimizer.load_state(moments)
        state = msgspec.structs.replace(state, **dict(zip(COUNTERS, counters.tolist(), strict=True)))
    checkpoint.set_rng_state({kind: rows[place.rank] for kind, rows in own.items()})
    return state


def gather_generators(place: Place, group: Group) -> dict[str, Tensor]:
    """The states of torch's generators, [D, bytes] a kind, one row a drafter."""
    gathered = {}
    for kind, own in checkpoint.rng_state().items():
        rows = torch.zeros(place.drafters, own.numel(), dtype=torch.uint8)
        rows[place.rank] = own
        group.sum(rows)
        gathered[kind] = rows
    return gathered
