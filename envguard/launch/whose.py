"""Which environment COMMAND itself runs in, where its words tell: that one is to be compared, and no other."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

from envguard.acquire.packages.environment import is_tool, prefix_of
from envguard.acquire.seam.host import Host

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?$")
# Scripts that start the trainer with the interpreter that they themselves run on. Of others (`uv run`, `poetry run`,
# `conda run`) their own interpreter tells nothing.
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "ipython", "ipython3", "lightning", "fabric", "composer"}
)
# They execute the words after their own options.
_WRAPPERS = frozenset({"env", "nice", "nohup", "setsid", "ionice", "taskset", "numactl", "stdbuf", "time", "timeout"})
_MOST_WORDS = 12
_HEAD = 4096


def command_python(host: Host, command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The interpreter that COMMAND runs on, as `--python` would name it; None where its words do not tell.

    A tool's own environment (`uv tool`, pipx) is none that a training runs in.
    """
    path = _program(command, environ)
    if path is None:
        return None
    python: str | None = path
    if not _PYTHON.match(posixpath.basename(path)):
        python = _of_script(host, path)
    prefix = prefix_of(host, python) if python is not None else None
    return None if prefix is None or is_tool(host, prefix) else python


def _program(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The interpreter or launcher that the first words name, behind what merely wraps it; as an absolute path."""
    wrapped = False
    for word in command[:_MOST_WORDS]:
        name = posixpath.basename(word)
        if _PYTHON.match(name) or name in _LAUNCHERS:
            found = shutil.which(word, path=environ.get("PATH"))
            return os.path.abspath(found) if found is not None else None
        if name in _WRAPPERS:
            wrapped = True
        elif not wrapped:
            return None
    return None


def _of_script(host: Host, path: str) -> str | None:
    """The interpreter in the first line of a script, or in the second where the path was too long for the first."""
    try:
        lines = host.read(path, _HEAD).decode("utf-8", "replace").splitlines()[:2]
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec'"):
        words = shlex.split(lines[1].removeprefix("'''exec'"))
    return next((word for word in words if word.startswith("/") and _PYTHON.match(posixpath.basename(word))), None)
