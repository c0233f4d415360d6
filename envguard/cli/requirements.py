"""What the commands require: asked before any of it is imported, so by the standard library alone."""

from __future__ import annotations

REQUIRED = {
    "click": "click",
    "msgpack": "msgpack",
    "msgspec": "msgspec",
    "nvidia-ml-py": "pynvml",
    "packaging": "packaging",
    "rich": "rich",
    "tomli-w": "tomli_w",
    "typer": "typer",
    "uv": "uv",
}
"""Requirement → the module that it brings."""
OWN_ENVIRONMENT = "`uv tool install envguard-forensics` gives the commands an environment of their own"


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
