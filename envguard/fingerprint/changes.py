"""What differs between two fingerprints besides packages: interpreter, code, config, data, variables.

The machine (driver, GPUs, memory, system) is compared in `machine_changes`, compile caches in `cache_changes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from envguard.fingerprint.rules import OWN, Change
from envguard.fingerprint.units import counted, size
from envguard.fingerprint.variables import MASKS, is_per_rank
from envguard.model.drift import Facet
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Binary, Code, Environment, FileSet, Fingerprint, Package, Python

Differences = Iterator[Change | Unknown]
# What torchrun sets where it is not set, so that a stamp of a rank has it and the shell that starts the run has not.
LAUNCHER_SETS = ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
# The packages whose ptxas inductor names to triton when it first compiles.
PTXAS_OWNERS = ("site-packages/torch", "site-packages/triton", "dist-packages/torch", "dist-packages/triton")


def not_recorded(facet: Facet, first_lacks: bool) -> Unknown:
    """One side never looked at this: it can be neither equal nor different."""
    return Unknown(facet, f"not recorded in {'A' if first_lacks else 'B'}")


def python_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """The interpreter; where its prefix lies is no difference."""
    for field in ("implementation", "abi", "platform", "version"):
        was, now = getattr(a.python, field), getattr(b.python, field)
        if was == now:
            continue
        if was is None or now is None:
            yield Unknown(f"python {field}", f"{'A' if was is None else 'B'} does not know it")
        else:
            minor = field == "version" and was.split(".")[:2] != now.split(".")[:2]
            yield Change("python", "minor" if minor else field, "changed", was, now)
    if a.python.version == b.python.version:  # another release has another binary
        yield from _binaries(a.python, b.python)


def _binaries(a: Python, b: Python) -> Differences:
    """Another build of the same release, or a binary that was changed where it lies."""
    if a.binaries is None or b.binaries is None:
        return
    changed = [name for name in sorted(a.binaries.keys() | b.binaries.keys()) if _is_other_build(name, a, b)]
    if changed:
        was, now = (", ".join(_build_of(side.binaries, name) for name in changed) for side in (a, b))
        yield Change("python", "build", "changed", was, now, ", ".join(changed))


def _is_other_build(name: str, a: Python, b: Python) -> bool:
    was, now = (a.binaries or {}).get(name), (b.binaries or {}).get(name)
    if was is None or now is None or (was.size, was.build_id) != (now.size, now.build_id):
        return True
    # Of one build, installers may write the place into it; without a build-id only the content names the build.
    return was.digest != now.digest and (a.base == b.base or was.build_id is None)


def _build_of(binaries: Mapping[str, Binary] | None, name: str) -> str:
    found = (binaries or {}).get(name)
    if found is None:
        return "none"
    return f"{found.size:,} bytes, sha256 {found.digest[:12]}"


def code_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """Git trees that the run executes from, by path; one tree on each side is the same tree, wherever it lies."""
    if a.code is None or b.code is None:
        if (a.code is None) != (b.code is None):
            yield not_recorded("code", a.code is None)
        return
    old, new = {tree.path: tree for tree in a.code}, {tree.path: tree for tree in b.code}
    if len(old) == len(new) == 1:
        yield from _tree(next(iter(old.values())), next(iter(new.values())))
        return
    moved = _moved_trees(a, b, old, new)
    for path in sorted((old.keys() | new.keys()) - set(moved.values())):
        if path in moved:
            yield from _tree(old[path], new[moved[path]])
        elif path not in new and any(_lies_in(package, path) for package in a.packages):
            detail = "no editable install leads there any more"
            yield Change("code", path, "unlinked", old[path].commit, None, detail)
        elif path not in new:
            yield Change("code", path, "removed", old[path].commit, None)
        elif path not in old:
            yield Change("code", path, "added", None, new[path].commit, "not recorded before")
        else:
            yield from _tree(old[path], new[path])


def _lies_in(package: Package, path: str) -> bool:
    return package.editable is not None and f"{package.editable}/".startswith(f"{path.rstrip('/')}/")


def _moved_trees(a: Fingerprint, b: Fingerprint, old: Mapping[str, Code], new: Mapping[str, Code]) -> dict[str, str]:
    """Path in A → path in B of a tree that an editable install of the same name leads to on each side alone."""
    here = {package.name: package for package in b.packages if package.editable is not None}
    found: dict[str, str] = {}
    for path in sorted(old.keys() - new.keys()):
        names = [package.name for package in a.packages if _lies_in(package, path)]
        theirs = {to for name in names if name in here for to in new if _lies_in(here[name], to) and to not in old}
        if len(theirs) == 1:
            found[path] = theirs.pop()
    return found if len(set(found.values())) == len(found) else {}


def _tree(old: Code, new: Code) -> Differences:
    subject = new.path
    if old.commit != new.commit:
        if old.commit is None or new.commit is None:
            yield Unknown(f"code {subject}", f"{'A' if old.commit is None else 'B'} does not know its commit")
        elif old.tree is not None and old.tree == new.tree:
            yield Change(
                "code", subject, "recommitted", old.commit, new.commit, "another commit of the very same files"
            )
        else:
            yield Change("code", subject, "changed", old.commit, new.commit)
    elif old.branch != new.branch:
        yield Change("code", subject, "branch", old.branch, new.branch, "the same commit on another branch")
    yield from _edits(subject, old, new)
    if old.untracked_digest != new.untracked_digest and None not in (old.untracked_digest, new.untracked_digest):
        detail = "files that git does not track differ"
        yield Change("code", subject, "untracked", old.untracked_digest, new.untracked_digest, detail)
    for name in sorted(old.submodules.keys() | new.submodules.keys()):
        was, now = old.submodules.get(name), new.submodules.get(name)
        if was != now:
            yield Change("code", f"{subject}/{name}", "submodule", was, now)


def _edits(subject: str, old: Code, new: Code) -> Differences:
    if old.dirty is None and new.dirty is None and old.commit is None and new.commit is None:
        if old.diff_digest != new.diff_digest:
            yield Change("code", subject, "files", old.diff_digest, new.diff_digest)
        return  # a file outside of version control: its content is all that is known
    if old.dirty is None or new.dirty is None:
        if old.dirty != new.dirty:
            yield Unknown(
                f"code {subject}", f"{'A' if old.dirty is None else 'B'} does not know its uncommitted edits"
            )
        return
    files = ", ".join(new.dirty_files) or "files not named"
    if new.dirty and not old.dirty:
        yield Change("code", subject, "dirty", None, new.diff_digest, files)
    elif old.dirty and not new.dirty:
        yield Change("code", subject, "clean", old.diff_digest, None)
    elif new.dirty and old.diff_digest != new.diff_digest:
        yield Change("code", subject, "edited", old.diff_digest, new.diff_digest, files)


def file_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """Configured config and data files."""
    yield from _file_sets("config", a.config, b.config)
    yield from _file_sets("data", a.data, b.data)


def _file_sets(
    facet: Literal["config", "data"], old: tuple[FileSet, ...] | None, new: tuple[FileSet, ...] | None
) -> Differences:
    if old is None or new is None:
        if (old is None) != (new is None):
            yield not_recorded(facet, old is None)
        return
    before, after = {item.path: item for item in old}, {item.path: item for item in new}
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was is None or now is None:
            kind = "added" if was is None else "removed"
            yield Change(facet, path, kind, _amount(was), _amount(now))
        elif (was.files == 0) != (now.files == 0):
            # A path that is configured and not there is kept as a set of no files.
            yield Change(facet, path, "missing" if now.files == 0 else "added", _amount(was), _amount(now))
        elif was.digest is None or now.digest is None:
            if was != now:
                yield _without_digest(facet, was, now)
        elif was.digest != now.digest:
            a, b = _amount(was), _amount(now)
            yield Change(facet, path, "changed", *((a, b) if a != b else (was.digest, now.digest)))


def _without_digest(facet: Facet, was: FileSet, now: FileSet) -> Change | Unknown:
    """Sizes can prove a difference, but never that there is none."""
    if None not in (was.bytes, now.bytes) and (was.bytes, was.rows, was.files) != (now.bytes, now.rows, now.files):
        return Change(facet, now.path, "changed", _amount(was), _amount(now))
    return Unknown(f"{facet} {now.path}", f"no digest in {'A' if was.digest is None else 'B'}")


def _amount(item: FileSet | None) -> str | None:
    if item is None or item.files == 0:
        return None
    return counted(item.rows, "row") or size(item.bytes) or item.digest


def variable_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """Environment variables that envguard looks at; a secret's value is known to neither side.

    torch, libraries and scripts write into the environment of their own process. What one did so is no difference
    from a shell, a launch or a process that has not done it: they compare by what it was started with.
    """
    if a.env is None or b.env is None:
        if (a.env is None) != (b.env is None):
            yield not_recorded("env", a.env is None)
        return
    old, new = a.env.variables, b.env.variables
    ranked = [any(is_per_rank(name) for name in variables) for variables in (old, new)]
    for name in sorted(old.keys() | new.keys() | (a.env.started or {}).keys() | (b.env.started or {}).keys()):
        change = _variable(name, a, a.env, b, b.env)
        if change is None:
            continue
        # A rank's launcher gives it its GPUs, and torchrun sets what its own start needs: the shell has neither.
        # Where the rank tells what its launcher was started with, that is what was compared.
        told = any(name in (env.started or {}) for env, rank in zip((a.env, b.env), ranked, strict=True) if rank)
        if change.kind == "changed" and (
            (name in MASKS and any(ranked)) or (name in LAUNCHER_SETS and ranked[0] != ranked[1] and not told)
        ):
            change = replace(change, kind="launcher")
        yield change


def _variable(name: str, a: Fingerprint, a_env: Environment, b: Fingerprint, b_env: Environment) -> Change | None:
    was, now = a_env.variables.get(name), b_env.variables.get(name)
    a_own, b_own = (env.started is not None and name in env.started for env in (a_env, b_env))
    if a_own == b_own:
        # Neither touched it, or both made it what they ran with.
        if was == now:
            return None
        by_torch = not a_own and (_by_torch(name, a, was, now) or _by_torch(name, b, now, was))
        return Change("env", name, "torch" if by_torch else "changed", was, now)
    started = ((a_env if a_own else b_env).started or {})[name]
    other, handed = (now, b) if a_own else (was, a)
    if started == other:
        return Change("env", name, OWN, was, now) if was != now else None
    if _is_process(handed):
        # Two processes: what counts is what each ran with.
        return Change("env", name, "changed", was, now) if was != now else None
    if started is None and was == now:
        return None  # it is handed over now, and the process gave itself the same
    # What is handed to the next process differs from what was handed to this one, whatever that made of it.
    return Change("env", name, "changed", *((started, now) if a_own else (was, started)))


def _is_process(side: Fingerprint) -> bool:
    """Whether the variables are those of a process that runs, not those which one would be started with."""
    return side.origin == "loaded" or (side.env is not None and side.env.started is not None)


def _by_torch(name: str, side: Fingerprint, value: str | None, other: str | None) -> bool:
    """Whether that is what torch itself sets where nothing is set, in a process that does not tell what it was
    started with: a stamp of an earlier envguard, or of a process that had overwritten that."""
    unrecorded = side.origin == "loaded" and side.env is not None and side.env.started is None
    if not unrecorded or value is None or other is not None:
        return False
    if name == "TRITON_PTXAS_PATH":
        return value.startswith(f"{side.python.prefix}/") and any(f"/{own}/" in value for own in PTXAS_OWNERS)
    return (name, value) == ("CUDA_MODULE_LOADING", "LAZY")
