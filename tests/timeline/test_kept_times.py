"""Installed files that were edited under a time that tells nothing: `touch -r`, `cp -p`, a copied tree."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.packages.record_file import record_hash
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel

EDITED = "1 installed file edited after the install"


def timeline(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--since-checkpoint", "step_690", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def saved(torch_stage: Stage) -> Stage:
    """Copied and not linked, so that no inode is the cache's; then a checkpoint without a stamp."""
    wanted = ("torch==2.11.0+cu128", "transformers==5.6.0")
    torch_stage.install("--reinstall", *wanted, arguments=["--link-mode", "copy"])
    time.sleep(2.2)  # so that no edit is of the install's own seconds
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    time.sleep(0.1)
    return torch_stage


def module(stage: Stage) -> Path:
    return stage.site / "transformers" / "__init__.py"


@pytest.mark.parametrize("same_size", [True, False])
def test_an_edit_that_keeps_the_time(saved: Stage, same_size: bool) -> None:
    file = module(saved)
    kept = saved.root / "kept"
    shutil.copy2(file, kept)
    file.write_text('__version__ = "5.6.1"\n' if same_size else '__version__ = "5.6.0"  # patched\n')
    subprocess.run(["touch", "-r", str(kept), str(file)], check=True)
    code, answer = timeline(saved)
    (finding,) = answer["findings"]
    assert (code, finding["title"]) == (1, EDITED)
    assert finding["says"] == "__init__.py of transformers edited after its install, under a time that is no later."
    (event,) = [item for item in answer["events"] if item["kind"] == "file.patched"]
    assert event["time"] < answer["checkpoint"]["time"] < event["end"]
    assert {"mtime", "ctime"} <= {item["field"] for item in event["evidence"]}


def test_a_patched_file_that_came_from_another_machine(saved: Stage) -> None:
    """`rsync -a` and `cp -p` bring the time of the other machine along, from before the install."""
    patched = saved.root / "patched.py"
    patched.write_text('__version__ = "5.6.0"  # patched\n')
    os.utime(patched, (1_700_000_000, 1_700_000_000))
    subprocess.run(["cp", "-p", "--remove-destination", str(patched), str(module(saved))], check=True)
    code, answer = timeline(saved)
    assert (code, [item["title"] for item in answer["findings"]]) == (
        1,
        ["1 installed file edited after the install"],
    )
    (event,) = [item for item in answer["events"] if item["kind"] == "file.patched"]
    assert event["end"] > answer["checkpoint"]["time"]


def test_an_edit_in_a_copied_tree(saved: Stage) -> None:
    """The dates of a copy are doubtful, its contents are not."""
    with module(saved).open("a") as stream:
        stream.write("# patched\n")
    copy = saved.project / "copied"
    subprocess.run(["cp", "-a", str(saved.venv), str(copy)], check=True)
    code, answer = timeline(saved, "--python", str(copy))
    assert (code, [item["title"] for item in answer["findings"]]) == (
        1,
        ["1 installed file edited after the install"],
    )


@pytest.mark.parametrize("command", [["chmod", "-R", "g+w"], ["cp", "-al"]])
def test_what_moves_every_ctime_makes_no_file_suspect(saved: Stage, command: list[str]) -> None:
    subprocess.run([*command, str(saved.venv), *([str(saved.root / "links")] if "cp" in command else [])], check=True)
    assert timeline(saved)[0] == 0
    assert timeline(saved)[1]["findings"] == []


def test_a_file_that_was_touched_back_with_its_own_content(saved: Stage) -> None:
    file = module(saved)
    facts = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert timeline(saved)[1]["findings"] == []


@pytest.mark.parametrize("gap_s", [0.02, 0.5, 1.5])
@pytest.mark.parametrize("how", ["sed -i", "in place", "touch -r"])
def test_an_edit_soon_after_the_install(stage: Stage, gap_s: float, how: str) -> None:
    """A set-up script installs, and patches at once."""
    build_wheel(stage.wheels, "plain", "1.0", {f"plain/{name}.py": b"x = 1\n" for name in ("a", "b", "c")})
    stage.install("plain", arguments=["--link-mode", "copy"])
    time.sleep(gap_s)
    file = stage.site / "plain" / "a.py"
    if how == "sed -i":
        subprocess.run(["sed", "-i", "s/1/2/", str(file)], check=True)
    else:
        before = file.stat()
        file.write_bytes(b"x = 2\n")
        if how == "touch -r":
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = stage.envguard("timeline", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, [item["title"] for item in answer["findings"]]) == (1, [EDITED])
    verified = stage.envguard("verify", "--json", *(["--deep"] if how == "touch -r" else []))
    assert [item["path"] for item in json.loads(verified.stdout)["problems"]] == [str(file)]


def test_a_tree_that_was_copied_without_its_times_was_not_edited(saved: Stage) -> None:
    copy = saved.project / "copied"
    subprocess.run(["cp", "-r", str(saved.venv), str(copy)], check=True)
    _, answer = timeline(saved, "--python", str(copy))
    assert [item["title"] for item in answer["findings"] if "edited" in item["title"]] == []
    assert not any(item["what"] == "edits in site-packages" for item in answer["unknown"])


def write_anew_with_record(stage: Stage, file: Path, data: bytes) -> Path:
    """An edit with which RECORD was rewritten, so that the two agree."""
    (record,) = stage.site.glob(f"{file.parent.name}-*.dist-info/RECORD")
    old, new = (record_hash("sha256", hashlib.sha256(text).digest()) for text in (file.read_bytes(), data))
    size = len(file.read_bytes())
    file.write_bytes(data)
    text = record.read_text()
    assert f"{old},{size}" in text
    record.write_text(text.replace(f"{old},{size}", f"{new},{len(data)}"))
    return record


# Without a record, and with its times put back, nothing is left of it but a ctime, and the archive by which `verify`
# tells.
@pytest.mark.parametrize(
    ("witness", "kept"), [("none", False), ("stamp", False), ("snapshot", False), ("stamp", True), ("snapshot", True)]
)
def test_a_record_that_was_edited_with_its_file(saved: Stage, witness: str, kept: bool) -> None:
    """It was called another build, under the times of an older install."""
    if witness != "none":
        arguments = ("--into", "step_690") if witness == "stamp" else ()
        assert saved.envguard("snapshot", *arguments).returncode == 0
    (record,) = saved.site.glob("transformers-*.dist-info/RECORD")
    before = record.stat(), module(saved).stat()
    write_anew_with_record(saved, module(saved), b'__version__ = "5.6.0"  # patched\n')
    if kept:
        for path, facts in zip((record, module(saved)), before, strict=True):
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    code, answer = timeline(saved)
    assert code == 1
    assert not [item for item in answer["events"] if item["kind"] == "package.replaced"]
    (event,) = [item for item in answer["events"] if item["kind"] == "file.patched"]
    assert event["subject"] == str(record)
    assert event["summary"].startswith("RECORD of transformers was written anew")
    assert event["end"] > answer["checkpoint"]["time"]
    assert EDITED in [item["title"] for item in answer["findings"]]
