"""The environment: which prefix is examined, which interpreter it belongs to, without running anything."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from envguard.acquire.packages import interpreter
from envguard.acquire.packages.sys_path import EditableFinder, Layout, PthLine, SysPath, SysPathEntry
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.errors import InputError
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem, Python

Kind = Literal["venv", "conda", "system"]
# Links from a venv's python to the interpreter it was made from; more than this is a loop.
MOST_LINKS = 40


@dataclass(frozen=True)
class Environment:
    """One Python prefix as it would start: `sys_path` in the order in which import searches it.

    `site` are the site-packages directories in that order. `how` says what named this environment.
    """

    prefix: str
    executable: str | None
    base: str | None
    kind: Kind
    implementation: str | None
    version: str | None
    abi: str | None
    platform: str | None
    sys_path: tuple[SysPathEntry, ...]
    site: tuple[str, ...]
    how: str
    extends: str | None = None
    """The environment over which uv laid this one for a single command; its packages are on the path, too."""
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
            extends=self.extends,
        )


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
        if found is not None:
            return _read(host, prefix, found, executable, how, pythonpath)
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
        usable = (prefix for _, prefix, _ in _candidates(host, start) if not is_tool(host, prefix))
        return next((prefix for prefix in usable if is_environment(host, prefix)), None)
    path = posixpath.normpath(named if named.startswith("/") else f"{start}/{named}")
    try:
        if host.stat_target(path).is_directory:
            return path
    except OSError:
        found = which(host, named) if "/" not in named else None
        return prefix_of(host, found) if found is not None else None
    return prefix_of(host, path)


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
    return _read(host, path, kind, None, f"--python {named}", pythonpath)


def _of_interpreter(host: Host, path: str, how: str, pythonpath: Sequence[str] | None) -> Environment:
    """Of an interpreter: links are followed only until a prefix is found, since a venv's python is itself a link."""
    prefix = prefix_of(host, path)
    kind = _prefix_kind(host, prefix) if prefix is not None else None
    if prefix is None or kind is None:
        raise InputError(
            f"{path} is not a Python interpreter of any prefix", "`--python` takes a venv directory or an interpreter"
        )
    return _read(host, prefix, kind, path, how, pythonpath)


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
        found = which(host, name)
        if found is not None:
            prefix = prefix_of(host, found)
            if prefix is not None:
                yield f"{name} on PATH", prefix, found


def prefix_of(host: Host, python: str) -> str | None:
    """The prefix whose interpreter this file is, by its place or by the links that it is; None for a launcher of a
    version manager, which chooses only when it runs."""
    seen = python
    for _ in range(MOST_LINKS):
        prefix = posixpath.dirname(posixpath.dirname(seen))
        if _prefix_kind(host, prefix) is not None:
            return prefix
        try:
            if not host.stat(seen).is_link:
                return None
            seen = posixpath.normpath(posixpath.join(posixpath.dirname(seen), host.readlink(seen)))
        except OSError:
            return None  # a link to nowhere is an interpreter of nothing
    return None


def which(host: Host, name: str) -> str | None:
    """The program of that name on PATH."""
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


def is_tool(host: Host, prefix: str) -> bool:
    """An environment that `uv tool` or pipx made for a program, envguard's own among them."""
    return any(_find(host, f"{prefix}/{name}") is not None for name in ("uv-receipt.toml", "pipx_metadata.json"))


def is_environment(host: Host, prefix: str) -> bool:
    """Whether a Python environment lies there."""
    return _prefix_kind(host, prefix) is not None


def _prefix_kind(host: Host, prefix: str) -> Kind | None:
    if _find(host, f"{prefix}/pyvenv.cfg") is not None:
        return "venv"
    if _find(host, f"{prefix}/conda-meta") is not None:
        return "conda"
    return "system" if interpreter.library_folders(host, prefix) else None


def _read(
    host: Host, prefix: str, kind: Kind, named: str | None, how: str, pythonpath: Sequence[str] | None
) -> Environment:
    notes = Notes()
    settings = _settings(host, prefix, notes) if kind == "venv" else {}
    executable = named or _executable(host, prefix)
    version = _library_folder(host, prefix, executable, settings)
    base = _base(host, prefix, kind, executable, settings, version)
    facts = interpreter.read_interpreter(host, base, version, executable, notes)
    said = settings.get("version_info") or settings.get("version")
    if said is not None and facts.version is not None and not _agrees(said, facts.version):
        says = f"made with Python {said}; the interpreter under it is {facts.version} now"
        notes.problem("base-changed", "python", says, f"{prefix}/pyvenv.cfg")
    if kind == "venv" and base is None:
        says = f"the interpreter it was made from is gone: {settings.get('home') or 'pyvenv.cfg names no home'}"
        notes.problem("base-gone", "python", says, f"{prefix}/pyvenv.cfg")
    path = _sys_path(host, prefix, kind, base, version, settings, notes, pythonpath)
    return Environment(
        prefix=prefix,
        executable=executable,
        base=base,
        kind=kind,
        implementation=facts.implementation,
        version=facts.version or (interpreter.plain_version(said) if said else None),
        abi=facts.abi,
        platform=facts.platform,
        sys_path=tuple(path.entries),
        site=tuple(e.path for e in path.entries if e.origin in ("site", "user site", "system site")),
        how=how,
        extends=settings.get("extends-environment"),
        pth=tuple(path.pth),
        finders=tuple(path.finders),
        problems=tuple(notes.problems),
        unknown=tuple(notes.unknown),
    )


def _executable(host: Host, prefix: str) -> str | None:
    for name in ("python", "python3"):
        if _find(host, f"{prefix}/bin/{name}") is not None:
            return f"{prefix}/bin/{name}"
    return None


def _library_folder(host: Host, prefix: str, executable: str | None, settings: dict[str, str]) -> str:
    """`python3.11`: what pyvenv.cfg says, else what the interpreter is called, else the newest that is there."""
    folders = interpreter.library_folders(host, prefix)
    said = settings.get("version_info") or settings.get("version")
    wanted = [".".join(said.split(".")[:2])] if said else []
    if executable is not None:
        wanted += re.findall(r"(\d+\.\d+t?)$", posixpath.basename(host.realpath(executable)))
    for version in wanted:
        for name in folders:
            if name.removeprefix("python").removeprefix("pypy") in (version, f"{version}t"):
                return name
    return folders[-1] if folders else (f"python{wanted[0]}" if wanted else "python3")


def _base(
    host: Host, prefix: str, kind: Kind, executable: str | None, settings: dict[str, str], version: str
) -> str | None:
    """The prefix that holds the standard library; None where a venv's is gone."""
    if kind != "venv":
        return prefix
    candidates = [posixpath.dirname(settings["home"])] if settings.get("home") else []
    if executable is not None:
        candidates.append(posixpath.dirname(posixpath.dirname(host.realpath(executable))))
    for candidate in candidates:
        if any(_find(host, f"{candidate}/{lib}/{version}/os.py") is not None for lib in ("lib", "lib64")):
            return candidate
    return None


def _agrees(said: str, version: str) -> bool:
    """Whether pyvenv.cfg (`3.11`, `3.11.7`, `3.11.7.final.0`) names this version."""
    plain = interpreter.plain_version(said)
    return version == plain or version.startswith(plain + ".")


def _sys_path(
    host: Host,
    prefix: str,
    kind: Kind,
    base: str | None,
    version: str,
    settings: dict[str, str],
    notes: Notes,
    pythonpath: Sequence[str] | None,
) -> SysPath:
    environ = host.environ()
    if environ.get("PYTHONHOME"):
        says = f"PYTHONHOME is set ({environ['PYTHONHOME']}): interpreters started here take their library from there"
        notes.problem("pythonhome", "python", says)
    if pythonpath is None:
        start = host.machine().cwd
        pythonpath = [posixpath.join(start, path) for path in environ.get("PYTHONPATH", "").split(":") if path]
    user_base = environ.get("PYTHONUSERBASE") or (f"{environ['HOME']}/.local" if environ.get("HOME") else None)
    layout = Layout(
        prefix=prefix,
        base=base,
        version=version,
        virtual=kind == "venv",
        # As site.py has it: a pyvenv.cfg that does not say so lets them in.
        system_site=settings.get("include-system-site-packages", "true").lower() == "true",
        user_site=None
        if user_base is None or environ.get("PYTHONNOUSERSITE")
        else f"{user_base}/lib/{version}/site-packages",
        pythonpath=tuple(posixpath.normpath(path) for path in pythonpath),
    )
    return SysPath(host, layout, notes)


def _settings(host: Host, prefix: str, notes: Notes) -> dict[str, str]:
    """pyvenv.cfg as it is read by the interpreter: `key = value`, keys in lower case."""
    try:
        text = host.read(f"{prefix}/pyvenv.cfg", 64 << 10).decode("utf-8", "replace")
    except OSError as error:
        notes.unseen("pyvenv.cfg", error)
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}
