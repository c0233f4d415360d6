"""What the callbacks share: a stamp that fails is a warning, and never the end of a training run."""

from __future__ import annotations

import logging
import os

import envguard

logger = logging.getLogger("envguard")


def stamp_saved(checkpoint: str | os.PathLike[str]) -> bool:
    """Stamps a checkpoint that was just saved; whether it worked. Never raises."""
    try:
        return envguard.stamp(checkpoint) is not None
    except Exception as error:  # whatever fails here, the checkpoint is saved and training goes on
        logger.warning("checkpoint %s is not stamped: %s: %s", checkpoint, type(error).__name__, error)
        return False
