"""What of a package runs without being asked for: at each start of Python, or when another package is imported.

Four ways, each a kind: lines of a .pth, `sitecustomize` and its like, entry points of a group that a framework loads
by itself, and files put into the folder of another package. Nothing of it is run here.
"""

from __future__ import annotations

import configparser
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from envguard.acquire.memo import Memo, remembered, remembered_file
from envguard.acquire.packages.contents import Contents
from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.startup_files import is_strange, read_customizers
from envguard.acquire.seam.host import Host, NotRecorded
from envguard.acquire.section import Notes
from envguard.model.fingerprint import Hook

MOST_ENTRY_POINTS = 1 << 20
# Groups whose entry points are loaded by the import or the start of what offers them, and not when one is named:
# `torch/__init__.py` (torch.backends), elastic's rendezvous registry (torchrun.handlers), triton's backends, vLLM's
# plugins (general, platform, stat loggers), sglang, JAX, numba, Lightning's callbacks and registries, mlflow.
LOADED = re.compile(
    r"torch\.backends|torchrun\.handlers|(?:triton|vllm|sglang|lightning|lightning_fabric|pytorch_lightning"
    r"|transformers|accelerate|deepspeed)\..+|jax_plugins|numba_extensions|mlflow\.run_context_provider"
)


def read_hooks(
    host: Host,
    env: Environment,
    distributions: Distributions,
    contents: Mapping[str, Contents],
    owners: Mapping[str, str],
    memo: Memo,
    notes: Notes,
) -> dict[str, tuple[Hook, ...]]:
    """Name of a package → its hooks, sorted; `owners` are the directories by start-up file."""
    found: dict[str, set[Hook]] = {}
    by_directory = {dist.directory: dist for dist in distributions.found}
    for line in env.pth:
        owner = by_directory.get(owners.get(line.file, ""))
        # An editable install reaches its source by a .pth of its own.
        if owner is not None and owner.editable is None and is_strange(line):
            name = posixpath.basename(line.file)
            hook = Hook("pth-code", name) if line.kind == "code" else Hook("pth-path", f"{name}: {line.path}")
            found.setdefault(owner.directory, set()).add(hook)
    for item in read_customizers(host, env, notes):
        if item.path in owners:
            found.setdefault(owners[item.path], set()).add(Hook("customizer", item.name))
    for dist in distributions.found:
        found.setdefault(dist.directory, set()).update(_entry_points(host, dist, memo, notes))
    for directory, hook in _inside(distributions, contents, memo):
        found.setdefault(directory, set()).add(hook)
    named: dict[str, set[Hook]] = {}
    for directory, hooks in found.items():
        named.setdefault(by_directory[directory].name, set()).update(hooks)
    return {name: tuple(sorted(hooks)) for name, hooks in named.items() if hooks}


def _entry_points(host: Host, dist: Distribution, memo: Memo, notes: Notes) -> Iterator[Hook]:
    path = f"{dist.directory}/entry_points.txt"
    try:
        found = _read_entry_points(host, path, memo)
    except (FileNotFoundError, NotADirectoryError, NotRecorded):
        return  # none, or a bundle of an envguard that did not ask
    except OSError as error:
        notes.unseen(f"entry points of {dist.name}", error)
    except configparser.Error as error:
        notes.unseen(f"entry points of {dist.name}", f"{path}: {type(error).__name__}")
    else:
        yield from (Hook("entry-point", each) for each in found.splitlines())


def _read_entry_points(host: Host, path: str, memo: Memo) -> str:
    """`group: name` of each that runs by itself, a line each. Raises `OSError` and `configparser.Error`."""
    try:
        stat = host.stat(path)
    except NotRecorded:
        return _loaded_entry_points(host, path)  # a bundle of an envguard that asked for the content alone
    return remembered_file(memo, "entry points", path, stat, lambda: _loaded_entry_points(host, path))


def _loaded_entry_points(host: Host, path: str) -> str:
    text = _text(host.read(path, MOST_ENTRY_POINTS))
    if not any(LOADED.fullmatch(group) for group in re.findall(r"^[ \t]*\[([^\]\n]+)\]", text, re.MULTILINE)):
        return ""  # nearly all: console scripts alone
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False, allow_no_value=True)
    parser.read_string(text)
    groups = [group for group in parser.sections() if LOADED.fullmatch(group)]
    return "\n".join(f"{group}: {name}" for group in groups for name in parser.options(group))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _inside(distributions: Distributions, contents: Mapping[str, Contents], memo: Memo) -> Iterator[tuple[str, Hook]]:
    """Distributions with files below the folder of a package that is another's: one that alone has its `__init__`."""
    folders: dict[str, dict[str, bool]] = {}
    owners: dict[tuple[str, str], set[str]] = {}
    for dist in distributions.found:
        folders[dist.directory] = _folders(dist, contents.get(dist.directory), memo)
        for name, whole in folders[dist.directory].items():
            if whole:
                owners.setdefault((dist.location, name), set()).add(dist.name)
    for dist in distributions.found:
        told: set[str] = set()
        for name, whole in sorted(folders[dist.directory].items()):
            others = owners.get((dist.location, name), set()) - {dist.name}
            if not whole and others and name.partition("/")[0] not in told:
                told.add(name)
                yield dist.directory, Hook("inside", f"{name} of {', '.join(sorted(others))}")


def _folders(dist: Distribution, content: Contents | None, memo: Memo) -> dict[str, bool]:
    """Folders of a distribution at the top and the next level (`nvidia/cublas`), and whether it brings their
    `__init__`; kept while RECORD is the same."""
    key = content.record_key if content is not None else None
    if key is None or key[0] < 0:
        return {}
    text = remembered(
        memo,
        f"folders to hook into of {dist.directory}",
        ":".join(map(str, key)),
        lambda: json.dumps(_listed_folders(dist)),
    )
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _listed_folders(dist: Distribution) -> dict[str, bool]:
    rows: Iterable[str] = (row.path for row in dist.record.rows) if dist.record is not None else ()
    found: dict[str, bool] = {}
    for path in rows:
        name, slash, rest = path.partition("/")
        if not slash or name.endswith((".dist-info", ".data", ".egg-info")) or name in ("..", "__pycache__", "bin"):
            continue
        found[name] = found.get(name, False) or rest.startswith("__init__.")
        part, slash, rest = rest.partition("/")
        if slash and part != "__pycache__":
            inner = f"{name}/{part}"
            found[inner] = found.get(inner, False) or rest.startswith("__init__.")
    return found
