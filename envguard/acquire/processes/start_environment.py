"""The environment variables that this process was started with, apart from what it has made of them since.

`os.environ` is what a process has now: torch, libraries and the script itself write into it. The kernel keeps what
it was executed with. Needs no more than the standard library: a stamp asks this in a training process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# arg_start, arg_end, env_start and env_end of /proc/PID/stat (proc(5)), counted from the field after the command.
_EXTENTS = slice(45, 49)


# Launchers, which make an environment for each rank that they start, by the names of their scripts and modules.
_SCRIPTS = frozenset({"torchrun", "accelerate-launch", "deepspeed"})
_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "trainer.agent",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
        "deepspeed.launcher.launch",
    }
)
_MOST_ABOVE = 4
_PPID = 1


def start_variables() -> dict[str, str] | None:
    """The variables at the start of this process, whatever secrets are among them; None where that is not known.

    A process that `multiprocessing` spawned belongs to the program that did so: it was executed with what its parent
    had made of the environment by then, so the parent's own start is the start of both. So does a rank belong to the
    launcher that started it: accelerate and torchrun hand over settings that the shell of the next start has not.
    """
    first = parent = os.getppid()
    # As multiprocessing starts them: it knows the parent only after the main module, and this one, were imported.
    family = sys.orig_argv[-1:] == ["--multiprocessing-fork"]
    found = None
    for _ in range(_MOST_ABOVE):
        above = _read(parent) if family or _is_launcher(parent) else None
        if above is None:
            break
        found, family, parent = above, False, _parent_of(parent)
    # While it is our parent, its number is no other's.
    return found if found is not None and os.getppid() == first else _read("self")


def _is_launcher(process: int) -> bool:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as stream:
            return is_launcher(os.fsdecode(stream.read(8192)).split("\0"))
    except OSError:
        return False


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command line is that of a launcher of ranks: a script, or a module behind options of Python."""
    for number, word in enumerate(words[1:], 1):
        if word == "-c":
            return False
        if word == "-m":
            module, then = [*words[number + 1 :], "", ""][:2]
            return module in _MODULES or (module == "accelerate" and then == "launch")
        if not word.startswith("-") and words[number - 1] not in ("-X", "-W"):
            name = os.path.basename(word)
            return name in _SCRIPTS or (name == "accelerate" and [*words[number + 1 :], ""][0] == "launch")
    return False


def _parent_of(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[_PPID])
    except (OSError, ValueError, IndexError):
        return 0


def _read(process: int | str) -> dict[str, str] | None:
    texts = []
    try:
        for name in ("environ", "cmdline", "stat"):
            with open(f"/proc/{process}/{name}", "rb") as stream:
                texts.append(stream.read())
    except OSError:
        return None
    found = parse_start(*texts)
    # Memory in which nothing is left of what the process still has was put to another use.
    if found and not any(os.environ.get(name) == value for name, value in found.items()):
        return None
    return found


def parse_start(environ: bytes, cmdline: bytes, stat: bytes) -> dict[str, str] | None:
    """The variables in /proc/PID/environ; None where that memory holds, or may hold, other than what exec put there.

    A program that sets its title (setproctitle) writes it over its arguments and on into its environment, and fills
    up with zeros. The rest of an entry of which the beginning is overwritten looks like another variable: `ASH=x`
    would be taken for one, and HASH for one that was not there. So what a title has reached is not read at all.
    """
    fields = stat.rpartition(b")")[2].split()
    try:
        argument_start, argument_end, start, end = (int(field) for field in fields[_EXTENTS])
    except ValueError:
        return None
    # Of a title that runs past the arguments the kernel gives another length. Where it does not tell the extents
    # (0), nothing can be checked.
    if len(cmdline) != argument_end - argument_start or not cmdline.endswith(b"\0"):
        return None
    if start == 0 or len(environ) != end - start:
        return None
    entries = environ.split(b"\0")
    if entries.pop() != b"" or any(entry.find(b"=") < 1 for entry in entries):
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    # Of a name that is there twice Python takes the first.
    return {name: value for name, _, value in reversed(list(pairs))}
