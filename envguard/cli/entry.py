"""Where `envguard` begins: whether what the commands require is here at all, before any of it is imported.

A training environment has envguard for its stamps, installed without what the commands require. Once that environment
is active, its `envguard` comes before the one that `uv tool install` made: it hands over to that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

REQUIRED = {
    "click": "click",
    "msgpack": "msgpack",
    "msgspec": "msgspec",
    "nvidia-ml-py": "pynvml",
    "packaging": "packaging",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "rich": "rich",
    "tomli-w": "tomli_w",
    "typer": "typer",
    "uv": "uv",
}
"""Requirement → the module that it brings."""
OWN_ENVIRONMENT = "`uv tool install envguard-forensics` gives the commands an environment of their own"


def main() -> NoReturn:
    """Runs the command line here, or the whole `envguard` that PATH names after this one."""
    lacking = [name for name, module in REQUIRED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        other = next_on_path(sys.argv[0], os.environ.get("PATH", os.defpath))
        if other is None:
            _explain(lacking)
        os.execv(other, [other, *sys.argv[1:]])
    from envguard.cli.app import main as run

    run()


def next_on_path(own: str, path: str) -> str | None:
    """The next `envguard` on PATH that is another file than `own`; only ever a later one, so that no two hand over to
    each other for ever."""
    here = os.path.realpath(own)
    found: list[str] = []
    for folder in path.split(":"):
        candidate = os.path.join(folder, "envguard")
        if not folder.startswith("/") or not os.access(candidate, os.X_OK) or os.path.isdir(candidate):
            continue
        if os.path.realpath(candidate) == here:
            found = []  # those before it hand over to it
        else:
            found.append(candidate)
    return found[0] if found else None


def unmet() -> list[str]:
    """What is installed here in another version than envguard requires; asked for when something has gone wrong."""
    import importlib.metadata

    from packaging.requirements import Requirement

    found = []
    try:
        for line in importlib.metadata.requires("envguard-forensics") or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                version = importlib.metadata.version(requirement.name)
                if not requirement.specifier.contains(version, prereleases=True):
                    found.append(f"{requirement} is required, and {version} is installed")
    except importlib.metadata.PackageNotFoundError:
        return []  # run from a checkout: nothing says what is required
    return found


def _explain(lacking: list[str]) -> NoReturn:
    message = (
        f"this envguard was installed into {sys.prefix} without what its commands require ({', '.join(lacking)}): "
        "that is enough for stamps alone"
    )
    hint = OWN_ENVIRONMENT
    if "--json" in sys.argv and "msgspec" not in lacking:
        from envguard.report.errors import print_error

        print_error(message, hint, 2, as_json=True)
    else:
        sys.stderr.write(f"error: {message}\nhint: {hint}\n")
    sys.exit(2)
