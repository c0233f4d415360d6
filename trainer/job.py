"""One process's part of a training run: the whole of it, or one rank's."""

from __future__ import annotations

import logging
from pathlib import Path

from trainer import checkpoint
from trainer.compile import private_cache, shorten_tracing
from trainer.config import Config
from trainer.distributed import run_rank
from trainer.process import logging_to
from trainer.resume import Start
from trainer.source import open_local
from trainer.topology import Alone, find_place
from trainer.train import train

logger = logging.getLogger("trainer")


def run(config: Config, start: Start | None = None) -> int:
    """Trains as configured; returns the exit code, 0 also after SIGTERM. Raises TrainerError."""
    start = start or Start()
    place = find_place(config)
    with logging_to(Path(config.checkpoint.dir), leader=place.leads):
        shorten_tracing(place.device)
        if config.train.compile or place.device.type == "cuda":
            # Before anything is compiled, by whichever library.
            logger.info("compile cache: %s", private_cache(config.train.compile_cache))
        if not place.alone:
            return run_rank(config, start, place)
        with checkpoint.run_lock(Path(config.checkpoint.dir)):
            return train(config, start, place, open_local(config, place), Alone())
