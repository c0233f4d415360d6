"""The project: its root, its configuration, and where envguard keeps its state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envguard import config as configuration
from envguard.config import Config


@dataclass(frozen=True)
class Project:
    """`root` is None outside any project; `state` is where the journal, vault, runs and roll-back points live."""

    root: Path | None
    start: Path
    config: Config
    state: Path

    def path(self, relative: str) -> Path:
        """A configured path, taken from the project root (else from where the command was started)."""
        return (self.root or self.start) / Path(relative).expanduser()


def find_root(start: Path) -> Path | None:
    """The nearest folder upwards with envguard.toml, a pyproject.toml with [tool.envguard], or .git."""
    for folder in (start, *start.parents):
        if configuration.there(folder / "envguard.toml"):
            return folder
        if configuration.has_table(folder / "pyproject.toml"):
            return folder
        if (folder / ".git").exists():
            return folder
    return None


def open_project(start: Path, environ: Mapping[str, str], prefix: str | None = None) -> Project:
    """The project around `start`. `prefix` names the environment where there is no root to keep state in."""
    root = find_root(start)
    config = configuration.load(root, environ, user_config_file(environ))
    return Project(root, start, config, _state(root, start, config, environ, prefix))


def user_config_file(environ: Mapping[str, str]) -> Path | None:
    """`envguard/envguard.toml` in the user's configuration folder.

    On Linux platformdirs gives `$XDG_CONFIG_HOME` or `~/.config`; asked for by hand, since importing it costs a
    training process what one look-up in the environment does not.
    """
    base = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else None)
    return Path(base) / "envguard" / "envguard.toml" if base else None


def _state(root: Path | None, start: Path, config: Config, environ: Mapping[str, str], prefix: str | None) -> Path:
    if config.state is not None:
        return (root or start) / Path(config.state).expanduser()
    if root is not None:
        return root / ".envguard"
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "/", ".local", "state")
    digest = hashlib.sha256((prefix or str(start)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Path(home) / "envguard" / digest
