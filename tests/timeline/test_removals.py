"""Packages that are gone: told by whatever knows of them, and of no package that was never here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard import clock
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel

BACKEND = b"""
import base64, hashlib, os, zipfile

def build_wheel(folder, settings=None, metadata=None):
    return _write(folder, {"made.py": b"X = 1\\n"})

def build_editable(folder, settings=None, metadata=None):
    return _write(folder, {"made.pth": os.getcwd().encode() + b"\\n"})

def _write(folder, payload):
    name = "made-1.0-py3-none-any.whl"
    files = {
        **payload,
        "made-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n",
        "made-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    files["made-1.0.dist-info/RECORD"] = "\\n".join([*rows, "made-1.0.dist-info/RECORD,,", ""]).encode()
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name
"""


def checkpoint(stage: Stage, name: str, stamped: bool = False) -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(name.encode())
    if stamped:
        done = stage.envguard("snapshot", "--into", name)
        assert done.returncode == 0, done.stderr
    time.sleep(0.1)
    return folder


def timeline(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


def swap_and_restore(stage: Stage) -> None:
    """step_10 with its stamp, sglang installed after it, and all of that taken back."""
    checkpoint(stage, "step_10", stamped=True)
    time.sleep(0.6)
    stage.install("sglang")
    assert stage.envguard("restore", "step_10", "-y", "--exact").returncode == 0


def titles(answer: dict[str, Any]) -> list[str]:
    return [finding["title"] for finding in answer["findings"]]


def source_tree(stage: Stage) -> Path:
    """A project that is built with a backend and one more package, both out of the cache."""
    build_wheel(stage.wheels, "backend", "1.0", {"backend.py": BACKEND}, ["helper"])
    build_wheel(stage.wheels, "helper", "2.0")
    tree = stage.root / "made"
    tree.mkdir()
    (tree / "pyproject.toml").write_text(
        '[project]\nname = "made"\nversion = "1.0"\n'
        '[build-system]\nrequires = ["backend"]\nbuild-backend = "backend"\n'
    )
    return tree


def test_what_a_build_needed_for_a_moment_was_never_here(torch_stage: Stage) -> None:
    tree = source_tree(torch_stage)
    checkpoint(torch_stage, "step_10")
    time.sleep(0.6)
    torch_stage.install(str(tree))
    archives = {path.parent.name for path in torch_stage.cache.glob("archive-v0/*/*.dist-info/METADATA")}
    assert {"backend-1.0.dist-info", "helper-2.0.dist-info"} <= archives  # they went through the cache
    for arguments in ((), ("--since-checkpoint", "step_10")):
        code, answer = timeline(torch_stage, *arguments)
        assert (code, answer["findings"]) == (0, [])
        assert not [event for event in answer["events"] if event["kind"] == "package.removed"]


def test_a_package_that_was_never_installed_is_not_removed_for_being_required(torch_stage: Stage) -> None:
    """Installed with --no-deps, as envguard's own stamp is; another environment lets go of its dependency."""
    other = torch_stage.root / "other"
    build_wheel(torch_stage.wheels, "asked", "1.0")
    build_wheel(torch_stage.wheels, "asking", "1.0", requires=["asked"])
    torch_stage.uv("venv", "--quiet", "--python", str(torch_stage.python.resolve()), str(other))
    where = ("--offline", "--no-index", "--find-links", str(torch_stage.wheels), "--python", str(other))
    torch_stage.uv("pip", "install", *where, "asked")
    time.sleep(0.1)
    torch_stage.uv("pip", "uninstall", "--python", str(other), "asked")
    time.sleep(0.1)
    torch_stage.install("asking", arguments=["--no-deps"])
    code, answer = timeline(torch_stage)
    assert (code, titles(answer)) == (0, []), answer["findings"][0]["says"]


def test_what_pip_took_away_is_missed(stage: Stage) -> None:
    build_wheel(stage.wheels, "kept", "1.0")
    build_wheel(stage.wheels, "jinja", "3.1")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(stage.python)]
    install = [*pip, "install", "--quiet", "--no-index", "--find-links", str(stage.wheels), "kept", "jinja"]
    subprocess.run(install, check=True, env=stage.environ())
    checkpoint(stage, "step_10", stamped=True)
    checkpoint(stage, "step_20")
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "jinja"], check=True, env=stage.environ())

    code, answer = timeline(stage, "--since-checkpoint", "step_10")
    assert (code, titles(answer)) == (1, ["jinja removed after step_10"])
    (gone,) = (event for event in answer["events"] if event["kind"] == "package.removed")
    assert (gone["from"], gone["to"], gone["confidence"]) == ("3.1", None, "strong")
    assert titles(timeline(stage, "--since-checkpoint", "step_20")[1]) == ["jinja removed, before or after step_20"]

    diff = stage.envguard("diff", "step_20")
    assert diff.returncode == 3  # whether step_20 still had it, nobody knows
    assert "3.1 was here before and is not any more" in " ".join(diff.stdout.split())
    restore = stage.envguard("restore", "step_20", "--dry-run")
    assert restore.returncode == 3, restore.stdout


def test_an_unstamped_checkpoint_gets_back_what_was_taken_out_after_it(torch_stage: Stage) -> None:
    checkpoint(torch_stage, "step_10", stamped=True)
    checkpoint(torch_stage, "step_20")
    time.sleep(0.6)
    torch_stage.uv("pip", "uninstall", "--python", str(torch_stage.python), "transformers")
    assert titles(timeline(torch_stage, "--since-checkpoint", "step_20")[1])[0].startswith("transformers removed 0.")
    diff = torch_stage.envguard("diff", "step_20")
    assert diff.returncode == 1
    assert "transformers 5.6.0 → none" in diff.stdout
    done = torch_stage.envguard("restore", "step_20", "-y")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restored and verified, file by file: transformers 5.6.0" in done.stdout
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_20")
    assert titles(answer) == ["transformers was brought back by envguard"]
    (back,) = (event for event in answer["events"] if event["subject"] == "transformers")
    assert back["summary"] == "transformers 5.6.0 brought back by `envguard restore step_20`"


def test_what_a_restore_took_away_is_its_own_doing(torch_stage: Stage) -> None:
    swap_and_restore(torch_stage)
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_10", "--all")
    assert titles(answer) == ["torch was brought back by envguard"]
    assert "stays without --exact" in answer["findings"][0]["caveats"][0]
    removed = {event["subject"]: event for event in answer["events"] if event["kind"] == "package.removed"}
    assert removed.keys() == {"sglang", "flashinfer-python"}
    for event in removed.values():
        assert event["summary"].endswith("removed by `envguard restore step_10`")
        assert event["confidence"] == "strong"
    (torch,) = (event for event in answer["events"] if event["subject"] == "torch")
    assert (torch["from"], torch["to"]) == ("2.11.0+cu130", "2.11.0+cu128")
    assert torch["confidence"] == "certain"


def test_a_restore_that_was_rolled_back_took_nothing_away(torch_stage: Stage) -> None:
    swap_and_restore(torch_stage)
    done = torch_stage.envguard("restore", "--rollback", "-y")
    assert done.returncode == 0
    log = torch_stage.envguard("log").stdout
    assert [line.split()[3:] for line in log.splitlines()][-2:] == [
        ["restore", "step_10"],
        ["rollback", "of", "step_10"],
    ]
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_10")
    assert "envguard" not in " ".join(event["summary"] for event in answer["events"])
    assert titles(answer)[0].startswith("torch replaced ")


def by_uv(stage: Stage, *names: str) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), *names)


def by_pip(stage: Stage, *names: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(stage.python)]
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", *names], check=True, env=stage.environ())


def by_sync(stage: Stage, *names: str) -> None:
    stays = sorted({"first", "second", "third", "stays"} - set(names))
    (stage.project / "wanted.txt").write_text("".join(f"{name}==1.0\n" for name in stays))
    where = ["--offline", "--no-index", "--find-links", str(stage.wheels)]
    stage.uv("pip", "sync", "--python", str(stage.python), *where, str(stage.project / "wanted.txt"))


@pytest.fixture
def four(stage: Stage) -> Stage:
    """Four packages that know nothing of each other, and a stamped checkpoint."""
    for name in ("first", "second", "third", "stays"):
        build_wheel(stage.wheels, name, "1.0")
    stage.install("first", "second", "third", "stays")
    checkpoint(stage, "step_10", stamped=True)
    time.sleep(0.6)
    return stage


UNINSTALLS = [by_uv, by_pip, by_sync]


@pytest.mark.parametrize("names", [("first", "second"), ("first", "second", "third")], ids=["two", "three"])
@pytest.mark.parametrize("uninstall", UNINSTALLS, ids=lambda each: each.__name__)
def test_one_uninstall_is_one_finding(four: Stage, uninstall: Callable[..., None], names: tuple[str, ...]) -> None:
    began = time.time_ns()
    uninstall(four, *names)
    code, answer = timeline(four, "--since-checkpoint", "step_10")
    (title,) = titles(answer)
    assert (code, f"and {len(names) - 1} more removed" in title) == (1, True), title
    gone = [event for event in answer["events"] if event["kind"] == "package.removed"]
    assert sorted(event["subject"] for event in gone) == sorted(names)
    assert all(clock.nanoseconds(event["time"]) >= began - clock.NS // 10 for event in gone)


@pytest.mark.parametrize("uninstall", UNINSTALLS, ids=lambda each: each.__name__)
def test_an_uninstall_after_a_restore_has_its_own_time(four: Stage, uninstall: Callable[..., None]) -> None:
    """A restore only reads the cache, which keeps the moment of the removal that was undone."""
    by_uv(four, "first", "second")
    assert four.envguard("restore", "step_10", "-y").returncode == 0
    restored = time.time_ns()
    time.sleep(0.6)
    uninstall(four, "first", "second")
    _, answer = timeline(four, "--since-checkpoint", "step_10")
    assert len([title for title in titles(answer) if "removed" in title]) == 1, titles(answer)
    for event in (event for event in answer["events"] if event["kind"] == "package.removed"):
        assert clock.nanoseconds(event["end"] or event["time"]) > restored
        assert clock.nanoseconds(event["time"]) > restored - clock.NS * 3
