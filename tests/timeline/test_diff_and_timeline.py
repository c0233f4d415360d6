"""Whatever `diff A` objects to, `timeline --since-checkpoint A` has as an event in a finding."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.packages.record_file import record_hash
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.caches import stamp_as_trainer, tag_of, write_cache

Extra = Mapping[str, str]
Change = Callable[[Stage], Extra | None]
CHECKPOINT = "step_10"


def git(stage: Stage, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@y")
    subprocess.run(["git", *who, *arguments], cwd=stage.project, check=True, capture_output=True)


@pytest.fixture
def project(torch_stage: Stage) -> Stage:
    """torch +cu128, transformers, two packages, code under git, data, a configuration and a warm compile cache; a
    checkpoint that was stamped with them."""
    stage = torch_stage
    build_wheel(stage.wheels, "plain", "1.0", {"plain/__init__.py": b"x = 1\n", "plain/more.py": b"y = 1\n"})
    build_wheel(stage.wheels, "plain", "2.0", {"plain/__init__.py": b"x = 2\n"})
    build_wheel(stage.wheels, "reader", "1.0", requires=["plain<2"])
    build_wheel(stage.wheels, "flash-attn", "2.8.0")
    build_wheel(stage.wheels, "numpy", "2.2.0", {"numpy/__init__.py": b"x = 1\n" * 40})
    stage.install("plain==1.0", "reader", "numpy", arguments=("--link-mode", "copy"))
    project = stage.project
    (project / "envguard.toml").write_text('config = ["run.toml"]\ndata = ["data"]\n')
    (project / "run.toml").write_text("lr = 1\n")
    (project / "data").mkdir()
    (project / "data" / "train.jsonl").write_text("{}\n")
    (project / "train.py").write_text("print(1)\n")
    (project / ".gitignore").write_text(".venv\ncheckpoints\ndata\n.cache\n.envguard\n")
    git(stage, "init", "-q", ".")
    git(stage, "add", ".")
    git(stage, "commit", "-qm", "one")
    (project / ".cache").mkdir()
    write_cache(project / ".cache" / "inductor", tag_of(stage))
    stage.lend_envguard()
    (stage.checkpoints / CHECKPOINT).mkdir()
    (stage.checkpoints / CHECKPOINT / "model.safetensors").write_bytes(b"weights")
    stamp_as_trainer(stage, stage.checkpoints / CHECKPOINT, project / ".cache" / "inductor")
    time.sleep(0.05)
    return stage


def answer(stage: Stage, *arguments: str, extra: Extra | None = None) -> tuple[int, dict[str, Any]]:
    done = stage.envguard(*arguments, "--json", extra=extra)
    value: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, value


def objections(diff: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(row["facet"], row["subject"]) for row in diff["drifts"] if row["severity"] != "info"}


def in_findings(timeline: Mapping[str, Any]) -> set[tuple[str, str]]:
    """What the events that findings rest on tell of."""
    because = {index for finding in timeline["findings"] for index in finding["because"]}
    rows = (row for index in because for row in timeline["events"][index]["drifts"])
    return {(row["facet"], row["subject"]) for row in rows}


def agree(stage: Stage, extra: Extra | None = None, since: str = CHECKPOINT) -> tuple[int, dict[str, Any]]:
    """Holds the two commands against each other; returns the timeline's code and answer."""
    code, diff = answer(stage, "diff", since, extra=extra)
    timed, timeline = answer(stage, "timeline", "--since-checkpoint", since, extra=extra)
    assert objections(diff) <= in_findings(timeline), (diff["drifts"], timeline["findings"])
    if code == 1:
        assert timed == 1, timeline
    if code == 3:
        assert timed in (1, 3), (diff["unknown"], timeline["unknown"])
    return timed, timeline


def write_anew(path: Path, text: bytes) -> None:
    """As a file of its own: what is linked from a cache stays as it was there."""
    path.unlink()
    path.write_bytes(text)


def swap_torch(stage: Stage) -> None:
    stage.install("torch==2.11.0+cu130")


def swap_plain(stage: Stage) -> None:
    stage.install("plain==2.0")


def rebuild_plain(stage: Stage) -> None:
    build_wheel(stage.wheels, "plain", "1.0", {"plain/__init__.py": b"x = 9\n", "plain/more.py": b"y = 1\n"})
    stage.install("plain==1.0", arguments=("--reinstall", "--no-cache"))


def remove_plain(stage: Stage) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), "plain")


def remove_torch(stage: Stage) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), "torch")


def add_to_the_stack(stage: Stage) -> None:
    stage.install("flash-attn==2.8.0")


def patch_torch(stage: Stage) -> None:
    write_anew(stage.site / "torch" / "version.py", (stage.site / "torch" / "version.py").read_bytes() + b"\n# x\n")


def patch_with_old_time(stage: Stage) -> None:
    """An edit in place of the same size, its time put back."""
    path = stage.site / "numpy" / "__init__.py"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"x = 1", b"x = 7"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def patch_many_with_old_times(stage: Stage) -> None:
    """As `patch_with_old_time`, after a chmod of all files, so that no change of an inode stands out."""
    for path in (stage.site / "numpy").rglob("*"):
        path.chmod(0o640)
    patch_with_old_time(stage)


def patch_with_its_record(stage: Stage) -> None:
    path = stage.site / "numpy" / "__init__.py"
    record = next(stage.site.glob("numpy-*.dist-info")) / "RECORD"
    old = record_hash("sha256", hashlib.sha256(path.read_bytes()).digest())
    write_anew(path, path.read_bytes().replace(b"x = 1", b"x = 7"))
    new = record_hash("sha256", hashlib.sha256(path.read_bytes()).digest())
    write_anew(record, record.read_bytes().replace(old.encode(), new.encode()))


def lose_a_file(stage: Stage) -> None:
    (stage.site / "plain" / "more.py").unlink()


def empty_a_file(stage: Stage) -> None:
    write_anew(stage.site / "plain" / "more.py", b"")


def add_start_up_code(stage: Stage) -> None:
    (stage.site / "hook.pth").write_text("import os; os.environ.setdefault('X', '1')\n")


def add_sitecustomize(stage: Stage) -> None:
    (stage.site / "sitecustomize.py").write_text("X = 1\n")


def set_a_variable(stage: Stage) -> Extra:
    return {"NCCL_ALGO": "Ring"}


def set_two_variables(stage: Stage) -> Extra:
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LD_LIBRARY_PATH": "/opt/lib"}


def edit_code(stage: Stage) -> None:
    (stage.project / "train.py").write_text("print(2)\n")


def edit_code_with_old_time(stage: Stage) -> None:
    path = stage.project / "train.py"
    before = path.stat()
    path.write_text("print(3)\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def commit_code(stage: Stage) -> None:
    edit_code(stage)
    git(stage, "commit", "-qam", "two")


def edit_config(stage: Stage) -> None:
    (stage.project / "run.toml").write_text("lr = 2\n")


def edit_config_with_old_time(stage: Stage) -> None:
    path = stage.project / "run.toml"
    before = path.stat()
    path.write_text("lr = 3\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lose_config(stage: Stage) -> None:
    (stage.project / "run.toml").unlink()


def grow_data(stage: Stage) -> None:
    with (stage.project / "data" / "train.jsonl").open("a") as stream:
        stream.write("{}\n")


def swap_data_with_old_time(stage: Stage) -> None:
    path = stage.project / "data" / "train.jsonl"
    before = path.stat()
    path.write_text("[]\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lose_data(stage: Stage) -> None:
    shutil.rmtree(stage.project / "data")


def remove_cache(stage: Stage) -> None:
    shutil.rmtree(stage.project / ".cache" / "inductor")


def empty_cache(stage: Stage) -> None:
    for inner in (stage.project / ".cache" / "inductor").iterdir():
        shutil.rmtree(inner)


def make_cache_anew(stage: Stage) -> None:
    remove_cache(stage)
    (stage.project / ".cache" / "inductor").mkdir(mode=0o700)


def move_cache(stage: Stage) -> None:
    (stage.project / ".cache" / "inductor").rename(stage.project / ".cache" / "elsewhere")


def fill_cache_by_another(stage: Stage) -> None:
    remove_cache(stage)
    write_cache(stage.project / ".cache" / "inductor", "zz9other")


def open_cache_to_all(stage: Stage) -> None:
    (stage.project / ".cache" / "inductor").chmod(0o777)


def shadow_a_package(stage: Stage) -> Extra:
    """Another copy of a package, first on the path."""
    target = stage.root / "over"
    stage.uv("pip", "install", "--offline", "--no-index", "--find-links", str(stage.wheels), "--target", str(target),
             "--python", str(stage.python), "plain==2.0")  # fmt: skip
    return {"PYTHONPATH": str(target)}


def another_python(stage: Stage) -> None:
    config = stage.venv / "pyvenv.cfg"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("version")]
    config.write_text("\n".join([*lines, "version_info = 3.11.0"]) + "\n")


def restore_a_backup(stage: Stage) -> None:
    """`cp -a` of the environment aside, an install, and the copy put back over it, edited."""
    backup = stage.root / "backup"
    subprocess.run(["cp", "-a", str(stage.venv), str(backup)], check=True)
    (backup / stage.site.relative_to(stage.venv) / "plain" / "more.py").write_bytes(b"y = 5  # other\n")
    shutil.rmtree(stage.venv)
    subprocess.run(["cp", "-a", str(backup), str(stage.venv)], check=True)


def swap_and_patch(stage: Stage) -> None:
    swap_torch(stage)
    lose_a_file(stage)
    edit_config_with_old_time(stage)


CHANGES: tuple[Change, ...] = (
    swap_torch, swap_plain, rebuild_plain, remove_plain, remove_torch, add_to_the_stack, patch_torch,
    patch_with_old_time, patch_many_with_old_times, patch_with_its_record, lose_a_file, empty_a_file,
    add_start_up_code, add_sitecustomize, set_a_variable, set_two_variables, edit_code, edit_code_with_old_time,
    commit_code, edit_config, edit_config_with_old_time, lose_config, grow_data, swap_data_with_old_time, lose_data,
    remove_cache, empty_cache, make_cache_anew, move_cache, fill_cache_by_another, open_cache_to_all,
    shadow_a_package, another_python, restore_a_backup, swap_and_patch,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_diff_objects_to_is_an_event_in_a_finding(project: Stage, change: Change) -> None:
    extra = change(project)
    code, diff = answer(project, "diff", CHECKPOINT, extra=extra)
    assert code == 1, diff
    timed, timeline = agree(project, extra)
    assert timed == 1
    # An event that the comparison alone knows of lies between the stamp and now.
    stamp = json.loads((project.checkpoints / CHECKPOINT / "envguard.json").read_text())
    for event in timeline["events"]:
        if event["drifts"]:
            assert event["end"] >= stamp["taken_at"], event


def test_nothing_changed(project: Stage) -> None:
    assert answer(project, "diff", CHECKPOINT)[0] == 0
    code, timeline = agree(project)
    assert (code, timeline["findings"]) == (0, [])


@pytest.mark.parametrize(
    "change",
    [swap_torch, patch_with_old_time, remove_cache, edit_config_with_old_time, edit_code],
    ids=lambda change: change.__name__,
)
def test_a_bundle_tells_the_same(project: Stage, change: Change) -> None:
    change(project)
    bundle = project.root / "evidence.tgz"
    assert project.envguard("collect", "-q", "-o", str(bundle)).returncode == 0
    code, live = answer(project, "timeline", "--since-checkpoint", CHECKPOINT)
    timed, told = answer(project, "timeline", "--since-checkpoint", CHECKPOINT, "--bundle", str(bundle))
    assert (timed, in_findings(told)) == (code, in_findings(live)) != (0, set())


def test_an_edit_that_was_undone_is_no_change(project: Stage) -> None:
    """Contents decide where the stamp has them: a time alone is no change."""
    for path in (project.project / "run.toml", project.project / "data" / "train.jsonl"):
        text = path.read_bytes()
        path.write_bytes(b"other")
        path.write_bytes(text)
    code, timeline = agree(project)
    assert (code, timeline["findings"]) == (0, [])
