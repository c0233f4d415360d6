"""The environment: which prefix is examined, its interpreter, and its `sys.path`, without running anything."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from envguard.acquire.host import Host
from envguard.acquire.section import Notes
from envguard.errors import InputError
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem, Python

Origin = Literal["PYTHONPATH", "stdlib", "site", "user site", "system site", "pth"]
INTERPRETER = re.compile(r"(?:python|pypy)(\d+\.\d+)t?$")


@dataclass(frozen=True)
class SysPathEntry:
    """A directory (or zip) on the path, and what put it there; `by` is the .pth file where one did."""

    path: str
    origin: Origin
    by: str | None = None


@dataclass(frozen=True)
class Environment:
    """One Python prefix as it would start: `sys_path` in the order in which import searches it.

    `site` are the site-packages directories in that order. `how` says what named this environment.
    """

    prefix: str
    executable: str | None
    base: str | None
    kind: Literal["venv", "conda", "system"]
    implementation: str | None
    version: str | None
    abi: str | None
    platform: str | None
    sys_path: tuple[SysPathEntry, ...]
    site: tuple[str, ...]
    how: str
    pth: tuple[PthLine, ...] = ()
    finders: tuple[EditableFinder, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def as_model(self) -> Python:
        return Python(
            implementation=self.implementation,
            version=self.version,
            abi=self.abi,
            platform=self.platform,
            prefix=self.prefix,
            executable=self.executable,
            base=self.base,
            kind=self.kind,
        )


@dataclass(frozen=True)
class PthLine:
    """A line of a .pth file: a directory that it adds, one that is not there, or code that start-up would run."""

    file: str
    number: int
    kind: Literal["path", "missing", "code"]
    text: str
    path: str | None = None
    leaves: bool = False
    """The path leads out of the environment."""


@dataclass(frozen=True)
class EditableFinder:
    """An `__editable___…_finder.py`: top-level name → source path, read with ast and never imported."""

    file: str
    mapping: dict[str, str] = field(default_factory=dict)
    namespaces: dict[str, tuple[str, ...]] = field(default_factory=dict)


def locate(host: Host, named: str | None, start: str) -> Environment:
    """The environment that the contract's order gives.

    `named` is what `--python` or ENVGUARD_PYTHON says: a venv directory, an interpreter, or a program on PATH.
    Raises `InputError` where that is none, or where there is none to be found.
    """
    if named is not None:
        return _named(host, named, start)
    skipped: list[str] = []
    for how, prefix, executable in _candidates(host, start):
        if _is_tool(host, prefix):
            skipped.append(prefix)
            continue
        found = _prefix_kind(host, prefix)
        if found is not None:
            return _read(host, prefix, found, executable, how)
    hint = "name one: `--python path/to/.venv` or `--python path/to/python`"
    if skipped:
        hint += f" ({', '.join(skipped)} is a tool's own environment and is not taken unless named)"
    raise InputError("no Python environment found: no VIRTUAL_ENV, CONDA_PREFIX, .venv or python3", hint)


def _named(host: Host, named: str, start: str) -> Environment:
    path = posixpath.normpath(named if named.startswith("/") else f"{start}/{named}")
    try:
        found = host.stat_target(path)
    except (FileNotFoundError, NotADirectoryError):
        on_path = _which(host, named) if "/" not in named else None
        if on_path is None:
            raise InputError(f"{named} is not there", "`--python` takes a venv directory or an interpreter") from None
        return _of_interpreter(host, on_path, f"--python {named}")
    except OSError as error:
        raise InputError(f"{named} cannot be read: {error.strerror or error}") from error
    if not found.is_directory:
        return _of_interpreter(host, path, f"--python {named}")
    kind = _prefix_kind(host, path)
    if kind is None:
        raise InputError(
            f"{named} is not a Python environment", "it has neither pyvenv.cfg nor bin/python; name its interpreter"
        )
    return _read(host, path, kind, None, f"--python {named}")


def _of_interpreter(host: Host, path: str, how: str) -> Environment:
    """Of an interpreter: links are followed only until a prefix is found, since a venv's python is itself a link."""
    seen = path
    for _ in range(40):
        prefix = posixpath.dirname(posixpath.dirname(seen))
        kind = _prefix_kind(host, prefix)
        if kind is not None and (kind != "system" or _lib_versions(host, prefix)):
            return _read(host, prefix, kind, path, how)
        if not host.stat(seen).is_link:
            break
        seen = posixpath.normpath(posixpath.join(posixpath.dirname(seen), host.readlink(seen)))
    raise InputError(f"{path} is not a Python interpreter of any prefix", "`--python` takes a venv or an interpreter")


def _candidates(host: Host, start: str) -> Iterator[tuple[str, str, str | None]]:
    """(how, prefix, interpreter) in the contract's order."""
    environ = host.environ()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield variable, posixpath.normpath(environ[variable]), None
    folder = start
    while True:
        if _find(host, f"{folder}/.venv") is not None:
            yield f"{folder}/.venv", f"{folder.rstrip('/')}/.venv", None
        if folder in ("/", ""):
            break
        folder = posixpath.dirname(folder)
    for name in ("python3", "python"):
        found = _which(host, name)
        if found is not None:
            prefix = _prefix_of(host, found)
            if prefix is not None:
                yield f"{name} on PATH", prefix, found


def _prefix_of(host: Host, interpreter: str) -> str | None:
    seen = interpreter
    for _ in range(40):
        prefix = posixpath.dirname(posixpath.dirname(seen))
        if _lib_versions(host, prefix) or _find(host, f"{prefix}/pyvenv.cfg") is not None:
            return prefix
        if not host.stat(seen).is_link:
            return None
        seen = posixpath.normpath(posixpath.join(posixpath.dirname(seen), host.readlink(seen)))
    return None


def _which(host: Host, name: str) -> str | None:
    for folder in host.environ().get("PATH", "").split(":"):
        if not folder.startswith("/"):
            continue
        path = f"{folder.rstrip('/')}/{name}"
        try:
            found = host.stat_target(path)
        except OSError:
            continue  # what PATH names and cannot be run is no candidate
        if found.is_file and found.mode & 0o111:
            return path
    return None


def _find(host: Host, path: str) -> object | None:
    try:
        return host.find(path)
    except OSError:
        return None  # a place that cannot be seen holds no environment that could be examined


def _is_tool(host: Host, prefix: str) -> bool:
    """An environment that `uv tool` or pipx made for a program, envguard's own among them."""
    return any(_find(host, f"{prefix}/{name}") is not None for name in ("uv-receipt.toml", "pipx_metadata.json"))


def _prefix_kind(host: Host, prefix: str) -> Literal["venv", "conda", "system"] | None:
    if _find(host, f"{prefix}/pyvenv.cfg") is not None:
        return "venv"
    if _find(host, f"{prefix}/conda-meta") is not None:
        return "conda"
    return "system" if _lib_versions(host, prefix) else None


def _lib_versions(host: Host, prefix: str) -> tuple[str, ...]:
    """Names of the version folders of the standard library below a prefix: `python3.11`, newest last."""
    try:
        names = [name for name, kind in host.listing(f"{prefix}/lib") if kind in ("directory", "link")]
    except OSError:
        return ()
    return tuple(
        sorted((n for n in names if INTERPRETER.fullmatch(n)), key=lambda n: [int(p) for p in re.findall(r"\d+", n)])
    )


def _read(
    host: Host, prefix: str, kind: Literal["venv", "conda", "system"], executable: str | None, how: str
) -> Environment:
    notes = Notes()
    settings = _settings(host, prefix, notes) if kind == "venv" else {}
    home = settings.get("home")
    base = posixpath.dirname(home) if home else (prefix if kind != "venv" else None)
    version = settings.get("version_info") or settings.get("version")
    folders = _lib_versions(host, prefix)
    sys_path = tuple(SysPathEntry(f"{prefix}/lib/{name}/site-packages", "site") for name in folders[-1:])
    python = executable or f"{prefix}/bin/python"
    return Environment(
        prefix=prefix,
        executable=python if _find(host, python) is not None else None,
        base=base,
        kind=kind,
        implementation="CPython",
        version=version,
        abi=None,
        platform=None,
        sys_path=sys_path,
        site=tuple(entry.path for entry in sys_path),
        how=how,
        problems=tuple(notes.problems),
        unknown=tuple(notes.unknown),
    )


def _settings(host: Host, prefix: str, notes: Notes) -> dict[str, str]:
    """pyvenv.cfg as it is read by the interpreter: `key = value`, keys in lower case."""
    try:
        text = host.read(f"{prefix}/pyvenv.cfg", 64 << 10).decode("utf-8", "replace")
    except OSError as error:
        notes.unseen("pyvenv.cfg", error)
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}
