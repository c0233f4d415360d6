"""The vault: what is kept comes back after everything else is gone, and what a stamp refers to is never collected."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest

from envguard.acquire.runs.stamps import reference
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel, stand_in_torch
from envguard.model.schema import schema
from envguard.restore.collecting import Needs, collect
from envguard.restore.keeping import keep_live
from envguard.restore.progress import Silent
from envguard.restore.vault import Vault
from tests.restore.conftest import Swapped, fingerprint


def keep(each: Swapped) -> Vault:
    request = each.request()
    keep_live(LiveHost(), request.project, request.env, fingerprint(each.stage), Silent())
    return Vault(each.state)


@pytest.fixture
def kept(torch_stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swapped:
    """Kept, then swapped, then the cache wiped: nothing but the vault has the old build."""
    monkeypatch.setenv("UV_CACHE_DIR", str(torch_stage.cache))
    each = Swapped(torch_stage, fingerprint(torch_stage), tmp_path / "state")
    keep(each)
    torch_stage.install("sglang")
    shutil.rmtree(torch_stage.cache)
    return each


def test_the_vault_alone_brings_the_build_back(kept: Swapped) -> None:
    outcome = kept.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    assert outcome.chosen["torch"].place == "vault"
    assert "2.11.0+cu128" in kept.torch_says()


def test_a_damaged_file_of_the_vault_is_refused(kept: Swapped) -> None:
    before = fingerprint(kept.stage).package("torch")
    (manifest,) = (path for path in (kept.state / "vault" / "wheels").iterdir() if b'"torch"' in path.read_bytes())
    items = json.loads(manifest.read_bytes())["files"]
    (sha256,) = (item[1] for item in items if item[0] == "torch/version.py")
    file = Vault(kept.state).file(sha256)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"#")
    outcome = kept.restore()
    assert not outcome.applied
    assert [item.path for item in outcome.poisoned] == [f"{manifest}/torch/version.py"]
    assert fingerprint(kept.stage).package("torch") == before


def test_files_that_two_builds_share_are_kept_once_and_share_no_inode_with_their_source(
    swapped: Swapped, tmp_path: Path
) -> None:
    vault = keep(swapped)
    for path in vault.root.glob("files/*/*"):
        assert path.stat().st_nlink == 1
        assert path.stat().st_mode & 0o777 == 0o444
    before = {path.name for path in vault.root.glob("files/*/*")}
    old = {path.name for path in vault.root.glob("wheels/*")}
    wheel = stand_in_torch(tmp_path / "more", "2.11.0+cu130", seed="x")
    swapped.stage.uv("pip", "install", "--python", str(swapped.stage.python), "--offline", "--no-deps", str(wheel))
    keep(swapped)
    assert len(list(vault.root.glob("wheels/*"))) == len(old) + 1
    new = {path.name for path in vault.root.glob("files/*/*")} - before
    # __init__.py and version.py are the same in both: only what differs is added.
    assert 0 < len(new) < 9


def test_a_build_that_no_cache_holds_is_kept_out_of_the_install_itself(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    build_wheel(
        stage.wheels,
        "tool",
        "1.0",
        {"tool/__init__.py": b"def main(): print('one')\n"},
        scripts={"tool": "tool:main"},
    )
    pip = [sys.executable, "-m", "pip", "--python", str(stage.python), "--disable-pip-version-check", "install"]
    command = [*pip, "--no-index", "--find-links", str(stage.wheels), "tool==1.0"]
    subprocess.run(command, env=stage.environ(), check=True, capture_output=True)
    each = Swapped(stage, fingerprint(stage), tmp_path / "state")
    keep(each)
    build_wheel(stage.wheels, "tool", "2.0", {"tool/__init__.py": b"def main(): print('two')\n"})
    stage.install("tool==2.0")
    assert not (stage.venv / "bin" / "tool").exists()
    outcome = each.restore()
    assert (outcome.failure, outcome.verified) == (None, True)
    ran = subprocess.run([stage.venv / "bin" / "tool"], capture_output=True, text=True, check=True)
    assert ran.stdout == "one\n"


def test_what_a_stamp_refers_to_outlives_any_bound(swapped: Swapped) -> None:
    vault = keep(swapped)
    needs = Needs()
    torch = fingerprint(swapped.stage)
    needs.add("step_700", msgspec.structs.replace(torch, packages=(torch.packages[-1],)))
    name = torch.packages[-1].name
    done = collect(vault, needs, most_bytes=0, most_days=1, now=time.time())
    assert {entry.name.split()[0] for entry in done.gone} == {p.name for p in torch.packages} - {name}
    assert done.over > 0
    (left,) = (manifest for _, manifest in vault.manifests())
    assert {path.name for path in vault.root.glob("files/*/*")} == {item.sha256 for item in left.files}


def test_age_alone_drops_what_nobody_needs(swapped: Swapped) -> None:
    vault = keep(swapped)
    assert collect(vault, Needs(), 1 << 40, most_days=180).gone == ()
    later = time.time() + 181 * 86400
    assert len(collect(vault, Needs(), 1 << 40, most_days=180, now=later).gone) > 0
    assert not list(vault.root.glob("files/*"))


def test_the_commands(torch_stage: Stage) -> None:
    (torch_stage.project / "envguard.toml").write_text("vault_max_bytes = 0\n")
    kept = torch_stage.envguard("snapshot", "--keep", "-q")
    assert kept.returncode == 0, kept.stderr
    folder = torch_stage.checkpoints / "step_690"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    about = reference(LiveHost(), str(folder))
    stamp = msgspec.structs.replace(fingerprint(torch_stage), checkpoint=about, origin="launch", diverged=())
    (folder / "envguard.json").write_bytes(msgspec.json.encode(stamp))
    torch_stage.install("transformers==5.8.1")
    assert torch_stage.envguard("snapshot", "--keep", "-q").returncode == 0
    listed = torch_stage.envguard("vault", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    report = json.loads(listed.stdout)
    jsonschema.validate(report, schema("vault"))
    referenced = {entry["name"]: entry["referenced_by"] for entry in report["entries"]}
    assert referenced["torch 2.11.0+cu128"] == ["step_690"]
    assert referenced["transformers 5.8.1"] == []
    gone = torch_stage.envguard("vault", "gc", "--json")
    assert gone.returncode == 0, gone.stderr
    left = {entry["name"] for entry in json.loads(gone.stdout)["entries"]}
    assert left == {"torch 2.11.0+cu128", "transformers 5.6.0", "triton 3.6.0"}
    (folder / "envguard.json").write_text("{}")
    undecided = torch_stage.envguard("vault", "gc", "--json")
    assert undecided.returncode == 3
    assert json.loads(undecided.stdout)["schema"] == "envguard.vault"
    assert {entry["name"] for entry in json.loads(undecided.stdout)["entries"]} == left


def test_an_empty_vault_is_no_error(stage: Stage) -> None:
    for action in ("list", "gc"):
        done = stage.envguard("vault", action)
        assert (done.returncode, done.stderr) == (0, "")
        assert "empty" in done.stdout
    assert not (stage.project / ".envguard").exists()
