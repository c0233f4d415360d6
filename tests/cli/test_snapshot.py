"""`envguard snapshot` from the outside: one id, nothing changed on disk, and every broken environment answered."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.demo import wheels
from envguard.demo.stage import Stage
from envguard.model.schema import schema


def snapshot(stage: Stage, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = stage.envguard("snapshot", "--json", *arguments)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, mtime and content of everything below a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        link = os.readlink(path) if path.is_symlink() else ""
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not link else link
        found[str(path.relative_to(root))] = (stat.st_mode, stat.st_mtime_ns, content)
    return found


def test_one_id_whenever_and_however_deep(torch_stage: Stage) -> None:
    ids = {snapshot(torch_stage)["id"], snapshot(torch_stage)["id"], snapshot(torch_stage, "--deep")["id"]}
    assert len(ids) == 1


def test_the_answer_fits_its_schema(torch_stage: Stage) -> None:
    jsonschema.validate(snapshot(torch_stage), schema("fingerprint"))


@pytest.mark.parametrize("keep_mtime", [True, False])
def test_one_byte_of_torch_is_another_id(torch_stage: Stage, keep_mtime: bool) -> None:
    before = snapshot(torch_stage)["id"]
    library = next((torch_stage.site / "torch/lib").glob("libtorch_cuda.so"))
    stat = library.stat()
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    with library.open("r+b") as stream:
        stream.write(data)
    if keep_mtime:
        os.utime(library, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = snapshot(torch_stage)
    assert after["id"] != before
    assert [p["says"] for p in after["problems"] if p["kind"] == "files-modified"] == [
        "1 of its files is not what was installed: torch/lib/libtorch_cuda.so"
    ]


def test_nothing_changes_on_disk(torch_stage: Stage) -> None:
    (torch_stage.project / "train.py").write_text("import torch\n")
    before = tree(torch_stage.venv), tree(torch_stage.project), tree(torch_stage.cache)
    snapshot(torch_stage, "--deep")
    assert (tree(torch_stage.venv), tree(torch_stage.project), tree(torch_stage.cache)) == before
    assert list(torch_stage.tmp.iterdir()) == []


def test_a_project_keeps_its_state_in_a_folder_of_its_own(torch_stage: Stage) -> None:
    (torch_stage.project / "envguard.toml").touch()
    taken = snapshot(torch_stage)
    state = torch_stage.project / ".envguard"
    assert (state / ".gitignore").read_text() == "*\n"
    (journal,) = state.glob("journal-*.jsonl")
    (entry,) = [json.loads(line) for line in journal.read_text().splitlines()]
    assert (entry["kind"], entry["id"], entry["fingerprint"]) == ("snapshot", taken["id"], taken)
    assert json.loads(torch_stage.envguard("diff", "@1", "live", "--json").stdout)["match"]


def test_the_id_is_the_same_in_another_place_by_another_installer(torch_stage: Stage) -> None:
    here = snapshot(torch_stage)
    other = Stage(torch_stage.root / "other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other.venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(other.python), "install"]
    wanted = [f"{package['name']}=={package['version']}" for package in here["packages"]]
    where = ["--quiet", "--no-index", "--find-links", str(torch_stage.wheels)]
    subprocess.run([*pip, *where, *wanted], env=other.environ(), check=True)
    there = snapshot(other)
    assert {package["installer"] for package in there["packages"]} == {"pip"}
    assert there["id"] == here["id"]


def test_torch_that_raises_is_read_from_its_files(torch_stage: Stage) -> None:
    marker = torch_stage.root / "imported"
    (torch_stage.site / "torch/__init__.py").write_text(f"open({str(marker)!r}, 'w')\nraise RuntimeError('broken')\n")
    found = snapshot(torch_stage)
    assert found["torch"]["version"] == "2.11.0+cu128"
    assert not marker.exists()
    assert not (torch_stage.venv / "lib64/python3/site-packages/pip").exists()


def test_a_version_file_that_is_a_pointer_is_told(torch_stage: Stage) -> None:
    (torch_stage.site / "torch/version.py").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\n")
    found = snapshot(torch_stage)
    assert found["torch"]["version"] is None
    assert found["torch"]["metadata_version"] == "2.11.0+cu128"
    assert any(problem["kind"] == "torch-version" for problem in found["problems"])


def test_an_empty_environment_is_an_answer(stage: Stage) -> None:
    found = snapshot(stage)
    assert (found["packages"], found["torch"]) == ([], None)


def test_every_package_of_a_damaged_environment_is_listed(stage: Stage) -> None:
    for name in ("one", "two", "three"):
        wheels.build_wheel(stage.wheels, name, "1.0")
    stage.install("one", "two", "three", arguments=["--link-mode", "copy"])
    (stage.site / "one-1.0.dist-info/METADATA").write_bytes(b"")
    (stage.site / "two-1.0.dist-info/RECORD").unlink()
    (stage.site / "three-1.0.dist-info/RECORD").write_bytes(b"\xff\xfe\0")
    found = snapshot(stage)
    assert [package["name"] for package in found["packages"]] == ["one", "three", "two"]
    assert {problem["subject"] for problem in found["problems"]} >= {"one", "two", "three"}


def test_text_says_first_what_matters(torch_stage: Stage) -> None:
    done = torch_stage.envguard("snapshot")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("eg1-")
    assert any("2.11.0+cu128, CUDA 12.8" in line for line in lines)
    assert done.stderr == ""
    assert torch_stage.envguard("snapshot", "-q").stdout == lines[0] + "\n"
    verbose = torch_stage.envguard("snapshot", "-v").stdout
    assert "transformers 5.6.0" in verbose


@pytest.mark.parametrize("columns", [80, 140])
def test_a_finding_names_its_package_and_wraps_under_its_own_beginning(torch_stage: Stage, columns: int) -> None:
    (torch_stage.site / "torch/nn/__init__.py").unlink()
    (torch_stage.site / "code.pth").write_text("import os; " + "print(1); " * 20 + "\n")
    shown = torch_stage.envguard("snapshot", extra={"COLUMNS": str(columns)}).stdout
    assert "torch: installed, but 1 of its 9 files is missing:" in shown
    lines = shown[shown.index("  problem") :].splitlines()
    assert len(lines) > 2
    assert not [line for line in lines if len(line) > columns or line != line.rstrip()]
    assert not [line for line in lines if not line.startswith(("  problem      ", " " * 15))]


def test_a_file_is_written_whole(torch_stage: Stage) -> None:
    taken = snapshot(torch_stage, "-o", "out.json")
    assert json.loads((torch_stage.project / "out.json").read_text()) == taken
    refused = snapshot(torch_stage, "-o", "no/such/folder/out.json", code=2)
    assert refused["schema"] == "envguard.error"
    assert refused["hint"]


def test_a_state_folder_that_takes_no_writes_is_a_warning(torch_stage: Stage) -> None:
    (torch_stage.project / "envguard.toml").touch()
    (torch_stage.project / ".envguard").write_text("in the way\n")
    done = torch_stage.envguard("snapshot", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "envguard.fingerprint"
    assert done.stderr.startswith("warning: ")


@pytest.mark.parametrize("named", ["nowhere", "."])
def test_what_is_no_environment_is_refused(torch_stage: Stage, named: str) -> None:
    refused = snapshot(torch_stage, "--python", named, code=2)
    assert refused["code"] == 2
    assert refused["hint"]


def test_no_environment_at_all(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "bare")
    done = stage.envguard("snapshot", extra={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Python environment found")
    assert "hint: " in done.stderr


def test_killed_while_it_writes_it_leaves_what_was_there(torch_stage: Stage) -> None:
    (torch_stage.project / "envguard.toml").touch()
    whole = snapshot(torch_stage, "-o", "out.json")
    for delay in (0.15, 0.2, 0.25, 0.3, 0.4):
        process = subprocess.Popen(
            torch_stage.envguard_command("snapshot", "--deep", "-q", "-o", "out.json"),
            cwd=torch_stage.project,
            env=torch_stage.environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        process.kill()
        process.wait()
        assert json.loads((torch_stage.project / "out.json").read_text())["id"] == whole["id"]
    assert snapshot(torch_stage)["id"] == whole["id"]
