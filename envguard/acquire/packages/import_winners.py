"""Files that no RECORD lists and that an import takes before a file of the package: `nn.so` beside `nn.py`.

Python's order in one folder (`importlib.machinery.FileFinder`): a package, an extension module, a source file, and
last bytecode without a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envguard.acquire.packages.distributions import Distribution
from envguard.acquire.seam.host import Host, NotRecorded
from envguard.acquire.section import Notes
from envguard.state.digests import Digests

_PACKAGE, _EXTENSION, _SOURCE, _BYTECODE = range(4)


def judge_winners(
    host: Host, watched: Iterable[Distribution], every: Iterable[Distribution], abi: str | None, digests: Digests,
    notes: Notes,
) -> None:  # fmt: skip
    """Names, for each watched distribution, what is imported instead of one of its modules."""
    everyone = tuple(every)
    for dist in watched:
        if dist.editable is not None:
            continue
        own = own_paths(dist, digests)
        for path, module in _winners(host, dist, own, abi, notes):
            if not any(path in own_paths(each, digests) for each in everyone if each.location == dist.location):
                says = f"{path} is imported instead of {module}, and no package lists it: remove it"
                notes.problem("extra-import", dist.name, says, f"{dist.location}/{path}")


def own_paths(dist: Distribution, digests: Digests) -> frozenset[str]:
    """The files of a distribution, below its location."""
    seen = digests.package(dist.directory)
    if seen is not None:
        return frozenset(seen.paths.decode("utf-8", "surrogateescape").split("\0"))
    return frozenset(row.path for row in dist.record.rows) if dist.record is not None else frozenset()


def _winners(
    host: Host, dist: Distribution, own: frozenset[str], abi: str | None, notes: Notes
) -> Iterator[tuple[str, str]]:
    """(path that wins, path that loses), below the distribution's location."""
    for folder, best in _modules(own, abi).items():
        place = f"{dist.location}/{folder}"
        try:
            names = host.listing(place)
        except (FileNotFoundError, NotADirectoryError):
            continue  # what is missing is reported by whoever compares with RECORD
        except NotRecorded as error:
            # A bundle of a version that did not list folders holds none of the others, either.
            notes.unseen(f"whether files beside the modules of {dist.name} hide them", error)
            return
        except OSError as error:
            notes.unseen(f"whether a file in {place} hides a module of {dist.name}", error)
            continue
        for name, kind in names:
            if kind in ("directory", "link") and name in best and best[name][0] > _PACKAGE:
                if _is_package(host, dist, f"{folder}/{name}", abi, notes):
                    yield f"{folder}/{name}/__init__.py", best[name][1]
            elif (extra := _module(name, abi)) is not None:
                module, rank = extra
                if module in best and rank < best[module][0] and f"{folder}/{name}" not in own:
                    yield f"{folder}/{name}", best[module][1]


def _modules(own: Iterable[str], abi: str | None) -> dict[str, dict[str, tuple[int, str]]]:
    """Folder → module → (rank, path) of what an import should take, in the order of the folders."""
    modules: dict[str, dict[str, tuple[int, str]]] = {}
    for path in own:
        folder, _, name = path.rpartition("/")
        found = _module(name, abi) if folder else None
        if found is not None:
            module, rank = found
            best = modules.setdefault(folder, {})
            best[module] = min(best.get(module, (rank, path)), (rank, path))
    return dict(sorted(modules.items()))


def _module(name: str, abi: str | None) -> tuple[str, int] | None:
    """(module, rank) of a file; None where import takes it for none, as an extension of another Python."""
    module, _, suffix = name.partition(".")
    if suffix == "py":
        return module, _SOURCE
    if suffix == "pyc":
        return module, _BYTECODE
    if suffix in ("so", "abi3.so", f"{abi}.so"):
        return module, _EXTENSION
    return None


def _is_package(host: Host, dist: Distribution, path: str, abi: str | None, notes: Notes) -> bool:
    """Whether a folder is more than a part of a namespace: stubs (`__init__.pyi`) make it none."""
    try:
        found = (_module(name, abi) for name, _ in host.listing(f"{dist.location}/{path}"))
        return any(each is not None and each[0] == "__init__" for each in found)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        notes.unseen(f"whether {dist.location}/{path} hides a module of {dist.name}", error)
        return False
