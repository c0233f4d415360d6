"""A compile cache that only the reference names: kept under its own path, brought back to it, never where others
may write."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Notes
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.compile_cache import Build, read_cache
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.model.fingerprint import CompileCache
from envguard.restore import service
from envguard.restore.compile_cache import COLD
from envguard.restore.keeping import keep_cache, keep_caches
from envguard.restore.remembering import remember
from envguard.restore.vault import CacheManifest, Vault
from envguard.restore.wanted import Target, from_fingerprint
from envguard.state import journal
from tests.caches import cache_of_step_4, tag_of, write_cache
from tests.permissions import envguard_held_to_modes, held_host, unreadable
from tests.restore.conftest import Swapped, tree


@pytest.fixture
def shell(swapped: Swapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that this shell's variables name; the run's own is another."""
    folder = tmp_path / "shell"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def run(swapped: Swapped) -> Path:
    return swapped.stage.project / ".cache" / "trainer" / "inductor" / "torch-2.11.0+cu128"


@pytest.fixture
def tag(swapped: Swapped) -> str:
    """The tag of the build that is restored; it is there from here on."""
    swapped.restore()
    return tag_of(swapped.stage)


def seen(path: Path, tag: str) -> CompileCache:
    return read_cache(LiveHost(), Place("inductor", str(path), "test"), Build(tag), {}, Notes())


def keep(swapped: Swapped, path: Path, tag: str) -> None:
    place = Place("inductor", str(path), "test")
    said = keep_cache(Vault(swapped.state), LiveHost(), place, seen(path, tag), "2.11.0+cu128")
    assert said.startswith("kept the inductor cache")


def naming(swapped: Swapped, *caches: CompileCache, host: str | None = None) -> Target:
    """The reference as it was before, with these caches, on this machine or another."""
    system = swapped.before.system
    assert system is not None
    taken = msgspec.structs.replace(
        swapped.before,
        compile_cache=caches,
        system=msgspec.structs.replace(system, host=host or system.host),
    )
    return from_fingerprint("step_690", taken)


def bring(swapped: Swapped, target: Target, dry_run: bool = False) -> list[str]:
    request = swapped.request(target)
    brought = service.bring_caches_back(request, dry_run=dry_run)
    if not dry_run:
        remember(request.state, request.target, service.find_and_plan(request), {}, brought, pytest.fail)
    return [each.says for each in brought]


def names(path: Path) -> set[str]:
    return {each.name for each in path.rglob("*") if each.is_file() and each.name != "envguard.json"}


def test_the_run_s_cache_comes_back_to_its_own_path_beside_the_one_in_use(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag)
    before, target = tree(run), naming(swapped, seen(run, tag))
    keep(swapped, run, tag)
    write_cache(shell, tag, "of another model")
    keep(swapped, shell, tag)  # the newest that fits; the run's own goes before it
    unrelated = tree(shell)
    shutil.rmtree(run.parents[2])
    (would, _) = bring(swapped, target, dry_run=True)
    assert f"the inductor cache {run} would be filled from the vault" in would
    assert not run.exists()
    own, used = bring(swapped, target)
    assert f"the inductor cache {run} was filled from the vault" in own
    assert f"the inductor cache {shell} is of this build: a warm start" in used
    assert {path: entry[2:] for path, entry in tree(run).items() if path != "envguard.json"} == {
        path: entry[2:] for path, entry in before.items()
    }
    assert tree(shell) == unrelated
    for folder in (run, *run.parents[:2], *run.rglob("*")):
        assert folder.stat().st_mode & 0o077 in (0, 0o044), folder
    assert json.loads((run / "envguard.json").read_bytes())["path"] == str(run)
    text = journal.journal_file(swapped.state, LiveHost().machine().host).read_bytes()
    entries = [journal.entry(line) for line in text.splitlines()]
    told = [entry for entry in entries if entry is not None and entry["kind"] == "compile_cache"]
    assert [(entry["path"], entry["files"]) for entry in told] == [(str(run), 4)]
    assert "a warm start" in bring(swapped, target)[0]


def test_of_what_is_kept_the_newest_of_the_own_path_is_taken_else_the_newest_that_fits(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag, "newer")
    newer, target = names(run), naming(swapped, seen(run, tag))
    keep(swapped, run, tag)
    shutil.rmtree(run)
    write_cache(shell, tag, "of the shell")
    of_shell = names(shell)
    keep(swapped, shell, tag)
    shutil.rmtree(shell)
    own, used = bring(swapped, target)
    assert (names(run), names(shell)) == (newer, of_shell)
    assert "which lay in" not in own + used
    other = run.with_name("torch-other")
    said = bring(swapped, naming(swapped, msgspec.structs.replace(target_cache(target), path=str(other))))
    assert names(other) == of_shell, "nothing was kept of that path: the newest that fits"
    assert f"which lay in {shell}" in said[0]


def target_cache(target: Target) -> CompileCache:
    assert target.fingerprint is not None
    assert target.fingerprint.compile_cache is not None
    return target.fingerprint.compile_cache[0]


def test_what_another_machine_had_goes_into_the_place_in_use_and_is_said(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag)
    of_run, target = names(run), naming(swapped, seen(run, tag), host="another")
    keep(swapped, run, tag)
    shutil.rmtree(run)
    write_cache(shell, tag, "of this shell")
    before = names(shell)
    note, used = bring(swapped, target)
    assert f"step_690 had its inductor cache {run} on another machine (another)" in note
    assert f"what is kept of it goes to {shell}" in note
    assert "was filled from the vault" in used
    assert f"which lay in {run}" in used
    assert names(shell) == before | of_run, "warm, and filled all the same: its own entries are another model's"
    assert not run.exists()
    assert "a warm start" in bring(swapped, target)[1]


def test_a_folder_that_others_may_write_gets_nothing(swapped: Swapped, shell: Path, run: Path, tag: str) -> None:
    write_cache(run, tag)
    of_run, target = names(run), naming(swapped, seen(run, tag))
    keep(swapped, run, tag)
    shutil.rmtree(run)
    run.parent.chmod(0o777)
    note, used = bring(swapped, target)
    assert f"where nothing is put: {run.parent} can be written by others (mode 777)" in note
    assert not run.exists()
    assert f"the inductor cache {shell} was filled from the vault" in used
    assert names(shell) == of_run
    run.parent.chmod(0o755)
    run.mkdir()
    run.chmod(0o777)
    note, _ = bring(swapped, target)
    assert f"{run} can be written by others" in note
    assert list(run.iterdir()) == []


def test_a_failure_at_one_cache_is_said_and_the_others_are_filled(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag)
    target = naming(swapped, seen(run, tag))
    keep(swapped, run, tag)
    shutil.rmtree(run)
    run.symlink_to(run.parent / "gone")
    own, used = bring(swapped, target)
    assert f"the inductor cache {run} could not be filled" in own
    assert COLD in own
    assert f"the inductor cache {shell} was filled from the vault" in used


def test_the_cold_start_is_said_once_and_only_where_the_run_has_one(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag)
    target = naming(swapped, seen(run, tag))
    own, used = bring(swapped, target)
    assert "a warm start" in own
    assert f"the inductor cache {shell} is EMPTY" in used
    assert "compiles cold" not in own + used, "the run looks into its own"
    shutil.rmtree(run)
    own, used = bring(swapped, target)
    assert f"the inductor cache {run} is EMPTY: it is not there; no copy of it was kept. So {COLD}" in own
    assert "compiles cold" not in used


def test_a_cache_that_lost_entries_gets_them_back(swapped: Swapped, shell: Path, run: Path, tag: str) -> None:
    write_cache(run, tag)
    whole, target = names(run), naming(swapped, seen(run, tag))
    keep(swapped, run, tag)
    for folder in sorted((run / "fxgraph").iterdir())[1:]:
        shutil.rmtree(folder)
    left = tree(run)
    assert seen(run, tag).verdict == "VALID"
    assert "2 files" in bring(swapped, target)[0]
    assert names(run) == whole
    assert {path: tree(run)[path] for path in left} == left
    shutil.rmtree(run / "fxgraph" / sorted((run / "fxgraph").iterdir())[0].name)
    shutil.rmtree(swapped.state / "vault")
    assert "with 2 of the 3 entries that it had" in bring(swapped, target)[0]


def test_every_valid_cache_that_was_seen_is_kept_under_its_own_path_and_once(
    swapped: Swapped, shell: Path, run: Path, tag: str, tmp_path: Path
) -> None:
    same, link, open_to_all = tmp_path / "same", tmp_path / "link", tmp_path / "open"
    for path in (run, same, open_to_all):
        write_cache(path, tag)
    open_to_all.chmod(0o777)
    link.symlink_to(run)
    caches = tuple(seen(path, tag) for path in (shell, run, same, link, open_to_all))
    vault = Vault(swapped.state)
    taken = msgspec.structs.replace(swapped.before, compile_cache=caches)
    says = keep_caches(vault, LiveHost(), taken)
    kept = [manifest for _, manifest in vault.manifests() if isinstance(manifest, CacheManifest)]
    assert {manifest.path for manifest in kept} == {str(run), str(same)}
    assert len({manifest.digest for manifest in kept}) == 1, "they hold the same, and neither hides the other"
    assert [said for said in says if "was not kept: UNSAFE" in said] == [says[-1]]
    assert len(says) == 3
    keep_caches(vault, LiveHost(), taken)
    assert len([manifest for _, manifest in vault.manifests() if isinstance(manifest, CacheManifest)]) == 2


@pytest.fixture
def cleared(torch_stage: Stage) -> Path:
    """The cache that a run's trainer set for itself: stamped with step_4, kept, and cleared since."""
    cache = cache_of_step_4(torch_stage)
    done = torch_stage.envguard("snapshot", "--keep")
    assert f"kept the inductor cache {cache}: 4 files, " in done.stderr
    shutil.rmtree(cache)
    return cache


def test_from_the_trainer_s_stamp_to_a_warm_start_again(torch_stage: Stage, cleared: Path) -> None:
    assert torch_stage.envguard("diff", "step_4").returncode == 1
    done = torch_stage.envguard("restore", "step_4", "-y")
    assert done.returncode == 0, done.stderr
    assert "was filled from the vault" in " ".join(done.stdout.split())
    assert torch_stage.envguard("diff", "step_4").returncode == 0
    assert str(cleared) in json.loads(torch_stage.envguard("vault", "list", "--json").stdout)["entries"][-1]["name"]


def test_a_path_that_this_user_cannot_make_is_said(torch_stage: Stage, cleared: Path) -> None:
    cleared.parent.chmod(0o555)
    done = envguard_held_to_modes(torch_stage, "restore", "step_4", "-y", "--json")
    cleared.parent.chmod(0o755)
    assert done.returncode == 0, done.stderr
    note, used = json.loads(done.stdout)["notes"]
    assert f"where nothing is put: {cleared.parent} cannot be written" in note
    assert f"the inductor cache {torch_stage.tmp}/torchinductor_" in used
    assert f"which lay in {cleared}" in used


def test_a_copy_that_a_pattern_names_is_used_and_a_folder_that_cannot_be_listed_is_said(
    swapped: Swapped, shell: Path, run: Path, tag: str
) -> None:
    write_cache(run, tag)
    config = Config(compile_caches=(".cache/trainer/inductor/*",))
    (brought,) = service.bring_caches_back(swapped.request(config=config))
    assert f"the inductor cache {shell} was filled from {run}: 4 files" in brought.says
    shutil.rmtree(shell)
    with unreadable(run.parent), held_host() as host:
        request = swapped.request(config=config)
        (brought,) = service.bring_caches_back(replace(request, host=host))
    assert f"not brought back: {run.parent}/* could not be listed (Permission denied)" in brought.says
