"""What differs between the packages of two fingerprints: versions, builds, edits, what is broken by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envguard.fingerprint.requirements import Requirements, check_requirements, marker_environment
from envguard.fingerprint.rules import Change, is_torch_stack
from envguard.fingerprint.units import some_of
from envguard.model.drift import Facet
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Code, Fingerprint, Hook, HookKind, Package, Shadowed, Torch

TRITONS = (
    "triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "pytorch-triton-cpu", "triton-rocm",
    "triton-xpu", "triton-cpu", "triton-nightly", "triton-windows", "triton-ascend",
)  # fmt: skip
_FILES_NAMED = 4
_CUDA_MAJOR = re.compile(r"-cu\d+$")


def facet_of(name: str) -> Facet:
    """Where a package is reported: torch and triton, CUDA's run-time wheels, or the rest."""
    if name == "torch" or name in TRITONS:
        return "torch"
    return "cuda" if name.startswith("nvidia-") and is_torch_stack(name) else "packages"


def without_cuda_major(name: str) -> str:
    """`nvidia-cublas` of `nvidia-cublas-cu12`: the package under whatever CUDA it is for."""
    return _CUDA_MAJOR.sub("", name)


def picked(fingerprint: Fingerprint) -> dict[str, Package]:
    """Name → the distribution that import picks (the first on the path)."""
    found: dict[str, Package] = {}
    for package in fingerprint.packages:
        found.setdefault(package.name, package)
    return found


def full_version(fingerprint: Fingerprint, package: Package) -> str | None:
    """The version with its local tag: PyPI's torch has it in version.py and not in its metadata."""
    if package.name == "torch" and fingerprint.torch is not None and fingerprint.torch.version:
        return fingerprint.torch.version
    return package.version


def package_changes(a: Fingerprint, b: Fingerprint) -> Iterator[Change | Unknown]:
    """Every difference in packages, CUDA wheels and the torch build."""
    before, after = picked(a), picked(b)
    renamed = _renamed(before, after)
    for name, other in sorted(renamed.items()):
        was, now = before[name], after[other]
        yield Change(
            "cuda", without_cuda_major(other), "changed", f"{was.version} ({name})", f"{now.version} ({other})"
        )
    for name in sorted((before.keys() | after.keys()) - renamed.keys() - set(renamed.values())):
        old, new = before.get(name), after.get(name)
        if old is None and new is not None:
            facet = facet_of(name)
            # torch, triton and CUDA's wheels have rules of their own for what came later.
            hooks = _hooks(new.hooks or ()) if facet == "packages" else ""
            kind = "overlay" if is_laid_over(b, new) else "hooks" if hooks else "added"
            yield Change(facet, name, kind, None, full_version(b, new), hooks)
        elif new is None and old is not None:
            left = _code_of(b, old)
            kind = "overlay" if is_laid_over(a, old) else "metadata-gone" if left else "removed"
            yield Change(facet_of(name), name, kind, full_version(a, old), None, left or "")
        elif old is not None and new is not None:
            yield from _between(a, b, old, new)
            if old.hooks is not None and (fresh := [each for each in new.hooks or () if each not in old.hooks]):
                yield Change("packages", name, "hooked", full_version(a, old), full_version(b, new), _hooks(fresh))
    yield from _by_version_only(before, after)
    if "torch" not in before and "torch" not in after:
        yield from _torch_without_metadata(a.torch, b.torch)
    yield from _cuda_build(a, b)
    yield from _shadowed(a, b)
    yield from _requirements(a, b)


def _hidden(b: Fingerprint, old: Package, new: Package) -> Shadowed | None:
    """Where A's package is still installed in its own folder, and only hidden by one that comes first on the path."""
    if old.location == new.location:
        return None
    there = f"{old.location.rstrip('/')}/"
    return next((item for item in b.shadowed if item.name == old.name and item.loses.startswith(there)), None)


def _code_of(b: Fingerprint, old: Package) -> str | None:
    """Where the code of a package still lies that B has no metadata of."""
    names = old.modules or (old.name.replace("-", "_"),)
    found = [problem.path for problem in b.problems if problem.kind == "unowned" and problem.subject in names]
    return next((path for path in found if path is not None), None)


_HOOKS: dict[HookKind, str] = {
    "pth-code": "code in {} runs at every start of this Python",
    "pth-path": "{} is added to the path at every start",
    "customizer": "{} is imported at every start",
    "entry-point": "the entry point {} is loaded without being named",
    "inside": "files lie in the folder {}",
}


def _hooks(hooks: Sequence[Hook]) -> str:
    return some_of([_HOOKS[each.kind].format(each.what) for each in hooks], 4)


def is_laid_over(fingerprint: Fingerprint, package: Package) -> bool:
    """Whether a package came with a single command (`uv run --with`), and is of no environment that stays."""
    under = fingerprint.python.extends
    return under is not None and not f"{package.location}/".startswith(f"{under.rstrip('/')}/")


def _renamed(before: dict[str, Package], after: dict[str, Package]) -> dict[str, str]:
    """CUDA wheels that another CUDA brings under another name: nvidia-cublas-cu12 → nvidia-cublas."""
    gone = {_CUDA_MAJOR.sub("", name): name for name in before.keys() - after.keys() if facet_of(name) == "cuda"}
    come = {_CUDA_MAJOR.sub("", name): name for name in after.keys() - before.keys() if facet_of(name) == "cuda"}
    return {gone[library]: come[library] for library in gone.keys() & come.keys()}


def _between(a: Fingerprint, b: Fingerprint, old: Package, new: Package) -> Iterator[Change | Unknown]:
    name, facet = old.name, facet_of(old.name)
    was, now = full_version(a, old), full_version(b, new)
    hidden = _hidden(b, old, new)
    if hidden is not None and (was, old.identity) != (now, new.identity):
        detail = f"{hidden.wins} hides {hidden.loses}; with the first taken out, the second is imported again"
        yield Change(facet, name, "hidden", was, now, detail)
        return
    if was != now or old.version != new.version:
        kind = _torch_kind(a.torch, b.torch) if name == "torch" else "changed"
        if was == now:
            was, now = old.version, new.version
        yield Change(facet, name, kind, was, now, _accelerators(a.torch, b.torch) if kind != "changed" else "")
        yield from _damage(b, facet, new, new.departs)
        return
    if (old.editable is None) != (new.editable is None):
        where = f"editable, from {new.editable}" if new.editable else f"no longer editable, from {old.editable}"
        yield Change(facet, name, "origin", old.editable, new.editable, where)
        return  # an install that leads to a tree and one that holds its files have nothing else to compare
    yield from _same_version(a, b, old, new)


def _torch_kind(old: Torch | None, new: Torch | None) -> str:
    """What a change of the torch build is: a change of its accelerator comes before everything else."""
    was, now = old.accelerator if old else None, new.accelerator if new else None
    if was is None or now is None or was == now:
        return "changed"
    return "cpu" if now == "cpu" else "gpu-build" if was == "cpu" else "accelerator"


def _accelerators(old: Torch | None, new: Torch | None) -> str:
    """`XPU 20250101 → CPU`; empty where one side is not known."""
    return f"{old.built_for} → {new.built_for}" if old is not None and new is not None else ""


def _same_version(a: Fingerprint, b: Fingerprint, old: Package, new: Package) -> Iterator[Change | Unknown]:
    name, facet = old.name, facet_of(old.name)
    if name == "torch" and a.torch and b.torch and _torch_kind(a.torch, b.torch) != "changed":
        kind, both = _torch_kind(a.torch, b.torch), _accelerators(a.torch, b.torch)
        yield Change(facet, name, kind, a.torch.built_for, b.torch.built_for, both)
        return
    if old.editable is not None and new.editable is not None:
        yield from _editable(a, b, old, new)
        return
    if name == "torch" and None in (old.build, new.build) and (detail := _torch_detail(a.torch, b.torch)):
        # A torch without RECORD (a source build, conda) still says by its own files which build it is.
        was, now = _short(a.torch.git_version if a.torch else None), _short(b.torch.git_version if b.torch else None)
        yield Change(facet, name, "rebuilt", was, now, detail)
        return
    if old.build is None and new.build is None and (old.source or new.source):
        yield from _unrecorded(facet, old, new)
        return
    if old.build is None or new.build is None:
        if old.build != new.build:
            yield Unknown(
                f"{facet}: build of {name}", _no_build("A", old) if old.build is None else _no_build("B", new)
            )
        return
    if old.build == new.build:
        return
    if old.identity != new.identity:
        detail = _torch_detail(a.torch, b.torch) if name == "torch" else ""
        yield Change(facet, name, "rebuilt", old.build, new.build, detail or "its RECORD lists other content")
        yield from _damage(b, facet, new, [path for path in new.departs if path not in old.departs])
        return
    yield from _files_of_one_build(a, b, facet, old, new)


def _files_of_one_build(
    a: Fingerprint, b: Fingerprint, facet: Facet, old: Package, new: Package
) -> Iterator[Change | Unknown]:
    """One RECORD on both sides, and other files that are not as it says: damage or repair, and no other build."""
    name = old.name
    before, after = _states(a, old), _states(b, new)
    worse = [path for path in new.departs if before.get(path) != after[path]]
    gone = [path for path in old.departs if path not in after]
    lost = [path for path in worse if after[path] == _MISSING]
    if lost and any((problem.kind, problem.subject) == ("files-missing", name) for problem in a.problems):
        yield Change(facet, name, "problem:files-missing", detail=f"more of its files are missing: {_files(lost)}")
    yield from _damage(b, facet, new, worse)
    if gone and old.depth != "stat" and new.depth == "stat" and any(before[path] == _ALTERED for path in gone):
        why = f"{_files(gone)} departed from RECORD, and contents were not read on the other side (use --deep)"
        yield Unknown(f"{facet}: build of {name}", why)
    elif gone:
        yield Change(facet, name, "mended", old.build, new.build, _files(gone))
    elif not worse:
        yield from _damage(b, facet, new, new.departs)


_MISSING, _ALTERED = "missing", "altered"


def _states(fingerprint: Fingerprint, package: Package) -> dict[str, str]:
    """Path that departs from RECORD → whether it is missing or altered, or another package's own."""
    missing, taken = set(package.missing), dict(package.overwritten)
    kinds = {problem.kind for problem in fingerprint.problems if problem.subject == package.name}
    if not missing and "files-missing" in kinds and "files-modified" not in kinds:
        missing = set(package.departs) - taken.keys()  # a fingerprint from before each file was named
    return {path: _MISSING if path in missing else taken.get(path, _ALTERED) for path in package.departs}


def _damage(b: Fingerprint, facet: Facet, new: Package, paths: Sequence[str]) -> Iterator[Change]:
    """Files that were altered, and those over which another package installed its own. A file that is merely missing
    is a problem of B's, and told as one."""
    states = _states(b, new)
    altered = [path for path in paths if states[path] == _ALTERED]
    if altered:
        yield Change(facet, new.name, "patched", None, new.build, _files(altered))
    for owner in sorted({states[path] for path in paths} - {_MISSING, _ALTERED}):
        theirs = [path for path in paths if states[path] == owner]
        yield Change(facet, new.name, "overwritten", None, owner, _files(theirs))


def _editable(a: Fingerprint, b: Fingerprint, old: Package, new: Package) -> Iterator[Change | Unknown]:
    """Two editable installs: by what import takes from them, and by where they point."""
    name, facet = old.name, facet_of(old.name)
    yield from _damage(b, facet, new, [path for path in new.departs if path not in old.departs])
    moved = old.editable != new.editable
    where = f"it is an editable install of {new.editable} now, of {old.editable} then" if moved else f"{new.editable}"
    if any((problem.kind, problem.subject) == ("source-gone", name) for problem in (*a.problems, *b.problems)):
        return  # a finding of its own: there is nothing to compare
    if old.source is None or new.source is None:
        if not (old.source is new.source and not moved and _tree_is_known(a, old) and _tree_is_known(b, new)):
            yield Unknown(f"{facet}: source of {name}", f"{'A' if old.source is None else 'B'} has no content of it")
    elif old.source != new.source:
        if moved or not _code_tells(a, b, new):
            yield Change(facet, name, "source", old.source, new.source, where)
    elif moved and a.python.environment == b.python.environment:
        yield Change(facet, name, "repointed", old.editable, new.editable, where)


def _tree_of(fingerprint: Fingerprint, package: Package) -> Code | None:
    """The git tree, or the plain folder, that the source of an editable install lies in."""
    within = [
        tree
        for tree in fingerprint.code or ()
        if f"{package.editable}/".startswith(f"{tree.path.rstrip('/')}/") and tree.dirty is not None
    ]
    return max(within, key=lambda tree: len(tree.path)) if within else None


def _tree_is_known(fingerprint: Fingerprint, package: Package) -> bool:
    return _tree_of(fingerprint, package) is not None


def _code_tells(a: Fingerprint, b: Fingerprint, package: Package) -> bool:
    """Whether the difference is one of the git tree, which is reported as code: another commit, other edits."""
    old, new = _tree_of(a, package), _tree_of(b, package)
    if old is None or new is None:
        return False
    return (old.tree or old.commit, old.diff_digest) != (new.tree or new.commit, new.diff_digest)


def _unrecorded(facet: Facet, old: Package, new: Package) -> Iterator[Change | Unknown]:
    """Two installs of one version without RECORD: by the content that was read."""
    if old.source is None or new.source is None:
        side = "A" if old.source is None else "B"
        yield Unknown(f"{facet}: build of {old.name}", f"{side} has no content of it, and no RECORD")
    elif old.source != new.source:
        yield Change(facet, old.name, "rebuilt", old.source, new.source, "its files have other content")


def _by_version_only(before: dict[str, Package], after: dict[str, Package]) -> Iterator[Change]:
    """Packages of which neither side has a build identity: told once, and not once each."""
    names = [
        name
        for name in sorted(before.keys() & after.keys())
        if before[name].build is None
        and after[name].build is None
        and before[name].editable is None
        and before[name].source is None
        and after[name].source is None
    ]
    if names:
        detail = f"{_files(names)}: no RECORD, so that only versions were compared"
        yield Change("unknown", "builds", "both", None, None, detail)


def _no_build(side: str, package: Package) -> str:
    return f"{side} has no RECORD of {package.name} to take it from (installed by {package.installer or 'unknown'})"


def _files(paths: Sequence[str]) -> str:
    return some_of(paths, _FILES_NAMED)


def _torch_detail(old: Torch | None, new: Torch | None) -> str:
    """What tells two builds of one version apart, in words."""
    if old is None or new is None:
        return ""
    said = []
    if old.git_version != new.git_version:
        said.append(f"git {_short(old.git_version)} → {_short(new.git_version)}")
    if (old.cuda, old.hip, old.xpu) != (new.cuda, new.hip, new.xpu):
        said.append(f"{old.built_for} → {new.built_for}")
    both = old.libraries.keys() & new.libraries.keys()
    others = sorted(name for name in both if old.libraries[name] != new.libraries[name])
    if others:
        said.append(f"build-id of {_files(others)}")
    if None not in (old.torch_key, new.torch_key) and old.torch_key != new.torch_key and not said:
        said.append("its Python files")
    return "; ".join(said)


def _short(commit: str | None) -> str:
    return commit[:10] if commit else "unknown"


def _torch_without_metadata(old: Torch | None, new: Torch | None) -> Iterator[Change]:
    # A torch that runs from a source tree on the path has no dist-info.
    was, now = old.version if old else None, new.version if new else None
    if old is None and new is None:
        return
    if old is None or new is None:
        yield Change("torch", "torch", "added" if old is None else "removed", was, now)
    elif was != now:
        yield Change("torch", "torch", _torch_kind(old, new), was, now, _accelerators(old, new))
    elif detail := _torch_detail(old, new):
        yield Change("torch", "torch", "rebuilt", was, now, detail)


def _cuda_build(a: Fingerprint, b: Fingerprint) -> Iterator[Change]:
    was, now = a.cuda.build if a.cuda else None, b.cuda.build if b.cuda else None
    if was is not None and now is not None and was != now:
        yield Change("cuda", "build", "changed", was, now)


def _shadowed(a: Fingerprint, b: Fingerprint) -> Iterator[Change]:
    known = {_places(a, item) for item in a.shadowed}
    for item in b.shadowed:
        if _places(b, item) not in known:
            detail = f"{item.name} is there twice: import picks {item.wins}, which hides {item.loses}"
            yield Change("packages", item.name, "shadowed", None, item.wins, detail)


def _places(fingerprint: Fingerprint, item: Shadowed) -> tuple[str, str, str]:
    """Who hides whom, by paths within the environment and the code: two nodes have them at different places."""
    roots = [(fingerprint.python.prefix, "{prefix}")]
    roots += [(tree.path, f"{{code {number}}}") for number, tree in enumerate(fingerprint.code or ())]
    roots.sort(key=lambda root: -len(root[0]))  # a venv within its project is no part of the code

    def within(path: str) -> str:
        for root, name in roots:
            if path == root or path.startswith(f"{root}/"):
                return name + path[len(root) :]
        return path

    return item.name, within(item.wins), within(item.loses)


def _requirements(a: Fingerprint, b: Fingerprint) -> Iterator[Change]:
    if _asked(a) == _asked(b):
        return  # parsing 4,000 requirements twice is most of what comparing two equal environments would cost
    old, new = check_requirements(a), check_requirements(b)
    known = {(item.package, item.line, item.installed) for item in old.unmet}
    for item in new.unmet:
        if (item.package, item.line, item.installed) in known:
            continue
        before = a.package(item.needs)
        was = f"{item.needs} {before.version}" if before and before.version else None
        now = f"{item.needs} {item.installed}" if item.installed else None
        if a.package(item.package) is None:
            # What A ran cannot have needed it: the newcomer is broken, the run is not.
            yield Change("packages", item.package, "newcomer-unmet", None, now, item.says)
        else:
            kind = "unmet-stack" if is_torch_stack(item.needs) else "unmet"
            yield Change("packages", item.package, kind, was, now, item.says)
    yield from _unparsed(old, new)


def _asked(fingerprint: Fingerprint) -> tuple[object, ...]:
    """Everything that decides which requirements are met."""
    packages = tuple((package.name, package.version, package.requires) for package in fingerprint.packages)
    return packages, marker_environment(fingerprint)


def _unparsed(old: Requirements, new: Requirements) -> Iterator[Change]:
    known = set(old.unparsed)
    for name, line in new.unparsed:
        if (name, line) not in known:
            yield Change("packages", name, "unparsed", None, None, line)
