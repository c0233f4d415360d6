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
        if found is None:
            # It was chosen, and is broken: another one in its place would be examined for it in silence.
            raise InputError(f"{how} names {prefix}, {_why_none(host, prefix)}", _BROKEN)
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


_BROKEN = "make it anew (`uv venv`, `uv sync`), take the name away, or name the environment: `--python path/to/.venv`"


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
            yield variable, posixpath.normpath(posixpath.join(start, environ[variable])), None
    folder = start
    while True:
        # uv's own place of a project's environment, in the stead of `.venv`.
        if environ.get("UV_PROJECT_ENVIRONMENT") and _find(host, f"{folder.rstrip('/')}/pyproject.toml") is not None:
            path = posixpath.normpath(posixpath.join(folder, environ["UV_PROJECT_ENVIRONMENT"]))
            yield "UV_PROJECT_ENVIRONMENT", path, None
        elif _find(host, f"{folder}/.venv") is not None:
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
        if _find(host, f"{folder}/pyvenv.cfg") is not None:
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
        if _minor(said) == _minor(facts.version):
            says = f"made with Python {said}; the interpreter under it is {facts.version} now"
            notes.problem("base-changed", "python", says, f"{prefix}/pyvenv.cfg")
        else:
            unseen = _unseen_folders(host, prefix, version)
            says = f"made with Python {said}, and its interpreter is {facts.version} now{unseen}"
            notes.problem("base-minor", "python", says, f"{prefix}/pyvenv.cfg")
    if kind == "venv" and base is None:
        says = f"the interpreter it was made from is gone: {settings.get('home') or 'pyvenv.cfg names no home'}"
        notes.problem("base-gone", "python", says, f"{prefix}/pyvenv.cfg")
    elif kind == "venv" and (executable is None or not _runs(host, executable)):
        says = f"{executable or prefix + '/bin/python'} is gone, or a link to nothing: nothing starts here"
        notes.problem("base-gone", "python", says, f"{prefix}/pyvenv.cfg")
    elif kind == "venv" and executable is not None and _is_text(host, executable):
        says = f"{executable} is a script in the place of an interpreter: what it starts is not known"
        notes.problem("base-script", "python", says, executable)
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
    """`python3.11`: what the interpreter that starts is called, else what pyvenv.cfg says, else the newest that is
    there. An interpreter of another minor version under a venv reads none of the folders that are there."""
    folders = interpreter.library_folders(host, prefix)
    starts = _minor_of(host, executable) if executable is not None else None
    said = settings.get("version_info") or settings.get("version")
    wanted = starts or (".".join(said.split(".")[:2]) if said else None)
    if wanted is None:
        return folders[-1] if folders else "python3"
    for version in (wanted, f"{wanted}t"):
        for name in folders:
            if name.removeprefix("python").removeprefix("pypy") == version:
                return name
    return folders[-1] if folders and starts is None else f"python{wanted}"


def _minor_of(host: Host, executable: str) -> str | None:
    """`3.11`, `3.13t`: the version in the name of the file that starts; None where it is gone, or named without."""
    try:
        real = host.realpath(executable)
        host.stat_target(real)
    except OSError:
        return None
    match = re.search(r"(?:python|pypy)(\d+\.\d+t?)$", posixpath.basename(real))
    return match[1] if match else None


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


def _runs(host: Host, executable: str) -> bool:
    try:
        return host.stat_target(executable).is_file
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # whether it is there is not known, and what was not recorded is no finding


def _is_text(host: Host, executable: str) -> bool:
    try:
        return host.read(executable, 2) == b"#!"
    except OSError:
        return False  # what may be executed and not read is a program


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _unseen_folders(host: Host, prefix: str, version: str) -> str:
    """The library folders of the venv that its interpreter does not read."""
    unseen = [name for name in interpreter.library_folders(host, prefix) if name != version]
    return f": the packages in {', '.join(f'lib/{name}' for name in unseen)} cannot be imported" if unseen else ""


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
