"""What the training process owes its surroundings: signals, log files, and what its device says of itself."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from trainer.errors import is_expected

logger = logging.getLogger("trainer")


@dataclass
class Stop:
    """Whether the process was asked to end."""

    asked: bool = False


@contextmanager
def catch_stop() -> Iterator[Stop]:
    """SIGTERM and SIGINT let the step in progress finish; a second SIGINT ends it at once."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def device_name(device: torch.device) -> str:
    """As its vendor calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: of the GPU's allocator, or of the process on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def logging_to(directory: Path, *, leader: bool) -> Iterator[None]:
    """Sends the trainer's messages to stderr and, from the leading rank, to ``run.log``."""

    class Stderr(logging.StreamHandler):  # type: ignore[type-arg]
        """Looks stderr up each time: the live screen puts its own in its place."""

        def emit(self, record: logging.LogRecord) -> None:
            self.stream = sys.stderr
            super().emit(record)

    handlers: list[logging.Handler] = [Stderr()]
    if leader:
        directory.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(directory / "run.log"))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.setLevel(logging.INFO if leader else logging.WARNING)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except Exception as error:
        for handler in handlers[1:]:  # the caller tells stderr
            details = None if is_expected(error) else (type(error), error, error.__traceback__)
            handler.handle(logger.makeRecord(logger.name, logging.ERROR, "", 0, "%s", (error,), details))
        raise
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
