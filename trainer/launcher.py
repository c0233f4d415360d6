"""``trainer train`` with several ranks on one machine: starts them under torchrun and passes signals on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

import psutil

from trainer.config import Config

LAUNCHER = "TRAINER_LAUNCHER"
"""Environment variable: the process id of what started the ranks of this machine, if that was this trainer."""


def wants_ranks(config: Config, *, asked: bool) -> bool:
    """Whether the topology needs, or the command line asks for, ranks that nobody has started yet."""
    several = config.topology.targets + config.topology.drafters > 2
    return (several or asked) and "RANK" not in os.environ


def launch(config: Config, arguments: Sequence[str]) -> int:
    """Runs ``python -m trainer ARGUMENTS`` on every rank of this machine; returns the exit code that they agree on.

    SIGTERM and SIGINT go to the ranks themselves, which save and leave with 0; torchrun, told directly,
    would report a failure. The ranks end with this process, even if it is killed.
    """
    ranks = config.topology.targets + config.topology.drafters
    command = [sys.executable, "-m", "trainer.agent", str(ranks), *arguments]
    # A session of its own keeps a terminal's Ctrl-C from reaching torchrun before it reaches the ranks.
    agent = subprocess.Popen(command, start_new_session=True, env={**os.environ, LAUNCHER: str(os.getpid())})
    with forwarding(agent.pid):
        code = agent.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def forwarding(agent: int) -> Iterator[None]:
    """Passes SIGTERM and SIGINT to the agent's children; ends the agent while it has none."""

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(agent)
            ranks = process.children()
            for rank in ranks:
                rank.send_signal(number)
            if not ranks:
                process.terminate()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
