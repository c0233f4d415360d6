"""Which Python environment a program starts: that of the interpreter which it is, or which its first lines name."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass

from envguard.acquire.packages.environment import prefix_of, which_in
from envguard.acquire.seam.host import Host

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?")
_MOST_LINES = 1024


@dataclass(frozen=True)
class Started:
    """`interpreter` runs what is started; `prefix` is its environment, None for a launcher that chooses when it runs
    (pyenv, asdf, mise)."""

    interpreter: str
    prefix: str | None


def is_python(name: str) -> bool:
    """Whether a program of this name is an interpreter."""
    return _PYTHON.fullmatch(name) is not None


def started_by(host: Host, program: str, path: str | None = None) -> Started | None:
    """The interpreter that a program file starts; None where it is neither Python nor a script for it.

    `path` is the PATH that the program gets, for `#!/usr/bin/env python`; without it, the host's.
    """
    path = host.environ().get("PATH", "") if path is None else path
    # A link of another name to an interpreter is one, too.
    is_one = any(is_python(posixpath.basename(name)) for name in (program, host.realpath(program)))
    interpreter = program if is_one else _named_by_script(host, program, path)
    return None if interpreter is None else Started(interpreter, prefix_of(host, interpreter))


def _named_by_script(host: Host, program: str, path: str) -> str | None:
    """The Python of a script's first line: `#!/venv/bin/python`, `#!/usr/bin/env python3`, or, where the path is too
    long for a first line, the `exec` of a shell that installers write in its place."""
    try:
        head = host.read(program, _MOST_LINES)
    except OSError:
        return None  # what may be executed and not read is no script
    if not head.startswith(b"#!"):
        return None
    lines = head.decode("utf-8", "surrogateescape").splitlines()
    words = lines[0].removeprefix("#!").split()
    if len(words) > 1 and posixpath.basename(words[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        words = [named if "/" in named else which_in(host, named, path) or named]
    elif words and posixpath.basename(words[0]) == "sh" and len(lines) > 1 and lines[1].startswith("'''exec'"):
        words = _words(lines[1].removeprefix("'''exec'"))
    if words and "/" in words[0] and is_python(posixpath.basename(words[0])):
        return words[0]
    return None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # no shell would run it either
        return []
