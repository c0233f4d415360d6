"""``python -m trainer.agent RANKS ARGUMENTS``: torchrun's agent, with ``python -m trainer ARGUMENTS`` on each rank.

A process of its own between the command and the ranks. What torchrun can do here is asked in it, so that torch is
imported once on the way to the ranks, not twice.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import get_args_parser
from torch.distributed.run import main as torchrun

from trainer.errors import RankFailed


def virtual_rank(ranks: int) -> list[str]:
    """Lets each rank see its GPU as cuda:0, so that ranks share compiled code, where torchrun can do that.

    With fewer GPUs than ranks it would show the last ranks a GPU that is not there.
    """
    if torch.cuda.device_count() < ranks:
        return []
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    return ["--virtual-local-rank"] if "--virtual-local-rank" in known else []


def main(ranks: int, arguments: Sequence[str]) -> int:
    """Starts the ranks of this machine and waits for them; returns the exit code of the one that failed first.

    Each rank says itself why it fails: torchrun's own account of it, with a traceback, would bury that.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # what torchrun would set, with a warning
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    start = ["--standalone", "--nproc-per-node", str(ranks), *virtual_rank(ranks)]
    try:
        torchrun([*start, "-m", "trainer", *arguments])
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda failure: failure[1].timestamp)
        return first_cause([(rank, failure.exitcode) for rank, failure in failures])
    except SignalException as error:
        return 128 + error.sigval
    return 0


def first_cause(failures: Sequence[tuple[int, int]]) -> int:
    """The exit code of the first of (rank, exit code) that follows from no other; says who was killed.

    Asked to end before it could save, a rank ends by that signal: nothing has failed.
    """
    followed = (RankFailed.exit_code, -signal.SIGTERM)  # by the death watch, or by torchrun
    rank, code = next((failure for failure in failures if failure[1] not in followed), failures[0])
    if code >= 0 or -code in (signal.SIGTERM, signal.SIGINT):
        return code if code >= 0 else 128 - code
    print(f"error: rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr)
    return RankFailed.exit_code


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
