"""The torch build as it lies on disk: `version.py` as text, ELF build-ids, triton and its ptxas, CUDA packages.

Nothing is imported and nothing is executed, so that an environment whose `torch/__init__.py` raises, or whose
`version.py` is no Python at all, is read like any other.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from envguard.acquire.memo import Memo
from envguard.acquire.packages.contents import dangling
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, Section
from envguard.acquire.torch.elf import CorruptElf, read_build_id
from envguard.acquire.torch.ptxas import read_ptxas
from envguard.model.fingerprint import Torch
from envguard.model.local_version import parse_local

if TYPE_CHECKING:
    from envguard.acquire.packages.distributions import Distribution, Distributions
    from envguard.acquire.packages.environment import Environment

MAX_VERSION_FILE = 1 << 20
MAX_LIBRARIES = 200
WITH_VERSION_FILE = frozenset({"torchvision", "torchaudio"})
TRITON_NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-rocm")
LFS_POINTER = b"version https://git-lfs"
_REQUIRES_TORCH = re.compile(r"torch(?![\w.-])")
_ASSIGNMENT = re.compile(
    rb"^(__version__|debug|cuda|git_version|hip|xpu)[ \t]*(?::[^=\n]*)?=[ \t]*"
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
    xpu: str | None = None


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
        xpu=text.get("xpu"),
    )


def _constant(literal: bytes) -> str | bool | None:
    if literal[:1] in (b"'", b'"'):
        return literal[1:-1].decode("utf-8", "replace")
    return {b"None": None, b"True": True, b"False": False}[literal]


def read_version_file(host: Host, path: str) -> VersionFile:
    """Raises `OSError` and `UnreadableVersion`."""
    data = host.read(path, MAX_VERSION_FILE + 1)
    if len(data) > MAX_VERSION_FILE:
        raise UnreadableVersion(f"it is longer than {MAX_VERSION_FILE >> 20} MiB, which torch's build does not write")
    return parse_version_file(data)


def read_files(host: Host, directory: str, notes: Notes) -> TorchFiles:
    """Version and build-ids of the torch in `directory`; what cannot be read is noted."""
    version = None
    path = f"{directory}/version.py"
    try:
        version = read_version_file(host, path)
    except FileNotFoundError:
        target = dangling(host, path)
        says = "installed without its version.py: an install that did not finish"
        if target is not None:
            says = f"version.py is a link that leads nowhere, to {target}"
        notes.problem("torch-version", "torch", says, path)
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
            notes.unseen(f"torch: build-id of {name}", error)
    return found


def find_torch(host: Host, env: Environment, notes: Notes) -> str | None:
    """The `torch` directory that import picks: the first on the environment's path, or an editable install's."""
    for entry in env.sys_path:
        directory = f"{entry.path}/torch"
        try:
            found = host.stat_target(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen(f"torch: under {entry.path}", error)
            continue
        if found.is_directory:
            return directory
    return next((finder.mapping["torch"] for finder in env.finders if "torch" in finder.mapping), None)


def read_torch(host: Host, env: Environment, dists: Distributions, memo: Memo | None = None) -> Section[Torch | None]:
    """The torch of the environment; None where there is none (which is a fact, not an unknown).

    `torch_key` and `cache_tag` stay None: whoever needs them asks `envguard.acquire.torch.torch_key`.
    """
    notes = Notes()
    directory = find_torch(host, env, notes)
    metadata = dists.of("torch")
    if directory is None and metadata is None:
        return notes.section(None)
    files = TorchFiles("", None, {})
    if directory is None:
        says = "a dist-info says that it is installed, and there is no torch folder on the path"
        notes.problem("torch-missing", "torch", says, metadata.directory if metadata else None)
    else:
        files = read_files(host, directory, notes)
    version = files.version
    _compare(version.version if version else None, metadata, directory, notes)
    roots = tuple(entry.path for entry in env.sys_path)
    return notes.section(
        Torch(
            version=version.version if version else None,
            metadata_version=metadata.version if metadata else None,
            git_version=version.git_version if version else None,
            cuda=version.cuda if version else None,
            hip=version.hip if version else None,
            xpu=version.xpu if version else None,
            debug=version.debug if version else None,
            libraries=files.libraries,
            triton=_triton(host, dists, roots, notes),
            ptxas=read_ptxas(host, roots, {} if memo is None else memo, notes),
            torch_key=None,
            cache_tag=None,
        )
    )


def _compare(version: str | None, metadata: Distribution | None, directory: str | None, notes: Notes) -> None:
    """Metadata against files. PyPI's CUDA wheels write no local tag into METADATA: that alone is no difference."""
    if metadata is None:
        notes.problem(
            "torch-metadata", "torch", "a torch folder without a dist-info: no installer answers for it", directory
        )
        return
    if version is None or metadata.version is None:
        return
    ours, theirs = version.partition("+"), metadata.version.partition("+")
    if ours[0] != theirs[0] or (theirs[2] and ours[2] != theirs[2]):
        says = f"version.py says {version}, its dist-info {metadata.version}: two installs have been mixed"
        notes.problem("torch-metadata", "torch", says, metadata.directory)


def _triton(host: Host, dists: Distributions, roots: tuple[str, ...], notes: Notes) -> str | None:
    """triton's version: the dist-info's, held against the `__version__` in its files."""
    dist = next((found for name in TRITON_NAMES if (found := dists.of(name)) is not None), None)
    said = None
    for root in roots:
        path = f"{root}/triton/__init__.py"
        try:
            said = parse_version_file(host.read(path, MAX_VERSION_FILE)).version
        except (FileNotFoundError, NotADirectoryError):
            continue
        except UnreadableVersion as error:
            notes.unseen("torch: triton's own version", f"triton/__init__.py: {error}")
        except OSError as error:
            notes.unseen("torch: triton's own version", error)
        break
    if dist is None or dist.version is None:
        return said
    if said is not None and said.partition("+")[0] != dist.version.partition("+")[0].partition(".post")[0]:
        says = f"its files say {said}, its dist-info {dist.version}: two installs have been mixed"
        notes.problem("triton-metadata", "triton", says, dist.directory)
    return dist.version


def read_pairs(host: Host, torch: Torch | None, dists: Distributions) -> dict[str, str]:
    """Full version of each package that is built for torch: METADATA requires it, or the local version names it."""
    found: dict[str, str] = {}
    for dist in dists.found:
        if torch is None or dist.version is None or dist.name in found:
            continue
        version = _full_version(host, dist, dist.version)
        requires = any(_REQUIRES_TORCH.match(line) and "extra ==" not in line for line in dist.requires)
        if requires or parse_local(version).torch:
            found[dist.name] = version
    return found


def _full_version(host: Host, dist: Distribution, version: str) -> str:
    """With the local tag that METADATA leaves out.

    PyPI's torchvision and torchaudio name it in `version.py`, as torch does. flash-attn, mamba and their like name it
    in the file name of the wheel, which `direct_url.json` keeps.
    """
    if dist.name in WITH_VERSION_FILE:
        try:
            said = read_version_file(host, f"{dist.location}/{dist.name}/version.py").version
        except (OSError, UnreadableVersion):
            return version  # METADATA's version stands; the damage is the package reader's to report
        return said if said.partition("+")[0] == version.partition("+")[0] else version
    if "+" in version or dist.direct_url is None:
        return version
    name = unquote(posixpath.basename(urlsplit(dist.direct_url.url).path))
    named = name.split("-")[1] if name.endswith(".whl") and name.count("-") >= 4 else ""
    return named if named.partition("+")[0] == version else version
