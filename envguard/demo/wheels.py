"""Wheels built on the spot: real archives with a real RECORD, small enough to be made in a moment.

`stand_in_torch` and its like bear the names of large packages because what envguard has to understand is in their
metadata, their `version.py` and the fact that a process maps a library; whoever shows them says that they are
stand-ins.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from envguard.acquire.packages.record_file import record_hash
from envguard.demo.elf import shared_library

_EPOCH = (2026, 1, 1, 0, 0, 0)


def build_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    scripts: Mapping[str, str] | None = None,
    algorithm: str = "sha256",
) -> Path:
    """Writes `name-version-tag.whl` into `directory` and returns its path.

    `files` maps paths inside site-packages to contents (default: one `__init__.py`), `requires` are Requires-Dist
    lines, `scripts` maps console script names to entry points, RECORD's hashes are by `algorithm`. Equal
    arguments give equal bytes.
    """
    module = canonicalize_name(name).replace("-", "_")
    stem = f"{module}-{version}"
    dist_info = f"{stem}.dist-info"
    payload = dict(files) if files is not None else {f"{module}/__init__.py": f"__version__ = {version!r}\n".encode()}
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {line}\n" for line in requires]
    payload[f"{dist_info}/METADATA"] = "".join(metadata).encode()
    purelib = str(tag.endswith("-any")).lower()
    payload[f"{dist_info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: envguard-demo\nRoot-Is-Purelib: {purelib}\nTag: {tag}\n".encode()
    )
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        payload[f"{dist_info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    payload[f"{dist_info}/RECORD"] = _record(payload, f"{dist_info}/RECORD", algorithm)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}-{tag}.whl"
    path.write_bytes(_zipped(payload))
    return path


def _record(payload: Mapping[str, bytes], own: str, algorithm: str) -> bytes:
    rows = []
    for path, data in payload.items():
        rows.append(f"{path},{record_hash(algorithm, hashlib.new(algorithm, data).digest())},{len(data)}\n")
    return "".join([*rows, f"{own},,\n"]).encode()


def _zipped(payload: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in payload.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


# What the stand-in torch does when it is imported: it maps its library, as the real one does.
_TORCH_INIT = '''"""A stand-in for torch: version.py and a mapped library, nothing else."""
import ctypes
import pathlib

from torch.version import __version__, cuda, git_version

_library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_cuda.so"))
'''


def torch_version_py(version: str) -> bytes:
    """`torch/version.py` as torch's build writes it; CUDA from the local version (`+cu128` → 12.8)."""
    local = Version(version).local or ""
    cuda = f"'{local[2:-1]}.{local[-1]}'" if local.startswith("cu") else "None"
    git = hashlib.sha1(f"torch {version}".encode(), usedforsecurity=False).hexdigest()
    return (
        "from typing import Optional\n\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']\n"
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
        f"git_version = '{git}'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
    ).encode()


def stand_in_torch(directory: Path, version: str, triton: str | None = "3.6.0", seed: str = "") -> Path:
    """A torch of that full version; another `seed` is another build under the same version."""
    files = {
        "torch/__init__.py": _TORCH_INIT.encode(),
        "torch/version.py": torch_version_py(version),
        "torch/_inductor/__init__.py": f"# inductor of {version}{seed}\n".encode(),
        "torch/nn/__init__.py": f"# nn of {version}{seed}\n".encode(),
        "torch/lib/libtorch_cuda.so": shared_library("libtorch_cuda.so", f"torch {version} cuda {seed}", 1 << 20),
        "torch/lib/libtorch_cpu.so": shared_library("libtorch_cpu.so", f"torch {version} cpu {seed}"),
        "torch/lib/libc10.so": shared_library("libc10.so", f"torch {version} c10 {seed}"),
    }
    return build_wheel(directory, "torch", version, files, [f"triton=={triton}"] if triton else [])


def stand_in_triton(directory: Path, version: str) -> Path:
    """A triton with the binary that names its bundled ptxas."""
    files = {
        "triton/__init__.py": f'__version__ = "{version}"\n'.encode(),
        "triton/backends/nvidia/bin/ptxas": b"#!/bin/false\nCuda compilation tools, release 12.8, V12.8.93\n",
    }
    return build_wheel(directory, "triton", version, files)


def stand_in_sglang(directory: Path, version: str, torch: str) -> Path:
    """An sglang whose Requires-Dist line for torch is `torch{torch}`: `==2.11.0` allows any local version."""
    files = {"sglang/__init__.py": f'__version__ = "{version}"\n'.encode()}
    return build_wheel(directory, "sglang", version, files, [f"torch{torch}", "flashinfer-python>=0.6"])


def stand_in_flashinfer(directory: Path, version: str) -> Path:
    """A flashinfer; sglang brings it in."""
    files = {"flashinfer/__init__.py": f'__version__ = "{version}"\n'.encode()}
    return build_wheel(directory, "flashinfer-python", version, files)


def stand_in_transformers(directory: Path, version: str) -> Path:
    """A transformers; the story tries two versions of it."""
    files = {"transformers/__init__.py": f'__version__ = "{version}"\n'.encode()}
    return build_wheel(directory, "transformers", version, files)


def build_story_wheels(directory: Path, sglang_requires: str = "==2.11.0+cu130") -> None:
    """Everything that the story installs; `sglang_requires` decides whether the swap is forced or only allowed."""
    for version in ("2.11.0+cu128", "2.11.0+cu130"):
        stand_in_torch(directory, version)
    stand_in_triton(directory, "3.6.0")
    stand_in_sglang(directory, "0.5.6", sglang_requires)
    stand_in_flashinfer(directory, "0.6.1")
    for version in ("5.6.0", "5.8.1"):
        stand_in_transformers(directory, version)
