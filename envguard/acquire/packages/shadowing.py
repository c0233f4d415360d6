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


# Import names of distributions that are called otherwise.
_CALLED: dict[str, tuple[str, ...]] = {
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"),
    "PIL": ("pillow",),
    "yaml": ("pyyaml",),
    "cv2": ("opencv-python", "opencv-python-headless"),
    "sklearn": ("scikit-learn",),
    "google": ("protobuf",),
    "attr": ("attrs",),
    "dateutil": ("python-dateutil",),
    "megatron": ("megatron-core",),
    "apex": ("apex", "nvidia-apex"),
}


def judge_start(host: Host, start: str, env: Environment, installed: frozenset[str], notes: Notes) -> None:
    """What is in the folder of the started code and is imported from there instead of an installed package.

    A package is known by its own name and by those of `_CALLED`: a top-level `tests` or `utils` that it also brings
    is nothing that anybody wants from it.
    """
    if any(entry.path == start for entry in env.sys_path):
        return  # already on the path, and reported as what it hides there
    try:
        there = modules_of(start, host.listing(start))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        notes.unseen(f"whether a file in {start} hides an installed package", error)
        return
    owners = {name.replace("-", "_"): name for name in installed}
    owners |= {module: name for module, names in _CALLED.items() for name in names if name in installed}
    for module, path in sorted(there.items()):
        if module in owners and _is_module(host, path):
            says = f"{path} is imported instead of the installed {module} by what is started from its folder"
            notes.problem("start-folder", owners[module], says, path)


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
