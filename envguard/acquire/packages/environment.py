"""Which environment is examined: what `--python`, a variable, a folder or PATH names, by CPython's own rules."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from envguard.acquire.packages import interpreter
from envguard.acquire.packages.prefix_files import Environment, Kind, is_there, read_environment
from envguard.acquire.seam.host import Host
from envguard.errors import InputError

__all__ = [
    "Environment",
    "find_prefix",
    "is_environment",
    "is_tool",
    "locate",
    "prefix_of",
    "which",
    "which_in",
]


def locate(host: Host, named: str | None, start: str, pythonpath: Sequence[str] | None = None) -> Environment:
    """The environment that the contract's order gives.

    `named` is what `--python` or ENVGUARD_PYTHON says: a venv directory, an interpreter, or a program on PATH.
    `pythonpath` are the folders that a living process has from PYTHONPATH, as absolute paths; without them the
    variable says it, as for a process that would be started now.
    Raises `InputError` where `named` is none, or where there is none to be found.
    """
    if named is not None:
        return _named(host, named, start, pythonpath)
    skipped: list[str] = []
    for how, prefix, executable in _candidates(host, start):
        if is_tool(host, prefix):
            skipped.append(prefix)
            continue
        found = _prefix_kind(host, prefix)
        if found is None:
            # It was chosen, and is broken: another one in its place would be examined for it in silence.
            raise InputError(f"{how} names {prefix}, {_why_none(host, prefix)}", _BROKEN)
        return read_environment(host, prefix, found, executable, how, pythonpath)
    hint = "name one: `--python path/to/.venv` or `--python path/to/python`"
    if skipped:
        hint += f" ({', '.join(skipped)} is a tool's own environment and is not taken unless named)"
    launcher = which(host, "python3")
    if launcher is not None and not skipped:
        raise InputError(
            f"no Python environment found: no VIRTUAL_ENV, CONDA_PREFIX or .venv, and {launcher} lies in no prefix",
            "a launcher of pyenv, asdf or mise chooses only when it runs; name what it chooses: "
            """`--python "$(python3 -c 'import sys; print(sys.prefix)')"`""",
        )
    raise InputError("no Python environment found: no VIRTUAL_ENV, CONDA_PREFIX, .venv or python3", hint)


def find_prefix(host: Host, named: str | None, start: str) -> str | None:
    """The prefix that `locate` would take, without reading the environment; None where there is none."""
    if named is None:
        first = next((prefix for _, prefix, _ in _candidates(host, start) if not is_tool(host, prefix)), None)
        return first if first is not None and is_environment(host, first) else None
    path = posixpath.normpath(named if named.startswith("/") else f"{start}/{named}")
    try:
        if host.stat_target(path).is_directory:
            return path
    except OSError:
        found = which(host, named) if "/" not in named else None
        return prefix_of(host, found) if found is not None else None
    return prefix_of(host, path)


_BROKEN = "make it anew (`uv venv --clear`), take the name away, or name the environment: `--python path/to/.venv`"


def _why_none(host: Host, prefix: str) -> str:
    """Why a path is no environment."""
    try:
        found = host.find(prefix)
        if found is None:
            return "which is not there"
        if not host.stat_target(prefix).is_directory:
            return "which is a file and no environment"
    except (FileNotFoundError, NotADirectoryError):
        return "which is a link to nothing"
    except OSError as error:
        return f"which cannot be read: {error.strerror or error}"
    return "which is no Python environment: it has neither pyvenv.cfg nor a library folder"


def _named(host: Host, named: str, start: str, pythonpath: Sequence[str] | None) -> Environment:
    path = posixpath.normpath(named if named.startswith("/") else f"{start}/{named}")
    try:
        found = host.stat_target(path)
    except (FileNotFoundError, NotADirectoryError):
        on_path = which(host, named) if "/" not in named else None
        if on_path is None:
            raise InputError(f"{named} is not there", "`--python` takes a venv directory or an interpreter") from None
        return _of_interpreter(host, on_path, f"--python {named}", pythonpath)
    except OSError as error:
        raise InputError(
            f"{named} cannot be read: {error.strerror or error}",
            "`--python` takes a venv directory or an interpreter",
        ) from error
    if not found.is_directory:
        return _of_interpreter(host, path, f"--python {named}", pythonpath)
    kind = _prefix_kind(host, path)
    if kind is None:
        raise InputError(
            f"{named} is not a Python environment", "it has neither pyvenv.cfg nor bin/python; name its interpreter"
        )
    return read_environment(host, path, kind, None, f"--python {named}", pythonpath)


def _of_interpreter(host: Host, path: str, how: str, pythonpath: Sequence[str] | None) -> Environment:
    """Of an interpreter: links are followed only until a prefix is found, since a venv's python is itself a link."""
    prefix = prefix_of(host, path)
    kind = _prefix_kind(host, prefix) if prefix is not None else None
    if prefix is None or kind is None:
        raise InputError(
            f"{path} is not a Python interpreter of any prefix", "`--python` takes a venv directory or an interpreter"
        )
    return read_environment(host, prefix, kind, path, how, pythonpath)


def _candidates(host: Host, start: str) -> Iterator[tuple[str, str, str | None]]:
    """(how, prefix, interpreter) in the contract's order."""
    environ = host.environ()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield variable, posixpath.normpath(posixpath.join(start, environ[variable])), None
    folder = start
    while True:
        # uv's own place of a project's environment, in the stead of `.venv`.
        if environ.get("UV_PROJECT_ENVIRONMENT") and is_there(host, f"{folder.rstrip('/')}/pyproject.toml"):
            path = posixpath.normpath(posixpath.join(folder, environ["UV_PROJECT_ENVIRONMENT"]))
            yield "UV_PROJECT_ENVIRONMENT", path, None
        elif is_there(host, f"{folder}/.venv"):
            yield f"{folder}/.venv", f"{folder.rstrip('/')}/.venv", None
        if folder in ("/", ""):
            break
        folder = posixpath.dirname(folder)
    for name in ("python3", "python"):
        found = which(host, name)
        if found is not None:
            prefix = prefix_of(host, found)
            if prefix is not None:
                yield f"{name} on PATH", prefix, found


def prefix_of(host: Host, python: str) -> str | None:
    """The prefix that an interpreter starts in, by CPython's rule (`Modules/getpath.py`; measured with 3.8 to 3.13).

    pyvenv.cfg is looked for beside the executable as it is named and one folder up, and its links are not followed: a
    lone link to a venv's python starts the base installation. Without one the prefix is that of the file behind the
    links. None for a launcher of a version manager, which chooses only when it runs.
    """
    beside = posixpath.dirname(python)
    for folder in (beside, posixpath.dirname(beside)):
        if is_there(host, f"{folder}/pyvenv.cfg"):
            return folder
    try:
        prefix = posixpath.dirname(posixpath.dirname(host.realpath(python)))
        host.stat_target(python)
    except OSError:
        return None  # a link to nowhere is an interpreter of nothing
    kind = _prefix_kind(host, prefix)
    # A copy of an interpreter within a venv, reached by a link from outside, searches where it was built for.
    return prefix if kind in ("conda", "system") else None


def which(host: Host, name: str) -> str | None:
    """The program of that name on PATH."""
    return which_in(host, name, host.environ().get("PATH", ""))


def which_in(host: Host, name: str, path: str) -> str | None:
    """The program of that name in the folders of a PATH."""
    for folder in path.split(":"):
        if not folder.startswith("/"):
            continue
        candidate = f"{folder.rstrip('/')}/{name}"
        try:
            found = host.stat_target(candidate)
        except OSError:
            continue  # what PATH names and cannot be run is no candidate
        if found.is_file and found.mode & 0o111:
            return candidate
    return None


def is_tool(host: Host, prefix: str) -> bool:
    """An environment that `uv tool` or pipx made for a program, envguard's own among them."""
    return any(is_there(host, f"{prefix}/{name}") for name in ("uv-receipt.toml", "pipx_metadata.json"))


def is_environment(host: Host, prefix: str) -> bool:
    """Whether a Python environment lies there."""
    return _prefix_kind(host, prefix) is not None


def _prefix_kind(host: Host, prefix: str) -> Kind | None:
    if is_there(host, f"{prefix}/pyvenv.cfg"):
        return "venv"
    if is_there(host, f"{prefix}/conda-meta"):
        return "conda"
    return "system" if interpreter.library_folders(host, prefix) else None
