"""Which environment `uv run` takes, by uv's own rules (measured with 0.13).

A project's environment is UV_PROJECT_ENVIRONMENT, else `.venv` at its root, whatever VIRTUAL_ENV names. With
`--no-sync` uv takes it as it is, also where `--python` or `.python-version` asks for another Python.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from envguard.acquire.packages.environment import is_environment
from envguard.acquire.seam.host import Host
from envguard.fingerprint.uv_choices import AskedOfUv, Kind, normalised
from envguard.launch.options import Options

_MOST_TOML = 4 << 20
_MOST_HEAD = 64 << 10
_NAMES: dict[str, Kind] = {"--extra": "extra", "--group": "group", "--only-group": "group"}
_LEFT_OUT: dict[str, Kind] = {"--no-extra": "extra", "--no-group": "group"}
_ALL: dict[str, Kind] = {"--all-extras": "extra", "--all-groups": "group"}
_OVERLAY = ("-w", "--with", "--with-editable", "--with-requirements")


@dataclass(frozen=True)
class Chosen:
    """The interpreter that `uv run` starts; None, and why, where it cannot be known before. `syncs`: uv installs
    first. `variables`: (why, what to write) where uv sets variables that are not known."""

    interpreter: str | None
    why: str = ""
    syncs: bool = False
    variables: tuple[tuple[str, str], ...] = ()


def choose(host: Host, options: Options, environ: Mapping[str, str], folder: str) -> Chosen:
    """Raises nothing: a pyproject.toml that cannot be read makes the choice unknown."""
    rest = options.rest
    if options.has(*_OVERLAY):
        return Chosen(None, "uv run --with lays another environment over the project's for this one command")
    if options.has("--isolated") or _is_on(environ, "UV_ISOLATED"):
        return Chosen(None, "uv run --isolated makes an environment for this one command")
    if rest and (rest[0] == "-" or "://" in rest[0]):
        return Chosen(None, f"uv run {rest[0]}: the script is not on this machine")
    if options.has("-s", "--script", "--gui-script") or (rest and has_inline_metadata(host, _at(folder, rest[0]))):
        return Chosen(None, "the script brings its own requirements, for which uv makes an environment in its cache")
    variables = _variables(options, environ)
    start = _at(folder, options.last("--project") or environ.get("UV_PROJECT") or ".")
    try:
        root = None if options.has("--no-project") or _is_on(environ, "UV_NO_PROJECT") else project_root(host, start)
    except ValueError as error:
        return Chosen(None, str(error))
    if root is None:
        return _without_project(host, options, environ, folder, variables)
    active = environ.get("VIRTUAL_ENV") if options.has("--active") else None
    prefix = _at(folder, active) if active else _at(root, environ.get("UV_PROJECT_ENVIRONMENT") or ".venv")
    syncs = not (options.has("--no-sync") or _is_on(environ, "UV_NO_SYNC"))
    if not is_environment(host, prefix):
        return Chosen(None, f"the project's environment {prefix} is not there, and uv would make it", syncs)
    return Chosen(f"{prefix}/bin/python", syncs=syncs, variables=variables)


def asked_of(options: Options) -> AskedOfUv:
    """The extras and groups that the options of `uv run` name."""
    named: list[tuple[Kind, str | None]] = []
    left_out: list[tuple[Kind, str]] = []
    for option, values in options.found:
        if option in _NAMES and values:
            named.append((_NAMES[option], normalised(values[0])))
        elif option in _LEFT_OUT and values:
            left_out.append((_LEFT_OUT[option], normalised(values[0])))
        elif option in _ALL:
            named.append((_ALL[option], None))
    package = options.last("--package")
    return AskedOfUv(tuple(named), tuple(left_out), normalised(package) if package is not None else None)


def _without_project(
    host: Host, options: Options, environ: Mapping[str, str], folder: str, variables: tuple[tuple[str, str], ...]
) -> Chosen:
    asked = options.last("-p", "--python") or environ.get("UV_PYTHON")
    if asked is not None:
        path = _at(folder, asked)
        if "/" not in asked and not is_environment(host, path):
            return Chosen(None, f"which interpreter uv takes for --python {asked} is known only when it runs")
        return Chosen(f"{path}/bin/python" if is_environment(host, path) else path, variables=variables)
    named = [environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    while True:
        named.append(f"{folder.rstrip('/')}/.venv")
        if folder in ("/", ""):
            break
        folder = posixpath.dirname(folder)
    found = next((prefix for prefix in named if is_environment(host, prefix)), None)
    if found is None:
        return Chosen(None, "without a project and a virtual environment uv searches for an interpreter when it runs")
    return Chosen(f"{found}/bin/python", variables=variables)


def project_root(host: Host, start: str) -> str | None:
    """The root of the project, or of the workspace that it is a member of.

    Raises ValueError for a pyproject.toml that cannot be read.
    """
    found = None
    folder = start
    while True:
        read = _pyproject(host, folder)
        if read is not None and found is None:
            uv = _table(_table(read, "tool"), "uv")
            if uv.get("managed") is False:
                return None
            found = folder
            if "workspace" in uv:
                return folder
        elif read is not None and found is not None and _is_member(_table(_table(read, "tool"), "uv"), folder, found):
            return folder
        if folder in ("/", ""):
            return found
        folder = posixpath.dirname(folder)


def _is_member(uv: Mapping[str, Any], root: str, member: str) -> bool:
    workspace = _table(uv, "workspace")
    name = posixpath.relpath(member, root)

    def holds(key: str) -> bool:
        patterns = workspace.get(key)
        return isinstance(patterns, list) and any(fnmatch(name, str(pattern).rstrip("/")) for pattern in patterns)

    return holds("members") and not holds("exclude")


def _pyproject(host: Host, folder: str) -> Mapping[str, Any] | None:
    path = f"{folder.rstrip('/')}/pyproject.toml"
    try:
        data = host.read(path, _MOST_TOML + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        if len(data) > _MOST_TOML:
            raise ValueError("it is too long")
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _table(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _variables(options: Options, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    file = options.last("--env-file") or environ.get("UV_ENV_FILE")
    if file is None or options.has("--no-env-file"):
        return ()
    return ((f"uv run takes variables from {file}", "set them before `envguard launch` and write --no-env-file"),)


def is_script(host: Host, path: str, word: str) -> bool:
    """Whether `uv run WORD` hands the word to the interpreter: a Python file, or a folder with a `__main__.py`."""
    if word.endswith((".py", ".pyw")):
        return _is_there(host, path)
    return "/" in word and _is_there(host, f"{path}/__main__.py")


def has_inline_metadata(host: Host, path: str) -> bool:
    """Whether a script declares its requirements in itself (PEP 723)."""
    if not path.endswith((".py", ".pyw")):
        return False
    try:
        text = host.read(path, _MOST_HEAD)
    except OSError:
        return False  # the command itself reports what it cannot read
    return any(line.rstrip() == b"# /// script" for line in text.splitlines())


def _is_there(host: Host, path: str) -> bool:
    try:
        host.stat_target(path)
    except OSError:
        return False
    return True


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")


def _at(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))
