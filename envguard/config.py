"""Configuration: command line > ENVGUARD_* > envguard.toml or [tool.envguard] > user config > defaults.

The command line is laid over by the commands themselves; everything below it is merged here. An unknown key of a file
is an error with a suggestion, because a misspelt `refuse` that is silently ignored would start a run that should not.
An unknown variable is a warning: who set it for a fleet may have meant another version, or another program.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from envguard.acquire.seam.collector.contents import read
from envguard.errors import UsageError

MOST_BYTES = 16 << 20
"""Of a configuration file: those of large projects have some hundred KB."""
_HEAD = re.compile(rb"^[ \t]*\[+[ \t]*[\"']?tool[\"']?[ \t]*\.[ \t]*[\"']?envguard\b", re.MULTILINE)


class PolicyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Overrides the grade of a drift: `facet`, an optional `subject` (shell pattern), and the new `severity`."""

    facet: str
    severity: Literal["block", "warn", "info"]
    subject: str = "*"
    because: str | None = None


class LogFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of a training log's fields where they are none of the usual ones."""

    step: str | None = None
    time: str | None = None
    tok_s: str | None = None
    loss: str | None = None
    q_pre: str | None = None
    q_hs: str | None = None
    samples: str | None = None


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The guard over tok/s: below `fraction` of the baseline for `seconds`, after `warmup_steps`."""

    # Beyond these bounds every run would be told to be slow, or none.
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 20


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every key of envguard.toml; lists of paths are relative to the project root."""

    python: str | None = None
    state: str | None = None
    checkpoints: tuple[str, ...] = ("checkpoints", "outputs", "runs", "lightning_logs", "trainer_output")
    lock: str | None = None
    refuse: Literal["warn", "block"] = "warn"
    watch: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    compile_caches: tuple[str, ...] = ()
    uv_caches: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    link_mode: Literal["copy", "hardlink", "clone", "symlink"] = "copy"
    vault_max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 100 << 30
    vault_max_days: Annotated[int, msgspec.Meta(ge=0)] = 180
    shell_history: bool = False
    logs: tuple[str, ...] = ()
    log_fields: LogFields = LogFields()
    policy: tuple[PolicyRule, ...] = ()
    throughput: Throughput = Throughput()
    on_drift: Literal["warn", "stop"] = "warn"


KEYS = tuple(field.name for field in msgspec.structs.fields(Config))
_LISTS = {field.name for field in msgspec.structs.fields(Config) if str(field.type).startswith("tuple[str")}
# Variables under our prefix that are no configuration keys.
_OTHER_VARIABLES = {"ENVGUARD_PROJECT", "ENVGUARD_LAUNCH", "ENVGUARD_RUN_ID"}


def config_schema() -> dict[str, Any]:
    """The JSON Schema of what `envguard.toml` may hold; no key is required."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Config)}


def load(root: Path | None, environ: Mapping[str, str], user_file: Path | None) -> Config:
    """Merges user config, project config and ENVGUARD_* variables. Raises `UsageError`."""
    merged: dict[str, Any] = {}
    if user_file is not None and there(user_file):
        merged.update(_table(user_file, _parse(user_file)))
    if root is not None:
        merged.update(_project_table(root))
    merged.update(_from_environ(environ))
    return msgspec.convert(merged, Config)


def doubts(root: Path | None, start: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What of the configuration is passed over, a sentence each: variables of no key, and files between `start` and
    the root of which it is not known whether they hold a table of envguard's."""
    found = [f"variable {name} is ignored: {_suggested_variable(key)}" for name, key in _unknown_variables(environ)]
    for folder in (start, *start.parents):
        pyproject = folder / "pyproject.toml"
        if folder != root or not there(folder / "envguard.toml"):
            _, why = _pyproject_table(pyproject)
            found += [f"{pyproject} is ignored: {why}"] if why is not None else []
        if folder == root:
            break
    return tuple(found)


def parse_project_config(path: str, text: str, in_pyproject: bool) -> Config:
    """The configuration in a project's file that lies elsewhere: no variable and no user's file of this machine
    counts. Raises `UsageError`."""
    try:
        table = tomllib.loads(text)
        if in_pyproject:
            table = table["tool"]["envguard"]
        return msgspec.convert(_table(Path(path), table), Config)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {_why(error)}", "it has to be TOML in UTF-8") from error


def there(path: Path) -> bool:
    """Whether a name is there, whatever it is: a pipe in place of a configuration is an error, and not "none"."""
    return os.path.lexists(path)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, a number without end
        raise UsageError(
            f"{path} cannot be read: {_why(error)}", "it has to be TOML in UTF-8, and readable"
        ) from error


def _read(path: Path) -> bytes:
    """A regular file of a bounded size. Raises OSError."""
    data: bytes = read(str(path), MOST_BYTES + 1)  # type: ignore[no-untyped-call]
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")
    return data


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return getattr(error, "strerror", None) or str(error)


def has_table(pyproject: Path) -> bool:
    """Whether a pyproject.toml has [tool.envguard]. One that cannot be parsed has it where a line is its head."""
    return _pyproject_table(pyproject)[0]


def _pyproject_table(pyproject: Path) -> tuple[bool, str | None]:
    """Whether it has the table; where that is not known, False and the reason."""
    try:
        data = _read(pyproject)
    except (FileNotFoundError, NotADirectoryError):
        return False, None
    except OSError as error:
        return False, _why(error)
    try:
        tool = tomllib.loads(data.decode("utf-8")).get("tool", {})
    except (ValueError, RecursionError) as error:
        return (True, None) if _HEAD.search(data) else (False, _why(error))
    return isinstance(tool, dict) and "envguard" in tool, None


def _project_table(root: Path) -> dict[str, Any]:
    own = root / "envguard.toml"
    if there(own):
        return _table(own, _parse(own))
    pyproject = root / "pyproject.toml"
    if has_table(pyproject):
        return _table(pyproject, _parse(pyproject)["tool"]["envguard"])
    return {}


def _table(path: Path, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.envguard is no table", "write it as `[tool.envguard]`")
    for key in table:
        if key.replace("-", "_") not in KEYS:
            raise UsageError(f"{path}: unknown key {key!r}", _suggestion(key))
    found = {key.replace("-", "_"): value for key, value in table.items()}
    _check_values(str(path), found)
    return found


def _check_values(source: str, table: dict[str, Any]) -> None:
    """Each source by itself, so that the error names the file or the variable. Raises `UsageError`."""
    try:
        msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        says, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`")
        allowed = ", ".join(_allowed(key))
        hint = f"`{key}` is one of: {allowed}" if allowed else "docs/configuration.md says what each key takes"
        raise UsageError(f"{source}: {key}: {says}" if key else f"{source}: {says}", hint) from error


def _allowed(key: str) -> tuple[str, ...]:
    """The words that a key takes; empty where it takes others than a few words."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(Config)}
    return get_args(kinds[key]) if get_origin(kinds.get(key)) is Literal else ()


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1)
    return f"did you mean `{close[0]}`?" if close else f"the keys are: {', '.join(KEYS)}"


def _suggested_variable(key: str) -> str:
    close = difflib.get_close_matches(key, KEYS, n=1)
    return f"did you mean `ENVGUARD_{close[0].upper()}`?" if close else f"the keys are: {', '.join(KEYS)}"


def _unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """(variable, key) of each that has our prefix and is none of ours."""
    ours = [name for name in environ if name.startswith("ENVGUARD_") and name not in _OTHER_VARIABLES]
    named = [(name, name.removeprefix("ENVGUARD_").lower()) for name in sorted(ours)]
    return [(name, key) for name, key in named if key not in KEYS]


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith("ENVGUARD_") or variable in _OTHER_VARIABLES:
            continue
        key = variable.removeprefix("ENVGUARD_").lower()
        if key not in KEYS:
            continue  # `doubts` names it: a stray variable of a fleet must not end every command on it
        if key in _LISTS:
            found[key] = [part for part in value.split(os.pathsep) if part]
        elif key in ("shell_history", "vault_max_bytes", "vault_max_days"):
            try:
                found[key] = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise UsageError(
                    f"{variable}={value!r}: {error}", "write it as in TOML: a number, `true` or `false`"
                ) from error
        else:
            found[key] = value
        _check_values(f"variable {variable}", {key: found[key]})
    return found
