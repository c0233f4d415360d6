"""torch_key from files: the same as inductor's own, on a real torch and on trees that tell its rules apart."""

from __future__ import annotations

import hashlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.torch.torch_build import read_version_file
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SUFFIX = f".cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so"


def by_import_machinery(root: Path, version: str) -> str:
    """The key as `_inductor/codecache.py` takes it, over a tree that is no real torch."""
    hasher = hashlib.sha256(version.encode())

    def update(roots: list[str], prefix: str) -> None:
        for module in sorted(pkgutil.iter_modules(roots, prefix), key=lambda found: found.name):
            spec = module.module_finder.find_spec(module.name, None)
            assert spec is not None
            assert spec.origin is not None
            hasher.update(spec.name.encode())
            hasher.update(Path(spec.origin).read_bytes())
            if module.ispkg:
                assert spec.submodule_search_locations is not None
                update(list(spec.submodule_search_locations), f"{spec.name}.")

    update([str(root)], "")
    for name in ("codegen/aoti_runtime/interface.cpp", "script.ld"):
        if (root / "_inductor" / name).exists():
            hasher.update((root / "_inductor" / name).read_bytes())
    return hasher.hexdigest()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "top", "version.py": "v", "a.py": "source", "a.so": "extension wins over source", "b.pyc": "c",
        f"_C{SUFFIX}": "tagged", "_C/__init__.pyi": "a stub: no package",
        "d.cpython-27-x86_64-linux-gnu.so": "other",
        "e.abi3.so": "stable", "nn/__init__.py": "package", "nn/f.py": "f", "nn/__pycache__/f.cpython-311.pyc": "no",
        "nn/g/__init__.so": "binary package", "nn/g/__init__.py": "hidden by it", "nn/h/i.py": "namespace: not taken",
        "nn.py": "hidden by the package", "lib/libx.so.1": "no module", "data.txt": "no",
        "with-dash.py": "a name all the same",
        "_inductor/__init__.py": "i", "_inductor/script.ld": "ld",
        "_inductor/codegen/aoti_runtime/interface.cpp": "cpp",
        "x.y/__init__.py": "a dot in a folder", "ab.py": "sorts between", "a_b/__init__.py": "package",
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "torch"


def test_the_rules_of_import_decide_which_files_count(tree: Path) -> None:
    assert read_torch_key(LiveHost(), str(tree), "2.11.0", PYTHON) == by_import_machinery(tree, "2.11.0")


@pytest.mark.parametrize("name", ["nn/f.py", f"_C{SUFFIX}", "_inductor/script.ld", "nn/g/__init__.so"])
def test_one_patched_module_makes_another_key(tree: Path, name: str) -> None:
    before = read_torch_key(LiveHost(), str(tree), "2.11.0", PYTHON)
    (tree / name).write_text("patched")
    assert read_torch_key(LiveHost(), str(tree), "2.11.0", PYTHON) != before


def test_the_tag_follows_the_pickle_protocol_of_the_environments_python() -> None:
    key = hashlib.sha256(b"any").hexdigest()
    assert cache_tag(key, "3.11.9") == cache_tag(key, "3.13")
    assert cache_tag(key, "3.14.1") != cache_tag(key, "3.13")
    assert len(cache_tag(key, "3.11")) == 51


@pytest.mark.slow
def test_the_key_and_tag_of_the_real_torch_are_inductors_own() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed: it comes with the trainer's extra")
    directory = str(Path(spec.origin).parent)
    program = (
        "from torch._inductor.codecache import FxGraphCachePickler, torch_key; import torch;"
        "k = torch_key(); print(k.hex(), FxGraphCachePickler(torch.fx.GraphModule({}, torch.fx.Graph())).get_hash(k))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    version = read_version_file(LiveHost(), f"{directory}/version.py").version
    key = read_torch_key(LiveHost(), directory, version, PYTHON)
    assert [key, cache_tag(key, PYTHON)] == said
