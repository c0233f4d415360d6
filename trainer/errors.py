"""The trainer's errors, each with its exit code."""

from __future__ import annotations

import signal


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
    """Whether the message is enough: a fault of ours, what the system refuses, or Ctrl-C."""
    return isinstance(error, (TrainerError, OSError, KeyboardInterrupt))


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends with ``error``."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.exit_code if isinstance(error, TrainerError) else 1
