"""Compile caches of other kinds than inductor's and triton's: named, gone when gone, stale under another torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import cache_places
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.fingerprint.cache_changes import cache_changes
from envguard.fingerprint.rules import Change, grade
from envguard.model.fingerprint import CompileCache, Fingerprint
from tests.fingerprint.made import cache, fingerprint, package, torch

LAYOUTS = {
    "torch_extensions": ("torch_extensions", "py311_cu128/fused_adam/fused_adam.so"),
    "by its folders": ("torch_extensions", "py313t_cpu/quanto/quanto.so"),
    "torch_extensions of ROCm": ("torch_extensions", "py310_rocm6.2/x/x.so"),
    "vllm": ("vllm", "torch_compile_cache/3f2a1b/rank_0_0/inductor_cache/fxgraph/ab/abcdef/x"),
    "torch_compile_cache": ("vllm", "3f2a1b/rank_0_0/backbone/artifact.py"),
    "flashinfer": ("flashinfer", "0.6.1/90a/cached_ops/batch/batch.so"),
    "deep_gemm": ("other", "kernel.gemm.1234/kernel.cubin"),
    "ComputeCache": ("other", "index/entry"),
    "inductor": ("inductor", "fxgraph/ab/abcdef/x"),
    "triton": ("triton", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRST/kernel.json"),
}


def read(path: Path) -> CompileCache:
    place = next(each for each in cache_places(LiveHost(), [str(path)]) if each.path == str(path))
    return read_cache(LiveHost(), place, Build("tag"), {}, Notes())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cache_is_of_the_kind_of_its_layout(tmp_path: Path, name: str) -> None:
    kind, file = LAYOUTS[name]
    path = tmp_path / name / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 4000)
    (tmp_path / name).chmod(0o755)
    seen = read(tmp_path / name)
    assert (seen.kind, seen.bytes) == (kind, 4000)
    if kind not in ("inductor", "triton"):
        assert (seen.verdict, seen.files) == ("OTHER", 1)
        shutil.rmtree(tmp_path / name)
        gone = read(tmp_path / name)
        assert gone.verdict == "EMPTY"
        (change,) = cache_changes(fingerprint(compile_cache=(seen,)), fingerprint(compile_cache=(gone,)))
        assert isinstance(change, Change)
        assert (change.kind, grade(change).severity) == ("cleared", "warn")


def extensions(**more: object) -> CompileCache:
    fields = {"kind": "torch_extensions", "path": "/home/me/.cache/torch_extensions", "verdict": "OTHER", "files": 2,
              "entries": 0, "newest": "2026-05-18T18:41:00+00:00", "digest": "d" * 64}  # fmt: skip
    return cache(**{**fields, **more})


def with_torch(version: str, cuda: str | None, *caches: CompileCache) -> Fingerprint:
    build = torch(version, cuda, git_version=version.encode().hex())
    return fingerprint(package("torch", version), torch=build, compile_cache=caches)


@pytest.mark.parametrize(
    ("now", "cuda", "more", "kind"),
    [
        ("2.9.0+cu128", "12.8", {}, "stale"),
        ("2.8.1+cu128", "12.8", {}, "stale"),
        ("2.8.0+cu128", "12.8", {}, None),
        ("2.9.0+cu130", "13.0", {}, None),  # torch looks in another folder
        ("2.9.0+cpu", None, {}, None),
        ("2.9.0+cu128", "12.8", {"newest": "2026-06-01T00:00:00+00:00", "digest": "e" * 64}, "changed"),
        ("2.9.0+cu128", "12.8", {"verdict": "EMPTY", "files": 0, "bytes": 0}, "cleared"),
        ("2.9.0+cu128", "12.8", {"verdict": "UNSAFE"}, "unsafe"),
    ],
)
def test_extensions_that_another_torch_would_load(
    now: str, cuda: str | None, more: dict[str, object], kind: str | None
) -> None:
    a, b = with_torch("2.8.0+cu128", "12.8", extensions()), with_torch(now, cuda, extensions(**more))
    found = [item.kind for item in cache_changes(a, b) if isinstance(item, Change)]
    assert found == ([kind] if kind is not None else [])
    if kind == "stale":
        (change,) = cache_changes(a, b)
        assert isinstance(change, Change)
        graded = grade(change)
        assert (graded.severity, graded.effect) == ("warn", "breaks")
        assert "torch_extensions was compiled with torch 2.8.0+cu128" in graded.why
