"""The compile cache after a restore: copied where its writer fits, safe in owner and mode, else said to be cold."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.acquire.torch.compile_times import read_cache_times
from envguard.config import Config
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Gpu
from envguard.restore import service, undoing
from envguard.restore.compile_cache import misfit
from envguard.restore.keeping import keep_cache
from envguard.restore.vault import CacheManifest, Vault
from envguard.timeline.events.system import cache_events
from tests.caches import tag_of, write_cache
from tests.restore.conftest import Swapped, tree


@pytest.fixture
def place(swapped: Swapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return Place("inductor", str(folder), "TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture
def old_tag(swapped: Swapped) -> str:
    """The cache tag of the build that the restore brings back."""
    swapped.restore()
    found = tag_of(swapped.stage)
    undoing.roll_back(str(swapped.stage.venv), swapped.state)
    return found


def keep(swapped: Swapped, place: Place, tag: str) -> str:
    seen = read_cache(LiveHost(), place, Build(tag, None, None, None), {}, Notes())
    return keep_cache(Vault(swapped.state), LiveHost(), place, seen, "2.11.0+cu128")


def says(swapped: Swapped, **options: object) -> str:
    request = swapped.request(**options)  # type: ignore[arg-type]
    (brought,) = service.bring_caches_back(request)
    return brought.says


def test_a_kept_cache_of_the_restored_build_comes_back_whole(swapped: Swapped, place: Place, old_tag: str) -> None:
    folder = Path(place.path)
    write_cache(folder, old_tag)
    before = tree(folder)
    assert "kept the inductor cache" in keep(swapped, place, old_tag)
    shutil.rmtree(folder)
    swapped.restore()
    told = says(swapped)
    assert "was filled from the vault" in told
    assert re.search(r"\(stored \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d\)", told), (
        "a person's time, not a file's"
    )
    now = tree(folder)
    stamp = json.loads((folder / "envguard.json").read_bytes())
    del now["envguard.json"]
    assert {path: entry[2:] for path, entry in now.items()} == {path: entry[2:] for path, entry in before.items()}
    assert (stamp["path"], stamp["files"], stamp["writer"]) == (str(folder), 4, old_tag)
    assert stamp["source"].startswith("the vault")
    assert stamp["began"] <= stamp["restored_at"]
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o022
    assert "a warm start" in says(swapped)


def test_a_restored_cache_is_told_from_one_that_was_compiled_anew(
    swapped: Swapped, place: Place, old_tag: str
) -> None:
    folder = Path(place.path)
    write_cache(folder, old_tag)
    keep(swapped, place, old_tag)
    shutil.rmtree(folder)
    swapped.restore()
    says(swapped)
    host, unknown = LiveHost(), list[Unknown]()
    events = list(cache_events(read_cache_times(host, [place], unknown)))
    assert [event.kind for event in events] == ["compile_cache.written"] * 2, "no compile_cache.created: it is warm"
    assert "was filled by `envguard restore` from the vault" in events[0].summary
    (seen,) = read_cache_times(host, [place], unknown)
    assert (seen.files, read_cache(host, place, Build(old_tag, None, None, None), {}, Notes()).files) == (4, 4)
    # Taken along to another place, the stamp is that of another cache; and one that is none is said.
    other = Place("inductor", f"{folder}-copy", "test")
    shutil.copytree(folder, other.path)
    assert [event.kind for event in cache_events(read_cache_times(host, [other], unknown))] == [
        "compile_cache.created", "compile_cache.written",
    ]  # fmt: skip
    assert unknown == []
    for rubbish in (b"{", b"[" * 5000, (folder / "envguard.json").read_bytes().replace(b"+00:00", b"")):
        (folder / "envguard.json").write_bytes(rubbish)
        assert read_cache_times(host, [place], unknown)[0].stamp is None
    assert [item.what for item in unknown] == [f"compile cache stamp {folder}/envguard.json"] * 3


def test_what_lies_in_the_cache_is_neither_removed_nor_written_over(
    swapped: Swapped, place: Place, old_tag: str
) -> None:
    folder = Path(place.path)
    write_cache(folder, old_tag)
    keep(swapped, place, old_tag)
    shutil.rmtree(folder)
    write_cache(folder, "a" * 51)
    foreign = tree(folder)
    swapped.restore()
    assert "was filled" in says(swapped)
    now = tree(folder)
    assert {path: now[path] for path in foreign if foreign[path][0] == "file"} == {
        path: entry for path, entry in foreign.items() if entry[0] == "file"
    }
    assert len(now) > len(foreign)


GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    uuid_digest=None,
    memory_bytes=None,
    compute_capability=None,
    mig=None,
    ecc=None,
    power_limit_w=None,
    p2p={},
    context_bytes=None,
    refused={},
)


@pytest.mark.parametrize(("gpus", "timed"), [((GPU,), True), ((), False), (None, False)])
def test_without_a_copy_the_cold_start_is_said(
    swapped: Swapped, place: Place, gpus: tuple[Gpu, ...] | None, timed: bool
) -> None:
    swapped.restore()
    request = swapped.request()
    request = dataclasses.replace(request, live=msgspec.structs.replace(request.live, gpus=gpus))
    (brought,) = service.bring_caches_back(request)
    assert "compiles cold" in brought.says
    assert ("30.9 s cold, for 5.1 s warm and for 4.6 s from a copied cache" in brought.says) is timed
    assert not Path(place.path).exists()


def test_a_kept_cache_of_another_build_is_not_brought_back(swapped: Swapped, place: Place, old_tag: str) -> None:
    write_cache(Path(place.path), old_tag)
    keep(swapped, place, old_tag)
    shutil.rmtree(place.path)
    told = says(swapped)  # cu130 is installed
    assert "written by another build" in told
    assert "compiles cold" in told
    assert not Path(place.path).exists()


def test_a_copy_made_by_hand_is_used_where_it_fits(
    swapped: Swapped, place: Place, old_tag: str, tmp_path: Path
) -> None:
    copy = tmp_path / "saved-cache"
    write_cache(copy, old_tag)
    swapped.restore()
    assert f"was filled from {copy}" in says(swapped, config=Config(compile_caches=(str(copy),)))


def test_a_cache_that_others_can_write_to_is_neither_kept_nor_filled(
    swapped: Swapped, place: Place, old_tag: str
) -> None:
    folder = Path(place.path)
    write_cache(folder, old_tag)
    keep(swapped, place, old_tag)
    folder.chmod(0o777)
    before = tree(folder)
    assert "was not kept: UNSAFE" in keep(swapped, place, old_tag)
    swapped.restore()
    assert "is left alone" in says(swapped)
    assert tree(folder) == before


def test_another_gpu_or_triton_is_a_misfit() -> None:
    kept = CacheManifest(
        cache="inductor", digest="d", path="/x", torch="2.11.0", tags=("t",), gpus=("NVIDIA H200",),
        tritons=("3.6.0",), stored="2026-05-18T20:00:00.000+00:00", files=(),
    )  # fmt: skip
    assert misfit(kept, Build("t", None, "3.6.0", frozenset({"NVIDIA H200"}))) is None
    assert "another GPU" in (misfit(kept, Build("t", None, "3.6.0", frozenset({"RTX"}))) or "")
    assert "triton" in (misfit(kept, Build("t", None, "3.7.0", None)) or "")
    assert "another build" in (misfit(kept, Build("u", None, "3.6.0", None)) or "")
    assert "cannot be told" in (misfit(kept, Build(None, "no key", "3.6.0", None)) or "")
