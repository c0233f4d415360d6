"""Fingerprints made by hand for tests of pure code: a sound machine, from which a test departs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from envguard.model.fingerprint import (
    Code,
    CompileCache,
    Cuda,
    Driver,
    Environment,
    FileSet,
    Fingerprint,
    Gpu,
    Package,
    Python,
    System,
    Torch,
)
from envguard.model.identity import fingerprint_id, sealed

replace = msgspec.structs.replace

SYSTEM = System(
    host="box",
    kernel="6.8.0",
    os="Ubuntu 24.04",
    arch="x86_64",
    container="lxc",
    cpu="EPYC",
    cpus=64,
    memory_bytes=512 << 30,
    boot_time="2026-05-01T00:00:00+00:00",
)


def package(name: str, version: str = "1.0", build: str | None = None, **more: Any) -> Package:
    """A package whose build identity, unless given, follows from name and version."""
    identity = build if build is not None else f"{name}-{version}".encode().hex().ljust(64, "0")
    more = {"installer": "uv", "location": "/venv/lib/python3.11/site-packages", "depth": "watched", **more}
    if more.get("departs"):
        more.setdefault("record", f"{name}-{version}".encode().hex().ljust(64, "0"))
    return Package(name=name, version=version, build=identity, **more)


def torch(version: str = "2.11.0+cu128", cuda: str | None = "12.8", **more: Any) -> Torch:
    fields: dict[str, Any] = {
        "version": version,
        "metadata_version": version,
        "git_version": "70d99e998b4955e0049d13a98d77ae1b14db1f45",
        "cuda": cuda,
        "hip": None,
        "debug": False,
        "libraries": {"libtorch_cuda.so": "aa" * 20},
        "triton": "3.6.0",
        "ptxas": {},
        "torch_key": None,
        "cache_tag": None,
    }
    return Torch(**{**fields, **more})


def gpu(index: int = 0, **more: Any) -> Gpu:
    fields: dict[str, Any] = {
        "index": index,
        "name": "NVIDIA RTX PRO 6000",
        "uuid_digest": f"{index:016x}",
        "memory_bytes": 96 << 30,
        "compute_capability": "12.0",
        "mig": None,
        "ecc": True,
        "power_limit_w": 600.0,
        "p2p": {},
        "context_bytes": None,
        "refused": {},
    }
    return Gpu(**{**fields, **more})


def cache(**more: Any) -> CompileCache:
    fields: dict[str, Any] = {
        "kind": "inductor",
        "path": "/tmp/torchinductor_root",
        "verdict": "VALID",
        "entries": 400,
        "bytes": 353_000_000,
        "writers": {"cu128": 400},
        "digest": "c" * 64,
    }
    return CompileCache(**{**fields, **more})


def tree(**more: Any) -> Code:
    fields: dict[str, Any] = {
        "path": "/srv/project",
        "commit": "a" * 40,
        "branch": "main",
        "dirty": False,
        "diff_digest": None,
    }
    return Code(**{**fields, **more})


def file_set(path: str = "data/train.jsonl", rows: int | None = 902_087, **more: Any) -> FileSet:
    fields: dict[str, Any] = {"files": 1, "bytes": 4_000_000_000, "rows": rows, "digest": "d" * 64}
    return FileSet(path=path, **{**fields, **more})


def with_id(taken: Fingerprint) -> Fingerprint:
    """The fingerprint under the id that its content gives: under any other it is not believed when it is read."""
    return replace(taken, id=fingerprint_id(taken.python, taken.packages, taken.torch, taken.driver, taken.gpus))


def reseal(path: Path) -> str:
    """Gives the fingerprint in a file, edited by a test, id and checksum of what it now holds; returns the id."""
    taken = with_id(msgspec.json.decode(path.read_bytes(), type=Fingerprint))
    path.write_bytes(msgspec.json.encode(sealed(taken)))
    return taken.id


def fingerprint(*packages: Package, **more: Any) -> Fingerprint:
    """A sound fingerprint; torch 2.11.0+cu128 and triton are there unless packages are given."""
    if not packages:
        packages = (package("torch", "2.11.0+cu128"), package("triton", "3.6.0"), package("transformers", "5.6.0"))
    fields: dict[str, Any] = {
        "id": "",
        "envguard": "0.1.0",
        "taken_at": "2026-05-18T18:41:00.000+00:00",
        "python": Python(
            implementation="CPython",
            version="3.11.9",
            abi="cp311",
            platform="linux-x86_64",
            prefix="/venv",
            executable="/venv/bin/python",
            base="/usr",
            kind="venv",
        ),
        "sys_path": (),
        "packages": packages,
        "shadowed": (),
        "torch": torch() if any(item.name == "torch" for item in packages) else None,
        "cuda": Cuda(build="12.8", packages={}),
        "driver": Driver(version="580.65.06", kernel_module="580.65.06", cuda="13.0", agrees=True),
        "gpus": tuple(gpu(index) for index in range(8)),
        "compile_cache": (cache(),),
        "code": (tree(),),
        "config": (),
        "data": (file_set(),),
        "env": Environment(digest="e" * 64, variables={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
        "system": SYSTEM,
        "processes": (),
        "problems": (),
        "unknown": (),
    }
    made = Fingerprint(**{**fields, **more})
    return made if made.id else with_id(made)
