"""Opening what a run has made: its checkpoint, the drafter in it, and the target that it belongs to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from trainer.checkpoint import MODEL, State, changes, find, load_tensors
from trainer.config import Config
from trainer.errors import CheckpointError, ResumeRefused
from trainer.model import Drafter, DrafterShape
from trainer.targets import open_target
from trainer.targets.interface import DecodableTarget


def find_checkpoint(config: Config, checkpoint: Path | None) -> Path:
    """The named checkpoint, or the run's newest one; CheckpointError where there is none."""
    path = find(Path(config.checkpoint.dir), checkpoint)
    if path is None:
        raise CheckpointError(f"{config.checkpoint.dir} holds no checkpoint")
    return path


def drafter_shape(state: State) -> DrafterShape:
    """The sizes of a checkpoint's drafter; CheckpointError where they are not all there."""
    try:
        return msgspec.convert(state.drafter, DrafterShape)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"the checkpoint's drafter sizes do not convert: {error}") from error


def load_drafter(path: Path, state: State, device: torch.device, dtype: torch.dtype) -> Drafter:
    """The drafter of a checkpoint, for inference."""
    with torch.device("meta"):
        drafter = Drafter(drafter_shape(state))
    weights = {name: value.to(dtype) for name, value in load_tensors(path, MODEL, device).items()}
    try:
        drafter.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path / MODEL} is of another drafter: {error}") from error
    return drafter.requires_grad_(False).eval()


def open_trained_target(config: Config, state: State, device: torch.device, dtype: torch.dtype) -> DecodableTarget:
    """The configured target; ResumeRefused unless it is the one that the drafter was trained for."""
    target = open_target(config.target, device, dtype, len(state.taps))
    now = {**target.identity(), "mask id": target.mask_token_id, "taps": target.tap_layers}
    then = {**state.identity, "mask id": state.mask_token_id, "taps": state.taps}
    # Another number format is another rounding, not another model: a run on a GPU is evaluated on CPU.
    if wrong := changes(then | {"dtype": ""}, now | {"dtype": ""}):
        raise ResumeRefused(f"the drafter of step {state.step} belongs to another target: {'; '.join(wrong)}")
    return target
