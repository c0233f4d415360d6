"""Checkpoints: complete or absent, safetensors and JSON alone, and refused where they do not belong.

``step_N/`` holds ``model.safetensors`` (serving names, the training dtype), ``optimizer.safetensors``
(moments, and the masters of a bf16 drafter), ``rng.safetensors`` and ``trainer_state.json``, whose file list
with sizes tells a damaged copy. It is written under another name, flushed to the disk and renamed, so that a
process killed at any moment leaves either the whole or nothing.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.config import Whole
from trainer.errors import CheckpointError, ResumeRefused
from trainer.files import locked, new_directory

MODEL, OPTIMIZER, RNG, STATE = (
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "trainer_state.json",
)
FORMAT = 1
_NAME = re.compile(r"step_(\d+)")
_UNFINISHED = re.compile(r"\.step_\d+\.(.*\.tmp|deleting)")
logger = logging.getLogger("trainer")


class EarlierData(msgspec.Struct, frozen=True):
    """Data that a run has trained on before its present data."""

    digest: str
    paths: list[str]
    until_step: int
    """The last update on it."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """``trainer_state.json``: where the run stands and what it belongs to."""

    format: int = FORMAT
    step: Whole
    """Updates done."""
    seed: int
    epoch: Whole
    batch_index: Whole
    """The next packed row, within the epoch."""
    row: Whole
    """The next packed row, counted from the start of the run."""
    samples: Whole
    """Documents trained on so far."""
    config: dict[str, dict[str, Any]]
    config_digest: str
    identity: dict[str, str | int | float]
    """Target and tokenizer."""
    mask_token_id: int
    taps: tuple[int, ...]
    block_size: int
    drafter: dict[str, Any]
    """The drafter's sizes."""
    data_digest: str
    earlier_data: tuple[EarlierData, ...] = ()
    """What ``--new-data`` left, in order; epoch, batch and row count the present data alone."""
    topology: dict[str, int]
    torch_version: str
    files: dict[str, int] = {}
    """Bytes of each other file."""


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """The finished checkpoints of a run, by ascending step."""
    if not directory.is_dir():
        return []
    found = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found if (path / STATE).is_file())


def find(directory: Path, named: Path | None = None) -> Path | None:
    """A run's newest checkpoint, if it has one, or the ``named`` one: a path, or its name in the run's directory.

    CheckpointError where there is none of that name.
    """
    found = list_checkpoints(directory)
    if named is None:
        return found[-1][1] if found else None
    for path in (named, directory / named):
        if (path / STATE).is_file():
            return path
    held = ", ".join(path.name for _, path in found) or "none"
    raise CheckpointError(f"{named} is no checkpoint: it holds no {STATE}. Those of {directory}: {held}")


def save(directory: Path, state: State, tensors: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """Writes ``step_N`` durably; ``tensors`` maps file names to contents. CheckpointError if the disk refuses."""
    target = directory / f"step_{state.step}"
    with writing(target):
        _write(target, state, tensors)
    return target


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """CheckpointError, with the name of ``target``, where the disk refuses what the block writes."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {target}: {error}") from error


def _write(target: Path, state: State, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    with new_directory(target) as folder:
        for name, content in tensors.items():
            # safetensors refuses tensors that share memory, as views of one buffer do.
            save_file({key: value.detach().cpu().contiguous() for key, value in content.items()}, folder / name)
        sizes = {name: (folder / name).stat().st_size for name in tensors}
        complete = msgspec.structs.replace(state, files=sizes)
        (folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(complete)))
        if target.exists():  # an older branch of this run reached the same step
            _delete(target)


def load_state(path: Path) -> State:
    """Reads ``trainer_state.json``; CheckpointError where it is missing or damaged, or of another format."""
    try:
        state = msgspec.json.decode((path / STATE).read_bytes(), type=State)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}") from error
    if state.format != FORMAT:
        raise CheckpointError(f"{path} has format {state.format}; this trainer reads {FORMAT}")
    for name, size in state.files.items():
        found = (path / name).stat().st_size if (path / name).is_file() else None
        if found != size:
            raise CheckpointError(f"{path / name} has {found} bytes and was written with {size}")
    return state


def load_tensors(path: Path, name: str, device: torch.device) -> dict[str, Tensor]:
    """The tensors of one of the checkpoint's files."""
    try:
        return load_file(path / name, device=str(device))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path / name}: {error}") from error


def differences(saved: State, now: State) -> list[str]:
    """What makes a checkpoint one of another run: target, tokenizer, drafter, data, seed."""
    data = [] if saved.data_digest == now.data_digest else [f"the data differs ({_data_change(saved, now)})"]
    before, after = (
        {"mask id": state.mask_token_id, "seed": state.seed}
        | {f"target {key}": value for key, value in state.identity.items()}
        | {f"drafter {key}": value for key, value in state.drafter.items()}
        for state in (saved, now)
    )
    return data + changes(before, after)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """In words, what differs between two sets of facts."""
    return [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _data_change(saved: State, now: State) -> str:
    """Why rows differ: settings, or what the files hold."""
    keys = [line for line in changed_settings(saved, now) if re.match(r"data\.(?!cache_dir)", line)]
    return "; ".join(keys) or f"what {', '.join(now.config['data']['paths'])} holds has changed"


def refuse_mismatch(saved: State, now: State) -> None:
    """ResumeRefused, naming every difference, unless the checkpoint is of this drafter, target and data."""
    found = differences(saved, now)
    if found:
        other_data = saved.data_digest != now.data_digest
        raise ResumeRefused(
            f"step {saved.step} cannot be resumed: {'; '.join(found)}. "
            f"{'--new-data keeps weights and optimizer and begins this data, ' if other_data else ''}"
            "--weights-only starts a new run from its weights, --fresh from nothing"
        )


def begin_new_data(saved: State, now: State) -> State:
    """The saved state at the first row of the present data; unchanged where it was trained on that."""
    if saved.data_digest == now.data_digest:
        return saved
    left = EarlierData(saved.data_digest, saved.config["data"]["paths"], saved.step)
    logger.warning("new data after step %d: %s", saved.step, _data_change(saved, now))
    return msgspec.structs.replace(
        saved,
        data_digest=now.data_digest,
        earlier_data=(*saved.earlier_data, left),
        epoch=0,
        batch_index=0,
        row=0,
    )


def changed_settings(saved: State, now: State) -> list[str]:
    """The configured values that differ from the checkpoint's, as ``section.key: before -> after``."""
    return [
        f"{section}.{key}: {saved.config.get(section, {}).get(key)!r} -> {value!r}"
        for section, values in now.config.items()
        for key, value in values.items()
        if saved.config.get(section, {}).get(key) != value
    ]


def set_aside(directory: Path, *logs: str, after: int = -1) -> None:
    """Moves the checkpoints past step ``after``, and the named logs, into ``previous-N``."""
    old = [path for step, path in list_checkpoints(directory) if step > after]
    old += [path for name in logs if (path := directory / name).exists()]
    if not old:
        return
    number = 1
    while (place := directory / f"previous-{number}").exists():
        number += 1
    place.mkdir()
    for path in old:
        path.rename(place / path.name)
    logger.info("%s: now in %s", ", ".join(path.name for path in old), place)


def rng_state() -> dict[str, Tensor]:
    """The states of torch's generators on this rank."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_rng_state(states: Mapping[str, Tensor]) -> None:
    """Sets the generators that ``rng_state`` reads, as far as they were saved."""
    # Cloned: torch.set_rng_state of a row of a larger tensor ends the process with a segmentation fault.
    if "cpu" in states:
        torch.set_rng_state(states["cpu"].cpu().clone())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu().clone())


def prune(directory: Path, keep_last: int, keep_every: int | None) -> list[Path]:
    """Deletes all but the last ``keep_last`` checkpoints and the multiples of ``keep_every``; returns those."""
    old = [
        path for step, path in list_checkpoints(directory)[:-keep_last] if not (keep_every and step % keep_every == 0)
    ]
    for path in old:
        _delete(path)
    return old


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Keeps a second trainer out of the run's directory, and removes what a killed one left unfinished.

    Raises CheckpointError while another process holds it.
    """
    with locked(
        directory / ".lock",
        CheckpointError(f"another trainer is at work in {directory}: end it, or name another checkpoint.dir"),
    ):
        for path in directory.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path)
        yield


def stamp(path: Path) -> None:
    """Stamps a checkpoint with the machine's fingerprint; a failure is a warning, never a lost checkpoint."""
    try:
        import envguard

        envguard.stamp(path)
    except Exception as error:  # a witness may fail in any way; training goes on
        logger.warning("checkpoint %s is not stamped: %s: %s", path, type(error).__name__, error)


def _delete(path: Path) -> None:
    # Renamed first: a deletion cut short must not leave a half checkpoint under a good name.
    doomed = path.with_name(f".{path.name}.deleting")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed)
