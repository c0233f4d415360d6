"""Where uv keeps its caches."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.config import Config


def cache_directories(host: Host, env: Environment | None, config: Config) -> tuple[str, ...]:
    """Where uv caches may lie, most likely first, each once: UV_CACHE_DIR, uv's configuration, the default place,
    and the extra ones of envguard's configuration. They need not exist."""
    environ, machine = host.environ(), host.machine()
    home = environ.get("HOME") or machine.home
    found = [environ["UV_CACHE_DIR"]] if environ.get("UV_CACHE_DIR") else []
    found += _configured(host, machine.cwd, environ.get("XDG_CONFIG_HOME") or f"{home}/.config")
    found.append(f"{environ.get('XDG_CACHE_HOME') or f'{home}/.cache'}/uv")
    found += config.uv_caches
    real: dict[str, None] = {}
    for path in found:
        path = f"{home}{path[1:]}" if path == "~" or path.startswith("~/") else path
        real[host.realpath(path if path.startswith("/") else f"{machine.cwd}/{path}")] = None
    return tuple(real)


def _configured(host: Host, start: str, config_home: str) -> Iterator[str]:
    """`cache-dir` of the nearest uv.toml or [tool.uv], of the user's, and of the system's configuration."""
    folder = start.rstrip("/")
    while folder:
        for name in ("uv.toml", "pyproject.toml"):
            table = _toml(host, f"{folder}/{name}")
            if name == "pyproject.toml":
                table = table.get("tool", {}).get("uv", {}) if isinstance(table.get("tool"), dict) else {}
            if isinstance(table, dict) and isinstance(table.get("cache-dir"), str):
                yield table["cache-dir"] if table["cache-dir"][:1] in "/~" else f"{folder}/{table['cache-dir']}"
        folder = folder.rpartition("/")[0]
    for path in (f"{config_home}/uv/uv.toml", "/etc/uv/uv.toml"):
        value = _toml(host, path).get("cache-dir")
        if isinstance(value, str):
            yield value


def _toml(host: Host, path: str) -> dict[str, Any]:
    # A configuration file that uv itself could not use names no cache; it is not ours to complain about.
    try:
        return tomllib.loads(host.read(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
