"""The torch build as it lies on disk: `version.py` as text, ELF build-ids, triton and its ptxas, CUDA packages.

Nothing is imported and nothing is executed, so that an environment whose `torch/__init__.py` raises, or whose
`version.py` is no Python at all, is read like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envguard.acquire.elf import CorruptElf, read_build_id
from envguard.acquire.host import Host
from envguard.acquire.section import Notes, Section
from envguard.model.fingerprint import Torch

if TYPE_CHECKING:
    from envguard.acquire.distributions import Distribution, Distributions
    from envguard.acquire.environment import Environment

MAX_VERSION_FILE = 64 << 10
MAX_LIBRARIES = 200
TRITON_NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-rocm")
LFS_POINTER = b"version https://git-lfs"
_ASSIGNMENT = re.compile(
    rb"^(__version__|debug|cuda|git_version|hip)[ \t]*(?::[^=\n]*)?=[ \t]*"
    rb"(None|True|False|'[^'\\\n]*'|\"[^\"\\\n]*\")[ \t]*(?:#.*)?\r?$",
    re.MULTILINE,
)


class UnreadableVersion(ValueError):
    """A `version.py` from which no version can be taken; the message says what it is instead."""


@dataclass(frozen=True)
class VersionFile:
    """The fields of a `torch/version.py` (torchvision's and torchaudio's have the same form)."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    git_version: str | None = None
    debug: bool | None = None


@dataclass(frozen=True)
class TorchFiles:
    """What one `torch` directory says of itself, wherever it lies: installed, or in a cache archive."""

    directory: str
    version: VersionFile | None
    libraries: dict[str, str | None]


def parse_version_file(data: bytes) -> VersionFile:
    """Reads the assignments of constants in a `version.py`. Raises `UnreadableVersion`."""
    if data.startswith(LFS_POINTER):
        raise UnreadableVersion("it is a Git LFS pointer, not the file that it stands for")
    found = {name.decode(): _constant(value) for name, value in _ASSIGNMENT.findall(data)}
    version = found.get("__version__")
    if not isinstance(version, str):
        raise UnreadableVersion("it is empty" if not data.strip() else "it assigns no `__version__`")
    text = {name: value if isinstance(value, str) else None for name, value in found.items()}
    debug = found.get("debug")
    return VersionFile(
        version=version,
        cuda=text.get("cuda"),
        hip=text.get("hip"),
        git_version=text.get("git_version"),
        debug=debug if isinstance(debug, bool) else None,
    )


def _constant(literal: bytes) -> str | bool | None:
    if literal[:1] in (b"'", b'"'):
        return literal[1:-1].decode("utf-8", "replace")
    return {b"None": None, b"True": True, b"False": False}[literal]


def read_version_file(host: Host, path: str) -> VersionFile:
    """Raises `OSError` and `UnreadableVersion`."""
    return parse_version_file(host.read(path, MAX_VERSION_FILE))


def read_files(host: Host, directory: str, notes: Notes) -> TorchFiles:
    """Version and build-ids of the torch in `directory`; what cannot be read is noted."""
    version = None
    path = f"{directory}/version.py"
    try:
        version = read_version_file(host, path)
    except FileNotFoundError:
        notes.problem(
            "torch-version", "torch", "installed without its version.py: an install that did not finish", path
        )
    except UnreadableVersion as error:
        notes.problem("torch-version", "torch", f"version.py is unreadable: {error}", path)
    except OSError as error:
        notes.unseen("torch version.py", error)
    return TorchFiles(directory, version, _libraries(host, f"{directory}/lib", notes))


def _libraries(host: Host, folder: str, notes: Notes) -> dict[str, str | None]:
    try:
        names = [name for name, kind in host.listing(folder) if kind in ("file", "link") and ".so" in name]
    except FileNotFoundError:
        notes.problem("torch-libraries", "torch", "there is no lib folder: an install that did not finish", folder)
        return {}
    except OSError as error:
        notes.unseen("torch libraries", error)
        return {}
    if len(names) > MAX_LIBRARIES:
        notes.unseen("torch libraries", f"{len(names)} of them; the first {MAX_LIBRARIES} were read")
    found: dict[str, str | None] = {}
    for name in names[:MAX_LIBRARIES]:
        path = f"{folder}/{name}"
        found[name] = None
        try:
            found[name] = read_build_id(host, path)
        except CorruptElf as error:
            notes.problem("library-damaged", name, f"not a sound ELF library: {error}", path)
        except OSError as error:
            notes.unseen(f"build-id of {name}", error)
    return found


def find_torch(host: Host, env: Environment, notes: Notes) -> str | None:
    """The `torch` directory that import picks: the first on the environment's path."""
    for entry in env.sys_path:
        directory = f"{entry.path}/torch"
        try:
            found = host.stat_target(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen(f"torch under {entry.path}", error)
            continue
        if found.is_directory:
            return directory
    return None


def read_torch(host: Host, env: Environment, dists: Distributions) -> Section[Torch | None]:
    """The torch of the environment; None where there is none (which is a fact, not an unknown)."""
    notes = Notes()
    directory = find_torch(host, env, notes)
    if directory is None:
        return notes.section(None)
    files = read_files(host, directory, notes)
    version = files.version
    return notes.section(
        Torch(
            version=version.version if version else None,
            metadata_version=_version_of(dists, ("torch",)),
            git_version=version.git_version if version else None,
            cuda=version.cuda if version else None,
            hip=version.hip if version else None,
            debug=version.debug if version else None,
            libraries=files.libraries,
            triton=_version_of(dists, TRITON_NAMES),
            ptxas={},
            torch_key=None,
            cache_tag=None,
        )
    )


def _first(dists: Distributions, names: tuple[str, ...]) -> Distribution | None:
    return next((found for found in dists.found if found.name in names), None)


def _version_of(dists: Distributions, names: tuple[str, ...]) -> str | None:
    found = _first(dists, names)
    return found.version if found else None
