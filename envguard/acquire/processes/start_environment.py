"""The environment variables that this process was started with, apart from what it has made of them since.

`os.environ` is what a process has now: torch, libraries and the script itself write into it. The kernel keeps what
it was executed with. Needs no more than the standard library: a stamp asks this in a training process.
"""

from __future__ import annotations

import os
import sys

# arg_start, arg_end, env_start and env_end of /proc/PID/stat (proc(5)), counted from the field after the command.
_EXTENTS = slice(45, 49)


def start_variables() -> dict[str, str] | None:
    """The variables at the start of this process, whatever secrets are among them; None where that is not known.

    A process that `multiprocessing` spawned belongs to the program that did so: it was executed with what its parent
    had made of the environment by then, so the parent's own start is the start of both.
    """
    parent = os.getppid()
    # As multiprocessing starts them: it knows the parent only after the main module, and this one, were imported.
    if sys.orig_argv[-1:] == ["--multiprocessing-fork"]:
        found = _read(parent)
        if found is not None and parent == os.getppid():  # while it is our parent, its number is no other's
            return found
    return _read("self")


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
