"""Compile caches: entries as inductor and triton write them; foreign, tampered, hostile; one by the real torch."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost, Stat
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.cache_trust import Trust
from envguard.acquire.torch.compile_cache import Build, content_name, read_cache
from envguard.acquire.torch.torch_build import read_version_file
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key
from envguard.model.fingerprint import CompileCache
from tests.acquire.made_up import MadeUp
from tests.permissions import held_host, unreadable

HOST = LiveHost()
OURS, THEIRS = "o" * 51, "t" * 51
TRITON_KEY = "3.6.0" + "0355c3e3452fa450" * 4 + "-" + "c8b82f70c83ad10b" * 4
BUILD = Build(tag=OURS, triton="3.6.0", gpus=frozenset({"NVIDIA H200"}))
GPU_UNKNOWN = Build(tag=OURS, triton="3.6.0")


def entry(tag: str, gpu: str | None = "NVIDIA H200", more: str = "") -> bytes:
    """Bytes with the lines that inductor leaves in an entry, pickled as it pickles them."""
    lines = [
        f"[{'a' * 51}] default_dtype: torch.float32",
        f"[{tag}] torch_version: \ufffdM\x10\x07",
        *([f"[{'b' * 51}] system_info[device]: {{'name': '{gpu}'}}"] if gpu else []),
        f"[{'c' * 51}] system_info[version]: {{'triton': '{TRITON_KEY}', 'cuda': '13.0'}}",
        f"[{'d' * 51}] system_info[hash]: 44136fa355b3678a",
    ]
    return pickle.dumps({"lines": lines, "more": more})


def store(root: Path, data: bytes, folder: str = "fxgraph/ab/fab", name: str | None = None) -> Path:
    """Stores an entry under the name that inductor gives it: a digest of its content."""
    path = root / folder / (name or content_name(hashlib.sha256(data).hexdigest()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "cache"
    found.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    return found


def look(root: Path, build: Build = BUILD, memo: dict[str, str] | None = None, **more: Any) -> CompileCache:
    notes = Notes()
    found = read_cache(HOST, Place("inductor", str(root), "test"), build, {} if memo is None else memo, notes, **more)
    assert notes.unknown == []
    return found


def test_a_cache_of_this_build_is_valid(root: Path) -> None:
    store(root, entry(OURS))
    store(root, entry(OURS, more="2"), "aotautograd/aq")
    (root / "mg").mkdir()
    (root / "mg" / "0ad7.best_config").write_text('{"XBLOCK": 8}')
    (root / "locks").mkdir()
    (root / "locks" / "x.lock").write_bytes(b"")
    found = look(root)
    assert (found.verdict, found.why) == ("VALID", None)
    assert found.writers == {OURS: 2}
    assert (found.entries, found.files, found.autotune) == (2, 3, 1)
    assert found.gpus == ("NVIDIA H200",)
    assert found.tritons == ("3.6.0",)
    assert found.bytes == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert found.oldest is not None
    assert found.newest is not None
    assert found.oldest <= found.newest
    assert found.mode == "0755"


def test_whose_entries_it_holds_decides(root: Path) -> None:
    assert look(root).verdict == "EMPTY"
    assert look(root / "gone").verdict == "EMPTY"
    store(root, entry(THEIRS))
    assert look(root).verdict == "FOREIGN"
    store(root, entry(OURS))
    found = look(root)
    assert (found.verdict, found.writers) == ("MIXED", {OURS: 1, THEIRS: 1})
    assert look(root, Build(tag=None, tag_unknown="no version.py")).why == "no version.py"
    assert look(root, Build(tag=None)).verdict == "UNKNOWN"


def test_an_entry_for_another_gpu_serves_this_one_nothing(root: Path) -> None:
    store(root, entry(OURS, gpu="NVIDIA A100"))
    found = look(root)
    assert (found.verdict, found.why) == ("FOREIGN", "this build wrote it, for another GPU: NVIDIA A100")
    assert look(root, GPU_UNKNOWN).verdict == "VALID"
    store(root, entry(OURS, gpu=None))
    assert look(root, GPU_UNKNOWN).verdict == "VALID"


def test_compiled_files_without_an_entry_are_nothing_to_hit(root: Path) -> None:
    (root / "24").mkdir()
    (root / "24" / "c24.py").write_text("x = 1\n")
    found = look(root)
    assert (found.verdict, found.entries, found.files) == ("EMPTY", 0, 1)
    assert found.why == "no entry beside 1 compiled files"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        os.urandom(4096),
        b"] torch_version: " * 500,
        f"[{OURS[:-1]}] torch_version: ".encode(),
        pickle.dumps(OURS),
    ],
)
def test_an_entry_that_names_no_writer_is_not_ours(root: Path, data: bytes) -> None:
    store(root, entry(OURS))
    store(root, data)
    found = look(root)
    assert found.verdict == "MIXED"
    assert found.writers == {OURS: 1, "unnamed": 1}


def test_an_entry_is_never_unpickled(root: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {canary}",))

    store(root, pickle.dumps([Bomb(), f"[{OURS}] torch_version: x"]))
    assert look(root).writers == {OURS: 1}
    assert not canary.exists()


def test_an_entry_with_two_writers_is_neither_s(root: Path) -> None:
    store(root, pickle.dumps([f"[{OURS}] torch_version: x", f"[{THEIRS}] torch_version: x"]))
    found = look(root)
    assert (found.verdict, found.writers) == ("FOREIGN", {f"{OURS}+{THEIRS}": 1})


def test_an_entry_whose_content_is_not_what_its_name_says_is_unsafe(root: Path) -> None:
    path = store(root, entry(OURS))
    assert look(root).verdict == "VALID"
    path.write_bytes(entry(OURS, more="edited in place"))
    found = look(root)
    assert found.verdict == "UNSAFE"
    assert path.name in str(found.why)


def test_who_else_may_write_decides_over_everything(root: Path) -> None:
    store(root, entry(OURS))
    root.chmod(0o777)
    assert look(root).verdict == "UNSAFE"
    root.chmod(0o755)
    inside = root / "fxgraph" / "ab"
    inside.chmod(0o757)
    found = look(root)
    assert found.verdict == "UNSAFE"
    assert "fxgraph/ab can be written by others" in str(found.why)
    inside.chmod(0o755)
    root.parent.chmod(0o777)
    assert "lets others replace it" in str(look(root).why)
    root.parent.chmod(0o1777)
    assert look(root).verdict == "VALID"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_cache_of_another_user_is_unsafe(root: Path) -> None:
    path = store(root, entry(OURS))
    os.chown(path, 12345, 12345)
    assert "another user (uid 12345)" in str(look(root).why)
    os.chown(path, 0, 0)
    os.chown(root, 12345, 12345)
    assert look(root).verdict == "UNSAFE"
    assert look(root).owner == "uid 12345"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_to_a_cache_is_judged_by_both_ends(root: Path, tmp_path: Path) -> None:
    store(root, entry(OURS))
    link = tmp_path / "link"
    link.symlink_to(root)
    assert look(link).verdict == "VALID"
    os.lchown(link, 12345, 12345)
    assert look(link).verdict == "UNSAFE"


def test_a_folder_that_cannot_be_read_is_unknown(root: Path) -> None:
    store(root, entry(OURS))
    notes = Notes()
    with unreadable(root / "fxgraph" / "ab"), held_host() as host:
        found = read_cache(host, Place("inductor", str(root), "test"), BUILD, {}, notes)
    assert found.verdict == "UNKNOWN"
    assert len(notes.unknown) == 1


def test_the_digest_follows_contents_and_nothing_else(root: Path) -> None:
    path = store(root, entry(OURS))
    first = look(root).digest
    assert first is not None
    os.utime(path, (1, 1))
    (root / "locks").mkdir()
    (root / "locks" / "x.lock").write_bytes(b"")
    assert look(root).digest == first
    store(root, entry(OURS, more="2"))
    assert look(root).digest != first


def test_a_stamp_hashes_no_more_compiled_files_than_its_budget(root: Path) -> None:
    store(root, entry(OURS))
    (root / "24").mkdir()
    (root / "24" / "c24.so").write_bytes(bytes(1000))
    time.sleep(0.06)
    memo: dict[str, str] = {}
    small = look(root, memo=memo, budget=999)
    assert (small.verdict, small.digest) == ("VALID", None)
    whole = look(root, memo=memo)
    assert whole.digest is not None
    assert look(root, memo=memo, budget=999) == whole


def test_what_was_seen_is_not_read_again_until_it_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(root, entry(OURS))
    time.sleep(0.06)  # a file that may still move is not kept
    memo: dict[str, str] = {}
    first = look(root, memo=memo)
    reads: list[str] = []
    scan = HOST.scan

    def watched(path: str, needles: tuple[str, ...], before: int, after: int) -> tuple[str, tuple[str, ...]]:
        reads.append(path)
        return scan(path, needles, before, after)

    monkeypatch.setattr(HOST, "scan", watched)
    assert look(root, memo=memo) == first
    assert reads == []
    look(root, memo=memo, deep=True)
    assert reads == [str(path)]
    path.write_bytes(entry(THEIRS))
    assert look(root, memo=memo).writers == {THEIRS: 1}


def test_a_memo_that_cannot_be_read_costs_a_reading_and_no_more(root: Path) -> None:
    store(root, entry(OURS))
    assert look(root, memo={f"compile_cache {root}": '{"x": "not a list"}'}).verdict == "VALID"


def test_a_name_that_is_no_text(root: Path) -> None:
    store(root, entry(OURS))
    (root / "24").mkdir()
    with open(os.fsencode(root / "24") + b"/\xff.py", "wb") as stream:
        stream.write(b"x")
    time.sleep(0.06)
    memo: dict[str, str] = {}
    assert look(root, memo=memo).files == 2
    msgspec.json.encode(memo)
    assert look(root, memo=memo).files == 2


# --- triton -----------------------------------------------------------------------------------------------------


def kernel(root: Path, version: str, name: str = "K") -> None:
    folder = root / (name * 26)
    folder.mkdir()
    (folder / "add.json").write_text(f'{{"hash": "d6", "target": {{"arch": 90}}, "triton_version": "{version}"}}')
    (folder / "__grp__add.json").write_text('{"child_paths": {"add.cubin": "/x"}}')
    (folder / "add.cubin").write_bytes(b"\x7fELF")


def test_triton_s_kernels_name_their_version(root: Path) -> None:
    def triton(build: Build = BUILD) -> CompileCache:
        return read_cache(HOST, Place("triton", str(root), "test"), build, {}, Notes())

    kernel(root, "3.6.0")
    found = triton()
    assert (found.verdict, found.entries, found.writers) == ("VALID", 1, {"triton 3.6.0": 1})
    kernel(root, "3.5.0", "L")
    assert triton().verdict == "MIXED"
    assert triton(Build(tag=None, triton="3.7.0")).verdict == "FOREIGN"
    assert triton(Build(tag=OURS)).verdict == "FOREIGN"


# --- a group that holds one user ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "users", "private"),
    [
        ("ada:x:1000:\n", "ada:x:1000:1000::/:\n", True),
        ("ada:x:1000:ada\n", "ada:x:1000:1000::/:\n", True),
        ("ada:x:1000:bob\n", "ada:x:1000:1000::/:\n", False),
        ("ada:x:1000:\n", "ada:x:1000:1000::/:\nbob:x:1001:1000::/:\n", False),
        ("staff:x:50:\n", "ada:x:1000:1000::/:\n", False),
    ],
)
def test_writable_by_a_group_that_holds_its_owner_alone_is_private(groups: str, users: str, private: bool) -> None:
    host = MadeUp({"/etc/group": groups.encode(), "/etc/passwd": users.encode()})
    stat = Stat("directory", 0o775, 0, 1, 1000, 1000, 1, 1, 0, 0)
    assert (Trust(host, 1000).of(stat, "/c") is None) is private


# --- the real one -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cache_that_the_real_torch_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the trainer's extra")
    cache = tmp_path / "inductor"
    program = (
        "import torch; f = torch.compile(lambda x: torch.nn.functional.gelu(x @ x).sum(-1));"
        "f(torch.randn(8, 8, requires_grad=True)).sum().backward()"
    )
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, capture_output=True)
    directory = str(Path(str(torch.__file__)).parent)
    version = read_version_file(HOST, f"{directory}/version.py").version
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    build = Build(tag=cache_tag(read_torch_key(HOST, directory, version, python), python))
    found = look(cache, build)
    assert (found.verdict, found.why) == ("VALID", None)
    assert found.entries is not None
    assert found.entries >= 2
    assert look(cache, Build(tag=OURS)).verdict == "FOREIGN"
