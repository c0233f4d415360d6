"""Where uv keeps its caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.config import Config
from envguard.model.evidence import Unknown
from envguard.model.parsing import Unparsed, parse_toml, why

MOST_TOML = 16 << 20


def cache_directories(
    host: Host, env: Environment | None, config: Config, unknown: list[Unknown] | None = None
) -> tuple[str, ...]:
    """Where uv caches may lie, most likely first, each once: UV_CACHE_DIR, uv's configuration, the default place,
    and the extra ones of envguard's configuration. They need not exist. A configuration of uv's that cannot be read
    is added to `unknown`: it may name another cache."""
    environ, machine = host.environ(), host.machine()
    home = environ.get("HOME") or machine.home
    found = [environ["UV_CACHE_DIR"]] if environ.get("UV_CACHE_DIR") else []
    found += _configured(host, unknown)
    found.append(f"{environ.get('XDG_CACHE_HOME') or f'{home}/.cache'}/uv")
    found += config.uv_caches
    real: dict[str, None] = {}
    for path in found:
        path = f"{home}{path[1:]}" if path == "~" or path.startswith("~/") else path
        real[host.realpath(path if path.startswith("/") else f"{machine.cwd}/{path}")] = None
    return tuple(real)


def settings(host: Host, unknown: list[Unknown] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """uv's configuration as (folder, table): the nearest uv.toml and [tool.uv] first, then the user's and the
    system's."""
    environ, machine = host.environ(), host.machine()
    home = environ.get("HOME") or machine.home
    folder = machine.cwd.rstrip("/")
    while folder:
        for name in ("uv.toml", "pyproject.toml"):
            table = _toml(host, f"{folder}/{name}", unknown)
            if name == "pyproject.toml":
                table = table.get("tool", {}).get("uv", {}) if isinstance(table.get("tool"), dict) else {}
            if isinstance(table, dict):
                yield folder, table
        folder = folder.rpartition("/")[0]
    for place in (f"{environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/uv", "/etc/uv"):
        yield place, _toml(host, f"{place}/uv.toml", unknown)


def _configured(host: Host, unknown: list[Unknown] | None) -> Iterator[str]:
    for folder, table in settings(host, unknown):
        value = table.get("cache-dir")
        if isinstance(value, str):
            yield value if value[:1] in "/~" else f"{folder}/{value}"


def _toml(host: Host, path: str, unknown: list[Unknown] | None) -> dict[str, Any]:
    try:
        return parse_toml(host.read(path, MOST_TOML))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, Unparsed) as error:
        if unknown is not None:
            # A cache is a witness beside others: without it less is known, and nothing is taken for what it is not.
            unknown.append(Unknown(f"uv cache named by {path}", why(error), "aside"))
        return {}
