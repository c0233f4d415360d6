"""Where a build is found, with a real uv: by content, whatever uv itself would still find."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel, stand_in_torch
from envguard.restore import service
from envguard.restore.wanted import from_fingerprint
from tests.restore.conftest import Swapped, fingerprint, tree


def sources(swapped: Swapped, **options: object) -> dict[str, str | None]:
    request = swapped.request(**options)  # type: ignore[arg-type]
    plan = service.find_and_plan(request)
    return {item.package: item.source for item in service.report_of(request, plan, service.prove(request, plan)).plan}


def archive_of(stage: Stage, text: str) -> Path:
    (found,) = (
        path.parents[1] for path in stage.cache.glob("archive-v0/*/torch/version.py") if text in path.read_text()
    )
    return found


class _Cacheable(SimpleHTTPRequestHandler):
    """Serves folders of wheels as pages of links, with the header that lets pip keep what it fetched."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serve_cacheable(root: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Cacheable, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


@pytest.fixture
def fetched(stage: Stage, story_wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swapped:
    """Installed from an index that is gone afterwards, so that the cache holds `.http` pointers with hashes."""
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    with serve_index(story_wheels) as index:
        stage.install("torch==2.11.0+cu128", "transformers==5.6.0", index=index)
        before = fingerprint(stage)
        stage.install("sglang", index=index)
    return Swapped(stage, before, tmp_path / "state")


def test_index_gone_the_archive_goes_by_lock_and_the_cache_is_untouched(fetched: Swapped) -> None:
    assert sources(fetched) == {"torch": "pylock"}
    cache = tree(fetched.stage.cache)
    outcome = fetched.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert "2.11.0+cu128" in fetched.torch_says()
    assert tree(fetched.stage.cache) == cache
    (record,) = fetched.stage.site.glob("torch-*.dist-info/RECORD")
    assert not (record.parent / "direct_url.json").exists()


def test_an_index_that_has_dropped_the_version_is_not_asked(
    fetched: Swapped, story_wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    left.mkdir()
    for wheel in story_wheels.iterdir():
        if "+cu128" not in wheel.name:
            (left / wheel.name).symlink_to(wheel)
    with serve_index(left) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        assert fetched.restore().verified
    assert "2.11.0+cu128" in fetched.torch_says()


def test_hard_links_into_the_cache_only_where_they_are_asked_for(fetched: Swapped) -> None:
    cache = tree(fetched.stage.cache)
    assert fetched.restore(config=Config(link_mode="hardlink")).verified
    archive = archive_of(fetched.stage, "+cu128") / "torch" / "version.py"
    assert (fetched.stage.site / "torch" / "version.py").samefile(archive)
    assert tree(fetched.stage.cache) == cache


def test_symbolic_links_are_copied_and_that_is_said(fetched: Swapped) -> None:
    outcome = fetched.restore(config=Config(link_mode="symlink"))
    assert outcome.verified
    assert any("symlink" in note and "copied instead" in note for note in outcome.notes)
    version = fetched.stage.site / "torch" / "version.py"
    assert (version.is_symlink(), version.stat().st_nlink) == (False, 1)


def test_a_restored_file_shares_its_inode_with_nothing(fetched: Swapped, swapped: Swapped) -> None:
    for each in (fetched, swapped):
        each.restore()
        files = [path for path in (each.stage.site / "torch").rglob("*") if path.is_file()]
        assert files
        assert {path.stat().st_nlink for path in files} == {1}


def test_simple_cache_and_pointers_gone_a_dangling_archive_is_enough(fetched: Swapped) -> None:
    for bucket in fetched.stage.cache.glob("*-v*"):
        if not bucket.name.startswith("archive"):
            shutil.rmtree(bucket)
    assert sources(fetched) == {"torch": "rebuilt-wheel"}
    assert fetched.restore().verified
    assert "2.11.0+cu128" in fetched.torch_says()


def test_an_older_uvs_bucket_falls_back_to_a_rebuilt_wheel(fetched: Swapped) -> None:
    (bucket,) = fetched.stage.cache.glob("wheels-v*")
    bucket.rename(bucket.with_name("wheels-v5"))
    cache = tree(fetched.stage.cache)
    outcome = fetched.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert "2.11.0+cu128" in fetched.torch_says()
    assert tree(fetched.stage.cache) == cache


def test_of_two_builds_of_one_version_the_stamped_one_comes_back(swapped: Swapped, tmp_path: Path) -> None:
    other = stand_in_torch(tmp_path / "other", "2.11.0+cu128", seed="another build")
    swapped.stage.uv("pip", "install", "--python", str(swapped.stage.python), "--offline", "--no-deps", str(other))
    assert "+cu128" in swapped.torch_says()
    request = swapped.request()
    plan = service.find_and_plan(request)
    (item,) = service.report_of(request, plan).plan
    assert (item.from_, item.to) == ("2.11.0+cu128", "2.11.0+cu128")
    assert swapped.restore().verified
    wanted = swapped.before.package("torch")
    restored = fingerprint(swapped.stage).package("torch")
    assert wanted is not None
    assert restored is not None
    assert restored.build == wanted.build


def test_by_version_alone_two_builds_are_ambiguous_and_nothing_is_guessed(swapped: Swapped, tmp_path: Path) -> None:
    other = stand_in_torch(tmp_path / "other", "2.11.0+cu128", seed="another build")
    swapped.stage.uv("pip", "install", "--python", str(swapped.stage.python), "--offline", "--no-deps", str(other))
    swapped.stage.install("torch==2.11.0+cu130", arguments=["--no-deps"])
    target = from_fingerprint("witnessed", swapped.before)
    blind = tuple(msgspec.structs.replace(wanted, build=None) for wanted in target.packages if wanted.name == "torch")
    request = swapped.request(msgspec.structs.replace(target, packages=blind, fingerprint=None))
    (missing,) = service.find_and_plan(request).missing
    assert "ambiguous: 2 different builds" in missing.why


def test_a_poisoned_archive_is_healed_from_a_find_links_folder(swapped: Swapped, story_wheels: Path) -> None:
    poisoned = archive_of(swapped.stage, "+cu128") / "torch" / "nn" / "__init__.py"
    poisoned.write_text(poisoned.read_text() + "# patched\n")
    outcome = swapped.restore(config=Config(find_links=(str(story_wheels),)))
    assert (outcome.failure, outcome.verified) == (None, True)
    assert [item.path for item in outcome.poisoned] == [str(poisoned)]
    assert outcome.chosen["torch"].place == "find-links"
    assert "patched" not in (swapped.stage.site / "torch" / "nn" / "__init__.py").read_text()


def test_an_edit_in_place_that_poisons_the_cache_is_what_a_plain_reinstall_brings_back(swapped: Swapped) -> None:
    # The installed file and the archive's are one inode: this is how caches get poisoned.
    installed = swapped.stage.site / "torch" / "nn" / "__init__.py"
    with installed.open("a") as stream:
        stream.write("# patched\n")
    assert "patched" in (archive_of(swapped.stage, "+cu130") / "torch" / "nn" / "__init__.py").read_text()
    before = fingerprint(swapped.stage)
    torch = before.package("torch")
    assert torch is not None
    assert torch.departs == ("torch/nn/__init__.py",)
    target = from_fingerprint("patched", before)
    (wanted,) = (wanted for wanted in target.packages if wanted.name == "torch")
    assert wanted.build == torch.record
    with installed.open("a") as stream:
        stream.write("# patched again\n")
    outcome = swapped.restore(msgspec.structs.replace(target, packages=(wanted,)))
    assert not outcome.applied
    assert [Path(item.path or "").name for item in outcome.poisoned] == ["__init__.py"]


def test_a_pip_installed_environment_is_restored_from_pips_own_cache(
    stage: Stage, tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    wheels = tmp_path / "index" / "simple" / "sound"
    build_wheel(wheels, "sound", "1.0", {"sound/__init__.py": b"one"})
    build_wheel(wheels, "sound", "2.0", {"sound/__init__.py": b"two"})
    pip = [sys.executable, "-m", "pip", "--python", str(stage.python), "--disable-pip-version-check", "install"]
    cache = private_home / ".cache" / "pip"
    environ = {**os.environ, "PIP_CACHE_DIR": str(cache), "PIP_CONFIG_FILE": os.devnull}
    with serve_cacheable(tmp_path / "index") as index:
        for version in ("1.0", "2.0"):
            command = [*pip, "--index-url", index, "--trusted-host", "127.0.0.1", f"sound=={version}"]
            subprocess.run(command, env=environ, check=True, capture_output=True)
            if version == "1.0":
                before = fingerprint(stage)
    shutil.rmtree(wheels)
    each = Swapped(stage, before, tmp_path / "state")
    outcome = each.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert outcome.chosen["sound"].place == "pip-cache"
    assert (stage.site / "sound" / "__init__.py").read_bytes() == b"one"


def test_a_wheel_for_another_platform_is_foreign_and_said_so(swapped: Swapped, tmp_path: Path) -> None:
    shutil.rmtree(archive_of(swapped.stage, "+cu128"))
    wanted = swapped.before.package("torch")
    assert wanted is not None
    (archive,) = (a for a in read_caches(LiveHost(), (str(swapped.stage.cache),)).of("torch"))
    target = from_fingerprint("elsewhere", swapped.before)
    foreign = build_wheel(tmp_path / "links", "torch", "9.0", {"torch/a.py": b"a"}, tag="cp310-cp310-win_amd64")
    blind = tuple(
        msgspec.structs.replace(item, build=None, version="9.0") for item in target.packages if item.name == "torch"
    )
    request = swapped.request(
        msgspec.structs.replace(target, packages=blind, fingerprint=None),
        config=Config(find_links=(str(foreign.parent),)),
    )
    (missing,) = service.find_and_plan(request).missing
    assert "cp310-cp310-win_amd64" in missing.why
    assert archive.build != wanted.build


def test_a_lock_brings_back_the_wheel_that_its_hash_names(fetched: Swapped, story_wheels: Path) -> None:
    (wheel,) = story_wheels.glob("torch-2.11.0+cu128-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = fetched.stage.project / "pylock.old.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "torch"\nversion = "2.11.0+cu128"\n'
        f'wheels = [{{ name = "{wheel.name}", url = "https://example.org/{wheel.name}", '
        f'hashes = {{ sha256 = "{digest}" }} }}]\n'
    )
    done = fetched.stage.envguard("restore", str(lock), "-y")
    assert done.returncode == 0, done.stderr
    assert "2.11.0+cu128" in fetched.torch_says()
    lock.write_text(lock.read_text().replace(digest, "0" * 64))
    before = tree(fetched.stage.venv)
    refused = fetched.stage.envguard("restore", str(lock), "-y", "--json")
    assert refused.returncode == 4
    (missing,) = json.loads(refused.stdout)["missing"]
    assert f"sha256 {'0' * 64}" in missing["why"]
    assert tree(fetched.stage.venv) == before


def test_without_a_stamp_the_witnesses_name_the_build_and_say_how_sure(torch_stage: Stage) -> None:
    folder = torch_stage.checkpoints / "step_690"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    time.sleep(2.2)  # two installs within two seconds are one run to the timeline
    torch_stage.install("sglang")
    dry = torch_stage.envguard("restore", "step_690", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    said = " ".join(dry.stdout.split())
    assert "it has no stamp" in said
    assert "torch 2.11.0+cu128: " in said
    done = torch_stage.envguard("restore", "step_690", "-y")
    assert done.returncode == 0, done.stderr
    assert "2.11.0+cu128" in (torch_stage.site / "torch" / "version.py").read_text()
    assert (torch_stage.site / "sglang").is_dir()


def test_a_file_that_record_does_not_list_stays_out(fetched: Swapped) -> None:
    stray = archive_of(fetched.stage, "+cu128") / "evil.pth"
    stray.write_text("import os\n")
    cache = tree(fetched.stage.cache)
    outcome = fetched.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert not (fetched.stage.site / "evil.pth").exists()
    assert tree(fetched.stage.cache) == cache
