"""Content that no RECORD describes: the source of an editable install, the files of an egg or of an old `egg-info`.

An editable install is what import takes from it, and not what its RECORD lists: paths of a `.pth`, the mapping of a
setuptools finder, the folder of a `setup.py develop`. Of each one digest is made over names and contents, the same
wherever the tree lies, so that two work trees, clones or copies are told apart, in version control or not.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate

import msgspec

from envguard.acquire.memo import Memo, key_of
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.editable_sources import source_gone
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.tree_memo import TreeMemo
from envguard.acquire.project.code import CODE_PATTERNS
from envguard.acquire.seam.host import Host, Stat
from envguard.acquire.section import Notes
from envguard.clock import NS
from envguard.state.digests import Key

MOST_FILES = 50_000
MOST_BYTES = 4 << 30
_CODE = re.compile("|".join(translate(pattern) for pattern in CODE_PATTERNS))
_MODULES = (".py", ".so")
_SKIPPED = ("__pycache__", "node_modules", "site-packages", ".git", ".hg", ".venv", ".tox", ".nox", ".eggs")
# Folders that programs write into: no part of a source, unless an `__init__.py` makes one of them a package.
_OUTPUTS = frozenset(
    {"wandb", "mlruns", "lightning_logs", "outputs", "multirun", "runs", "checkpoints", "logs", "build", "dist"}
    | {"data", "datasets", "cache", "tmp", "venv", "env"}
)
_INSTALLER_LOADER = re.compile(r"(?:__editable__|_)[^/]*\.(?:pth|py)|[^/]*\.(?:pth|egg-link)")


class SeenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file's sha256, and the stat that it had then."""

    key: Key
    digest: str


def read_sources(
    host: Host, env: Environment, distributions: Distributions, memo: Memo, notes: Notes, budget: int | None = None
) -> dict[str, str]:
    """Directory of the metadata → sha256 (hex) of the content, for each distribution that no RECORD describes.

    At most `budget` bytes are hashed that no earlier run hashed (None: no limit). What cannot be read or is too much
    has no digest, and a note.
    """
    found = {}
    for dist in distributions.found:
        if managed_by(dist) is not None or source_gone(dist):
            continue
        try:
            roots = _roots(host, env, dist)
            if roots is None:
                continue
            files = {name: each for root in roots for name, each in root.files(host)}
        except OSError as error:
            notes.unseen(f"packages: source of {dist.name}", error)
            continue
        reader = _Reader(host, dist, memo, budget)
        # An editable install may hold nothing; files of an egg-info that are not found were not looked at.
        digest = reader.digest(files) if files or dist.editable is not None else None
        budget = reader.budget
        if digest is None:
            notes.unseen(f"packages: source of {dist.name}", reader.why or "nothing says which files are its own")
        else:
            found[dist.directory] = digest
    return found


class _Root(msgspec.Struct, frozen=True):
    """A place that import takes code from. `label` is the name of what lies there, empty for a folder of modules;
    `whole` counts every file and not code alone."""

    path: str
    label: str = ""
    whole: bool = False

    def files(self, host: Host) -> Iterator[tuple[str, tuple[str, Stat]]]:
        """(name as import has it, (path, stat)) of each file. Raises OSError."""
        stat = _target(host, self.path) or _target(host, f"{self.path}.py")
        if stat is None:
            return
        if not stat.is_directory:
            path = self.path if _target(host, self.path) is not None else f"{self.path}.py"
            yield self.label or posixpath.basename(path), (path, stat)
        elif self.label or self.whole:
            for name, each in _below(host, self.path, self.whole):
                yield posixpath.join(self.label, name), each
        else:
            yield from _modules(host, self.path)


def _target(host: Host, path: str) -> Stat | None:
    try:
        return host.stat_target(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _roots(host: Host, env: Environment, dist: Distribution) -> tuple[_Root, ...] | None:
    """None for a distribution whose RECORD describes it."""
    if dist.editable is not None:
        roots = _editable_roots(env, dist)
        built = [row.path for row in dist.record.rows] if dist.record is not None else []
        beside = tuple(_Root(f"{dist.location}/{path}", path) for path in built if _is_built(path))
        return (*(roots or (_Root(dist.editable),)), *beside)
    if not dist.is_egg:
        return None
    if dist.location.endswith(".egg"):
        return (_Root(dist.location, whole=True),)
    return _of_egg_info(host, dist)


def _editable_roots(env: Environment, dist: Distribution) -> tuple[_Root, ...]:
    if dist.editable is None:
        return ()
    if dist.is_egg:
        return (_Root(dist.location),)
    rows = [row.path for row in dist.record.rows] if dist.record is not None else []
    own = {posixpath.normpath(f"{dist.location}/{path}") for path in rows if path.endswith((".pth", ".py"))}
    paths = [_Root(line.path) for line in env.pth if line.file in own and line.path is not None]
    for finder in env.finders:
        if finder.file in own:
            paths += [_Root(path, name.replace(".", "/")) for name, path in sorted(finder.mapping.items())]
            paths += [
                _Root(path, name.replace(".", "/"))
                for name, places in sorted(finder.namespaces.items())
                for path in places
            ]
    return tuple(paths)


def _is_built(path: str) -> bool:
    """Whether RECORD of an editable install lists something that was built and lies beside, as scikit-build-core
    has it, and not what leads to the source."""
    top = path.partition("/")[0]
    return not (top.endswith(".dist-info") or path.startswith(("..", "/")) or "__pycache__/" in path) and not (
        "/" not in path and _INSTALLER_LOADER.fullmatch(path)
    )


def _of_egg_info(host: Host, dist: Distribution) -> tuple[_Root, ...]:
    """What `setup.py install` put beside an egg-info: the files that it noted, else the modules that it names."""
    try:
        noted = host.read(f"{dist.directory}/installed-files.txt", 16 << 20).decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        noted = ""
    paths = [posixpath.normpath(f"{dist.directory}/{line}") for line in noted.splitlines() if line.strip()]
    files = [path for path in paths if path.startswith(f"{dist.location}/") and not path.endswith((".pyc", ".pyo"))]
    files = [path for path in files if not path.startswith(f"{dist.directory}/")]
    if files:
        return tuple(_Root(path, path.removeprefix(f"{dist.location}/")) for path in files)
    try:
        names = host.read(f"{dist.directory}/top_level.txt", 1 << 16).decode("utf-8", "replace").split()
    except (FileNotFoundError, NotADirectoryError):
        names = [dist.name.replace("-", "_")]
    return tuple(_Root(f"{dist.location}/{name}", name) for name in names)


def _below(host: Host, root: str, whole: bool) -> Iterator[tuple[str, tuple[str, Stat]]]:
    """Every file of a folder that may be code; of `whole` every file that Python itself did not write."""
    walk = host.walk(host.realpath(root), skip=_SKIPPED)
    walk.refused()
    packages = {path.rpartition("/")[0] for path, _ in walk.entries if path.endswith("__init__.py")}
    for name, stat in walk.entries:
        path = f"{walk.root}/{name}"
        if stat.is_directory or name.endswith((".pyc", ".pyo")):
            continue
        if not whole and (not _CODE.fullmatch(posixpath.basename(name)) or _is_output(name, packages)):
            continue
        if stat.is_link:
            target = _target(host, path)
            if target is None:
                continue
            if target.is_directory:
                continue  # a module of another name, counted where it lies if import leads there
            stat = target
        if stat.is_file:
            yield name, (path, stat)


def _is_output(name: str, packages: set[str]) -> bool:
    """Whether a file lies in a hidden folder, or in one that programs write into."""
    parts = name.split("/")[:-1]
    for depth, part in enumerate(parts, 1):
        if part.startswith(".") or part.endswith((".egg-info", ".dist-info")):
            return True
        if part in _OUTPUTS and "/".join(parts[:depth]) not in packages:
            return not (part == "build" and name.endswith(".so"))
    return False


def _modules(host: Host, root: str) -> Iterator[tuple[str, tuple[str, Stat]]]:
    """What a folder on the path offers to import: modules at its top, packages, and parts of namespaces."""
    for name, kind in host.listing(root):
        path = f"{root}/{name}"
        if name.endswith(_MODULES) and kind in ("file", "link"):
            stat = _target(host, path)
            if stat is not None and stat.is_file:
                yield name, (path, stat)
        elif kind in ("directory", "link") and name.isidentifier() and name not in _SKIPPED:
            for package in _packages(host, path, name):
                for inner, each in _below(host, f"{root}/{package}", whole=False):
                    yield f"{package}/{inner}", each


def _packages(host: Host, path: str, name: str) -> Iterator[str]:
    """The folder where it holds code itself, else those of its folders that are packages."""
    stat = _target(host, path)
    if stat is None or not stat.is_directory:
        return
    if _target(host, f"{path}/__init__.py") is not None:
        yield name
        return
    if name in _OUTPUTS:
        return
    names = host.listing(path)
    if any(each.endswith(_MODULES) for each, _ in names):
        yield name
        return
    for each, kind in names:
        if kind != "file" and each.isidentifier() and _target(host, f"{path}/{each}/__init__.py") is not None:
            yield f"{name}/{each}"


class _Reader:
    def __init__(self, host: Host, dist: Distribution, memo: Memo, budget: int | None) -> None:
        self.host, self.memo, self.budget = host, memo, budget
        self.question = f"source of {dist.directory}"
        self.why: str | None = None

    def digest(self, files: Mapping[str, tuple[str, Stat]]) -> str | None:
        """sha256 over names and contents, sorted by name; None where not every file could be read, with `why`."""
        size = sum(stat.size for _, stat in files.values())
        if len(files) > MOST_FILES or size > MOST_BYTES:
            self.why = f"{len(files)} files of {size >> 20} MiB are more than are compared"
            return None
        tree = TreeMemo(self.memo, self.question, SeenFile)
        for name, (path, stat) in files.items():
            if tree.recall(name, key_of(stat)) is None and not self._hash(tree, name, path, stat):
                break
        tree.save(int(self.host.machine().now * NS))
        return _combined((name, tree.fresh[name].digest) for name in sorted(files)) if self.why is None else None

    def _hash(self, tree: TreeMemo[SeenFile], name: str, path: str, stat: Stat) -> bool:
        if self.budget is not None:
            if stat.size > self.budget:
                self.why = "not all of it has been hashed yet: `envguard snapshot` does it"
                return False
            self.budget -= stat.size
        try:
            tree.fresh[name] = SeenFile(key_of(stat), self.host.digest(path))
        except OSError as error:
            self.why = f"{path}: {error.strerror or error}"
            return False
        return True


def _combined(parts: Iterable[tuple[str, str]]) -> str:
    hasher = hashlib.sha256()
    for name, digest in parts:
        hasher.update(f"{name}\0{digest}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()
