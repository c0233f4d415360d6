"""The trainer's errors, each with its exit code."""

from __future__ import annotations

import signal
import sys


class TrainerError(Exception):
    """A fault whose message is enough for the user; the command line prints it without a traceback."""

    exit_code = 1


class ConfigError(TrainerError):
    """The configuration is wrong, or does not fit the target."""

    exit_code = 2


class ResumeRefused(TrainerError):
    """The checkpoint belongs to another model, target or data set."""

    exit_code = 3


class CheckpointError(TrainerError):
    """A checkpoint is missing, incomplete or unreadable."""

    exit_code = 4


class CompileError(TrainerError):
    """A compiled function fell back to eager, or was compiled again after warm-up."""

    exit_code = 5


class RankFailed(TrainerError):
    """Another rank died or fell silent."""

    exit_code = 6


def is_expected(error: BaseException) -> bool:
    """Whether the message is enough: a fault of ours, what system or device refuses, or Ctrl-C."""
    return isinstance(error, (TrainerError, OSError, KeyboardInterrupt)) or _is_out_of_memory(error)


def message(error: BaseException) -> str:
    """What the user reads of it."""
    if _is_out_of_memory(error):
        hint = "smaller data.token_budget or model.anchors take less; `train --dry-run` says what takes how much"
        return f"{error}\n{hint}"
    return str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    # Whoever has torch's error has imported torch; the command line must not, for an error in the configuration.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends with ``error``."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.exit_code if isinstance(error, TrainerError) else 1
