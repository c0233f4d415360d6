"""``train_log.jsonl``: one line a step, appended and flushed, never rewritten.

After a resume the steps since the checkpoint are run and logged again; the later line of a step counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec

from trainer.config import Config
from trainer.errors import ConfigError
from trainer.files import cut_torn_line, naming, write_text


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One update. Times are seconds, rates a second, memory bytes."""

    step: int
    time: str
    """When it ended, ISO 8601 with UTC offset."""
    epoch: int
    batch: int
    """The next packed row, within the epoch."""
    documents: int
    """Trained on since the run began. Not called samples: readers of logs take that for the size of the data."""
    loss: list[float]
    """One a drafter."""
    loss_mean: float
    """Over all drafters: sum of weighted losses by sum of weights."""
    accuracy: list[float | None]
    """Slots 1 to B - 1."""
    acceptance_length: float | None
    """Simulated: 1 + leading matches."""
    lr: float
    grad_norm: float
    tok_s: float
    """Context tokens, padding not counted."""
    draft_pos_s: float
    """Positions of blocks that have an anchor."""
    anchors: int
    """Blocks that have an anchor, in all of this step's rows."""
    anchors_per_document: float
    anchors_per_token: float
    mfu: float | None
    """Model FLOPs by the time and the nominal bf16 peak of the drafters' devices; null where that is unknown."""
    step_s: float
    """Without the saving of a checkpoint before it."""
    data_wait_s: float
    target_s: float
    """Seconds of target work for this step's rows."""
    q_pre: list[int]
    """Packed rows that wait, one a target."""
    q_hs: list[int]
    """Rows of hidden states that wait, one a drafter."""
    attention: str
    recompiles: int
    cache_hits: int
    cache_misses: int
    peak_memory: int
    eta_s: float
    dropped_documents: int
    """Documents of this step's rows without two supervised tokens in a row."""


class Sink(Protocol):
    """Takes step records: a log or a screen."""

    def write(self, record: StepRecord) -> None:
        """Records or shows one step."""
        ...

    def close(self) -> None:
        """Flushes what is held back, or gives the terminal back."""
        ...


class JsonLines:
    """The log file. A line that a killed process left unfinished is cut off before the next is added."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab")
        cut_torn_line(path)

    def write(self, record: StepRecord) -> None:
        """Appends one line in one write."""
        with naming(self._path):
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with naming(self._path):
            self._file.close()


class TensorBoard:
    """Scalars for TensorBoard (extra ``report``)."""

    def __init__(self, directory: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("log.tensorboard needs its package: pip install tensorboard") from error
        self._writer = SummaryWriter(str(directory), purge_step=step)

    def write(self, record: StepRecord) -> None:
        """Adds every number of the record."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record.step)

    def close(self) -> None:
        """Flushes."""
        self._writer.close()


class WeightsAndBiases:
    """Scalars for W&B (extra ``wandb``), a resumed run's under the id of what it goes on with."""

    def __init__(self, directory: Path, project: str, config: Config, *, resumed: bool) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("log.wandb needs its package: pip install wandb") from error
        kept = directory / "wandb-run-id"
        # An id that the environment names goes before: W&B takes it where none is given.
        known = kept.read_text() if resumed and kept.exists() and "WANDB_RUN_ID" not in os.environ else None
        self._run = wandb.init(
            project=project, dir=str(directory), config=msgspec.to_builtins(config), id=known, resume="allow"
        )
        write_text(kept, self._run.id)

    def write(self, record: StepRecord) -> None:
        """Logs every number of the record."""
        self._run.log(_numbers(record), step=record.step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


def _numbers(record: StepRecord) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, list):
            numbers |= {f"{name}/{i}": float(item) for i, item in enumerate(value) if item is not None}
        elif isinstance(value, (int, float)) and name != "step":
            numbers[name] = float(value)
    return numbers


def open_sinks(config: Config, directory: Path, step: int) -> list[Sink]:
    """The configured logs of a run that goes on after ``step``."""
    sinks: list[Sink] = []
    if config.log.tensorboard:
        sinks.append(TensorBoard(directory / "tensorboard", step + 1))
    if config.log.wandb:
        sinks.append(WeightsAndBiases(directory, config.log.wandb_project, config, resumed=step > 0))
    return [JsonLines(directory / config.log.jsonl), *sinks]
