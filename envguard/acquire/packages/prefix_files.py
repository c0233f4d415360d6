"""An environment from the files of its prefix: its interpreter, and where an import searches; nothing is run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envguard.acquire.packages import interpreter
from envguard.acquire.packages.sys_path import EditableFinder, Layout, PthLine, SysPath, SysPathEntry
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
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


def is_there(host: Host, path: str) -> bool:
    try:
        return host.find(path) is not None
    except OSError:
        return False  # a place that cannot be seen holds no environment that could be examined


def read_environment(
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
        if is_there(host, f"{prefix}/bin/{name}"):
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
        if any(is_there(host, f"{candidate}/{lib}/{version}/os.py") for lib in ("lib", "lib64")):
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
