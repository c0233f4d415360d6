"""`sys.path` as an interpreter would build it at start-up, read from files and never by running it.

Follows `site.py` of Python 3.11 to 3.14: PYTHONPATH, the standard library, the venv's site-packages, user site, the
base's site-packages where the venv lets them in, and the .pth files of each. A line of code in a .pth is named and
not run, but for what `site.addsitedir` adds where that is all it calls; the finder of an editable install is read as
a syntax tree.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Literal

import msgspec

from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes

if TYPE_CHECKING:
    import ast

Origin = Literal["PYTHONPATH", "stdlib", "site", "user site", "system site", "pth"]
MAX_PTH = 1 << 20


class SysPathEntry(msgspec.Struct, frozen=True):
    """A directory (or zip) on the path, and what put it there; `by` is the .pth file where one did."""

    path: str
    origin: Origin
    by: str | None = None


class PthLine(msgspec.Struct, frozen=True):
    """A line of a .pth file: a directory that it adds, one that is not there, or code that start-up would run."""

    file: str
    number: int
    kind: Literal["path", "missing", "code"]
    text: str
    path: str | None = None
    leaves: bool = False
    """The path leads out of the environment."""


class EditableFinder(msgspec.Struct, frozen=True):
    """An `__editable___…_finder.py`: top-level name → source path, and namespace → paths."""

    file: str
    mapping: dict[str, str] = {}
    namespaces: dict[str, tuple[str, ...]] = {}


class Layout(msgspec.Struct, frozen=True):
    """What the path is built from. `version` is the library folder's name: `python3.11`, `python3.13t`."""

    prefix: str
    base: str | None
    version: str
    virtual: bool
    system_site: bool
    """Of a venv: whether the base's site-packages are let in."""
    user_site: str | None
    pythonpath: tuple[str, ...]


class SysPath:
    """The path in the making; `entries`, `pth` and `finders` are its result."""

    def __init__(self, host: Host, layout: Layout, notes: Notes) -> None:
        self.host = host
        self.layout = layout
        self.notes = notes
        self.entries: list[SysPathEntry] = []
        self.pth: list[PthLine] = []
        self.finders: list[EditableFinder] = []
        self._known: set[str] = set()
        self._processed: set[str] = set()
        self._build()

    def _build(self) -> None:
        layout = self.layout
        for path in layout.pythonpath:
            self._add(path, "PYTHONPATH")
        if layout.base is not None:
            self._stdlib(layout.base)
        if layout.virtual:
            self._site_folders(layout.prefix, "site")
        open_to_system = layout.system_site or not layout.virtual
        if open_to_system and layout.user_site is not None and self._is_directory(layout.user_site):
            self._site_folder(layout.user_site, "user site")
        if open_to_system and layout.base is not None:
            self._site_folders(layout.base, "system site" if layout.virtual else "site")

    def _stdlib(self, base: str) -> None:
        version = self.layout.version
        folder = f"{base}/{self._platlib(base)}/{version}"
        digits = version.removeprefix("python").removeprefix("pypy").replace(".", "")
        self._add(f"{base}/{self._platlib(base)}/python{digits}.zip", "stdlib")
        self._add(folder, "stdlib")
        self._add(f"{folder}/lib-dynload", "stdlib")

    def _platlib(self, base: str) -> str:
        """`lib64` where the standard library lies there (Fedora), else `lib`."""
        return "lib64" if self._is_directory(f"{base}/lib64/{self.layout.version}/lib-dynload") else "lib"

    def _site_folders(self, prefix: str, origin: Origin) -> None:
        version, base = self.layout.version, self.layout.base
        names = [f"lib/{version}/site-packages"]
        if base is not None and self._platlib(base) == "lib64":
            names.insert(0, f"lib64/{version}/site-packages")
        if self._is_debian():
            names = names if self.layout.virtual else []
            names += [
                f"local/lib/{version}/dist-packages",
                "lib/python3/dist-packages",
                f"lib/{version}/dist-packages",
            ]
        for name in names:
            path = f"{prefix}/{name}"
            if self._is_directory(path):
                self._site_folder(path, origin)

    def _is_debian(self) -> bool:
        """Debian's `site.py` looks in dist-packages; a Python built beside it on the same machine does not."""
        if self.layout.base is None:
            return False
        try:
            return b"dist-packages" in self.host.read(
                f"{self.layout.base}/lib/{self.layout.version}/site.py", MAX_PTH
            )
        except OSError:
            return False

    def _site_folder(self, path: str, origin: Origin) -> None:
        self._add(path, origin)
        if path in self._processed:
            return
        self._processed.add(path)
        try:
            names = self.host.listing(path)
        except OSError as error:
            self.notes.unseen(f"packages in {path}", error, "site")
            return
        skip_hidden = self._minor() >= 13
        for name, kind in names:
            if name.endswith(".pth") and kind != "directory" and not (skip_hidden and name.startswith(".")):
                self._pth_file(path, name)
            elif name.startswith("__editable__") and name.endswith("finder.py"):
                self._finder(f"{path}/{name}")

    def _minor(self) -> int:
        digits = self.layout.version.partition(".")[2].rstrip("t")
        return int(digits) if digits.isdigit() else 0

    def _pth_file(self, folder: str, name: str) -> None:
        file = f"{folder}/{name}"
        try:
            data = self.host.read(file, MAX_PTH + 1)
        except OSError as error:
            self.notes.unseen(f"paths that {file} adds", error)
            return
        if len(data) > MAX_PTH:
            why = f"it is longer than {MAX_PTH >> 20} MiB: only the lines before that were read"
            self.notes.unseen(f"paths that {file} adds", why)
            data = data[: data.rfind(b"\n", 0, MAX_PTH) + 1]
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("utf-8", "surrogateescape")
            self.notes.problem("pth-undecodable", name, "not UTF-8: start-up reads it in the locale's encoding", file)
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(("import ", "import\t")):
                self.pth.append(PthLine(file, number, "code", line.strip()))
                for path in added_site_folders(line):
                    if self._is_directory(path):
                        self._site_folder(path, "site")
            else:
                self._pth_path(folder, file, number, line.rstrip())

    def _pth_path(self, folder: str, file: str, number: int, line: str) -> None:
        path = posixpath.normpath(posixpath.join(folder, line))
        leaves = not path.startswith(self.layout.prefix.rstrip("/") + "/")
        if "\0" in line or not self._exists(path):
            self.pth.append(PthLine(file, number, "missing", line, path, leaves))
            return
        self.pth.append(PthLine(file, number, "path", line, path, leaves))
        self._add(path, "pth", file)

    def _finder(self, file: str) -> None:
        try:
            found = parse_finder(file, self.host.read(file, MAX_PTH))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.notes.unseen(f"sources of the editable install {file}", str(error))
            return
        self.finders.append(found)
        for name, path in found.mapping.items():
            if not self._exists(path) and not self._exists(f"{path}.py"):
                self.notes.problem("editable-gone", name, f"its source {path} is not there", file)

    def _add(self, path: str, origin: Origin, by: str | None = None) -> None:
        if path not in self._known:
            self._known.add(path)
            self.entries.append(SysPathEntry(path, origin, by))

    def _is_directory(self, path: str) -> bool:
        try:
            return self.host.stat_target(path).is_directory
        except OSError:
            return False  # as `os.path.isdir` in site.py has it

    def _exists(self, path: str) -> bool:
        try:
            self.host.stat_target(path)
        except OSError:
            return False  # as `os.path.exists` in site.py has it
        return True


def added_site_folders(line: str) -> tuple[str, ...]:
    """The folders that a line of code in a .pth adds by `site.addsitedir`, where that is all that it does.

    So does uv lay the environment of `uv run --with` over that of the project. Of other code nothing is foretold.
    """
    if "addsitedir" not in line:
        return ()
    import ast  # here, since few environments have such a line

    found = []
    try:
        for node in ast.parse(line.strip()).body:
            if isinstance(node, ast.Import):
                continue
            call = node.value if isinstance(node, ast.Expr) else None
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "site.addsitedir" or len(call.args) != 1:
                return ()
            found.append(_path_of(call.args[0]))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(found)


def _path_of(node: ast.expr) -> str:
    """A path as a literal, or as bytes in `os.fsdecode`. Raises ValueError for anything else."""
    import ast

    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func).endswith(".fsdecode"):
        node = node.args[0]
    path = ast.literal_eval(node)
    if not isinstance(path, (str, bytes)):
        raise ValueError("no path")
    return os.path.normpath(os.fsdecode(path))


def parse_finder(file: str, data: bytes) -> EditableFinder:
    """Reads MAPPING and NAMESPACES, annotated or not, as literals. Raises SyntaxError and ValueError."""
    import ast  # here, since few environments have such a finder and a stamp pays for every import

    found: dict[str, object] = {}
    for node in ast.parse(data).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        if name in ("MAPPING", "NAMESPACES"):
            found[name] = ast.literal_eval(value)
    mapping, namespaces = found.get("MAPPING", {}), found.get("NAMESPACES", {})
    if "MAPPING" not in found or not isinstance(mapping, dict) or not isinstance(namespaces, dict):
        raise ValueError("it assigns no MAPPING")
    return EditableFinder(
        file,
        {str(name): str(path) for name, path in mapping.items()},
        {str(name): tuple(map(str, paths)) for name, paths in namespaces.items()},
    )
