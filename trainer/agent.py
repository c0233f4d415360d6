"""``python -m trainer.agent RANKS ARGUMENTS``: torchrun's agent, with ``python -m trainer ARGUMENTS`` on each rank.

A process of its own between the command and the ranks. What torchrun can do here is asked in it, so that torch is
imported once on the way to the ranks, not twice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch.distributed.run import get_args_parser
from torch.distributed.run import main as torchrun


def virtual_rank(ranks: int) -> list[str]:
    """Lets each rank see its GPU as cuda:0, so that ranks share compiled code, where torchrun can do that.

    With fewer GPUs than ranks it would show the last ranks a GPU that is not there.
    """
    if torch.cuda.device_count() < ranks:
        return []
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    return ["--virtual-local-rank"] if "--virtual-local-rank" in known else []


def main(ranks: int, arguments: Sequence[str]) -> None:
    """Starts the ranks of this machine and waits for them; raises what torchrun raises."""
    start = ["--standalone", "--nproc-per-node", str(ranks), *virtual_rank(ranks)]
    torchrun([*start, "-m", "trainer", *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
