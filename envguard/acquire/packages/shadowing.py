"""Modules that hide others: one name in two folders of the path, of which import takes the first."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING

from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.model.fingerprint import Shadowed

if TYPE_CHECKING:
    from envguard.acquire.packages.environment import Environment

Listing = tuple[tuple[str, str], ...]
# What packaging accidents leave at the top of site-packages, and nobody imports.
_NOT_MODULES = frozenset({"__pycache__", "bin", "include", "share", "etc", "lib"})


def find_shadowed(host: Host, env: Environment, listings: Mapping[str, Listing]) -> tuple[Shadowed, ...]:
    """Every module of a site-packages folder, or of an editable install, that something earlier on the path hides.

    A folder without `__init__` is a part of a namespace and hides nothing that is a package elsewhere.
    """
    first: dict[str, str] = {}
    found: list[Shadowed] = []
    for entry in env.sys_path:
        for name, path in modules_of(entry.path, listings.get(entry.path, ())).items():
            earlier = first.get(name)
            if earlier is None:
                first[name] = path
            elif entry.origin != "stdlib" and _is_module(host, path):
                if _is_module(host, earlier):
                    found.append(Shadowed(name=name, wins=earlier, loses=path))
                else:
                    first[name] = path
    for finder in env.finders:
        for name, source in sorted(finder.mapping.items()):
            earlier = first.get(name)
            # The finder of an editable install is asked last: a copy that lies on the path wins.
            if earlier is not None and earlier not in (source, f"{source}.py") and _is_module(host, earlier):
                found.append(Shadowed(name=name, wins=earlier, loses=source))
    return tuple(found)


# Module → distributions that bring it: those whose replacement by a stray file costs a run most.
_STACK = {
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton"),
    "numpy": ("numpy",),
    "transformers": ("transformers",),
    "flash_attn": ("flash-attn",),
    "sglang": ("sglang",),
    "vllm": ("vllm",),
}


def judge_start(host: Host, start: str, env: Environment, installed: frozenset[str], notes: Notes) -> None:
    """What lies in the starting folder and is imported, by `python -m` and scripts there, instead of a package."""
    if any(entry.path == start for entry in env.sys_path):
        return  # already on the path, and told as what it hides there
    for module, names in _STACK.items():
        if installed.isdisjoint(names):
            continue
        for path in (f"{start}/{module}/__init__.py", f"{start}/{module}.py"):
            try:
                found = host.find(path)
            except OSError as error:
                notes.unseen(f"whether {path} hides {module}", error)
                continue
            if found is not None:
                says = f"{path} is imported instead of the installed {module} by what is started from its folder"
                notes.problem("start-folder", names[0], says, path)


def modules_of(folder: str, listing: Listing) -> dict[str, str]:
    """Importable names at the top of a folder → path; a package comes before a module of the same name."""
    found: dict[str, str] = {}
    for name, kind in listing:
        if kind in ("directory", "link") and name.isidentifier():
            module = name
        elif name.endswith((".py", ".so")):
            module = name.partition(".")[0]
        else:
            continue
        if module.isidentifier() and module not in _NOT_MODULES:
            found.setdefault(module, f"{folder}/{name}")
    return found


def _is_module(host: Host, path: str) -> bool:
    if posixpath.splitext(path)[1] in (".py", ".so"):
        return True
    for name in ("__init__.py", "__init__.pyc", "__init__.so"):
        try:
            if host.find(f"{path}/{name}") is not None:
                return True
        except OSError:
            return True  # it is there and cannot be looked into: taken for what it looks like
    return False
