"""git, pip logs, shell histories, checkpoint metadata, compile caches, envguard's own records, watched files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import zipfile
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.machine.zone import Zone
from envguard.acquire.packages.pip_logs import parse_pip_log, read_pip_logs
from envguard.acquire.project.git_history import read_git_history
from envguard.acquire.project.shell_history import parse_history, read_shell_history
from envguard.acquire.project.watched_files import read_trees
from envguard.acquire.runs.checkpoint_metadata import read_checkpoint_metadata
from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.own_records import read_journal, read_run_records
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.compile_times import read_cache_times
from envguard.clock import NS
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Driver
from envguard.model.identity import sealed
from envguard.state import journal
from envguard.timeline.events.code import git_events
from envguard.timeline.events.system import cache_events, driver_mismatch, own_events
from envguard.timeline.findings.others import driver_findings
from tests.fingerprint.made import fingerprint, package

ZONE = Zone(UTC, "test")
HOST = LiveHost()


def git(folder: Path, *words: str, at: int = 1_779_000_000) -> None:
    dates = {"GIT_AUTHOR_DATE": f"{at} +0200", "GIT_COMMITTER_DATE": f"{at} +0200"}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(
        ["git", *who, "-C", str(folder), *words], check=True, env={**os.environ, **dates}, capture_output=True
    )


def test_commits_moves_and_dirty_files_with_the_line_that_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init")
    model = tmp_path / "dflash_model.py"
    model.write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "commit", "--allow-empty", "-m", "second", at=1_779_000_900)
    git(tmp_path, "reset", "--hard", "HEAD~1")
    model.write_text("a = 1\nis_fx_symbolic_tracing = lambda: False\n")
    os.utime(model, (1_779_100_000, 1_779_100_000))
    (tmp_path / "new.py").write_text("")
    index = (tmp_path / ".git" / "index").stat().st_mtime_ns
    history, unknown = read_git_history(HOST, str(tmp_path))
    assert unknown == []
    assert history is not None
    assert [commit.subject for commit in history.commits] == ["first"]
    assert {file.path: file.status for file in history.dirty} == {"dflash_model.py": "M", "new.py": "??"}
    events = {(event.kind, event.subject): event for event in git_events(history)}
    changed = events["code.changed", "dflash_model.py"]
    assert changed.time == "2026-05-18T10:26:40.000000+00:00"
    assert "is_fx_symbolic_tracing = lambda: False" in changed.summary
    assert changed.confidence == "strong"  # git knows that it differs; when, the mtime alone
    assert any(event.summary == "HEAD moved: reset: moving to HEAD~1" for event in events.values())
    assert (tmp_path / ".git" / "index").stat().st_mtime_ns == index


def test_a_touched_file_is_not_dirty(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    os.utime(tmp_path / "a.py")
    history, _ = read_git_history(HOST, str(tmp_path))
    assert history is not None
    assert history.dirty == ()


def test_no_work_tree_and_a_tree_without_a_commit(tmp_path: Path) -> None:
    assert read_git_history(HOST, str(tmp_path)) == (None, [])
    git(tmp_path, "init")
    history, unknown = read_git_history(HOST, str(tmp_path))
    assert history is not None
    assert (history.commits, unknown) == ((), [])


def test_pip_log_lines_with_and_without_stamps() -> None:
    text = (
        "2026-05-18T20:52:11,123   Found existing installation: torch 2.11.0+cu128\n"
        "2026-05-18T20:52:12,001     Successfully uninstalled torch-2.11.0+cu128\n"
        "2026-05-18T20:52:40,500 Successfully installed flashinfer-python-0.6.1 torch-2.11.0+cu130 my-pkg-1.0.post1\n"
        "  Found existing installation: numpy 2.0.0\n"
    )
    steps = parse_pip_log("pip.log", enumerate(text.splitlines(), 1), ZONE)
    assert [(step.what, step.name, step.version, step.line) for step in steps] == [
        ("found", "torch", "2.11.0+cu128", 1), ("removed", "torch", "2.11.0+cu128", 2),
        ("installed", "flashinfer-python", "0.6.1", 3), ("installed", "torch", "2.11.0+cu130", 3),
        ("installed", "my-pkg", "1.0.post1", 3), ("found", "numpy", "2.0.0", 4),
    ]  # fmt: skip
    assert steps[-1].time is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".bash_history", "ls\n#1779100000\nrm -rf /tmp/torchinductor_root\n"),
        (".zsh_history", "ls\n: 1779100000:0;rm -rf /tmp/torchinductor_root\n"),
        ("fish_history", "- cmd: ls\n- cmd: rm -rf /tmp/torchinductor_root\n  when: 1779100000\n"),
    ],
)
def test_three_shells_keep_times_in_three_ways(name: str, text: str) -> None:
    (command,) = parse_history(name, enumerate(text.splitlines(), 1))
    assert (command.text, command.time_ns) == ("rm -rf /tmp/torchinductor_root", 1_779_100_000 * NS)


def test_the_newest_lines_of_long_files_are_read(tmp_path: Path) -> None:
    """Of a long shell history and pip log the first megabytes were read: what was typed last was not known, and
    nothing said so."""
    history = b"#1779000000\nls -l some/folder/with/a/long/name/of/no/interest\n" * 150_000
    (tmp_path / ".bash_history").write_bytes(
        history + b"#1779100000\nuv cache prune --token hf_0123456789abcdefXYZ\n"
    )
    (command,) = read_shell_history(HOST, msgspec.structs.replace(HOST.machine(), home=str(tmp_path)), [])
    assert command.text.startswith("uv cache prune --token ")
    assert "hf_" not in command.text
    assert (command.line, command.time_ns) == (300_002, 1_779_100_000 * NS)
    with (tmp_path / "pip.log").open("wb") as stream:
        stream.truncate(66 << 20)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\n2026-05-18T20:52:12,001 Successfully uninstalled torch-2.11.0+cu128\n")
    (step,) = read_pip_logs(HOST, (str(tmp_path),), None, ZONE, [])
    assert (step.what, step.name, step.line) == ("removed", "torch", 2)


class Forbidden:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch /tmp/envguard-was-unpickled",)


def test_checkpoints_say_which_libraries_wrote_them_and_nothing_is_unpickled(tmp_path: Path) -> None:
    first = tmp_path / "checkpoint-690"
    first.mkdir()
    (first / "config.json").write_text('{"transformers_version": "5.6.0", "torch_dtype": "bfloat16"}')
    header = json.dumps({"__metadata__": {"format": "pt", "torch_version": "2.11.0+cu128"}}).encode()
    (first / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with zipfile.ZipFile(tmp_path / "epoch=1-step=700.ckpt", "w") as archive:
        archive.writestr(
            "archive/data.pkl", pickle.dumps({"pytorch-lightning_version": "2.6.1", "x": Forbidden()}, 2)
        )
    (tmp_path / "step_710.safetensors").write_bytes(b"\xff" * 40)
    unknown: list[Unknown] = []
    found = read_checkpoint_metadata(HOST, find_checkpoints(HOST, [str(tmp_path)]).found, unknown)
    assert {(item.package, item.version) for item in found} == {
        ("transformers", "5.6.0"), ("torch", "2.11.0+cu128"), ("lightning", "2.6.1")
    }  # fmt: skip
    assert not Path("/tmp/envguard-was-unpickled").exists()


def test_a_compile_cache_is_as_old_as_its_directory(tmp_path: Path) -> None:
    cache = tmp_path / "torchinductor_me"
    (cache / "ab").mkdir(parents=True)
    (cache / "ab" / "x.py").write_bytes(b"x" * 1000)
    os.utime(cache / "ab" / "x.py", (1_779_000_000, 1_779_000_000))
    places = [Place("inductor", str(cache), "test"), Place("triton", str(tmp_path / "gone"), "test")]
    there, gone = read_cache_times(HOST, places, [])
    assert (there.exists, there.bytes, there.newest_ns) == (True, 1000, 1_779_000_000 * NS)
    assert (gone.exists, gone.files) == (False, 0)
    kinds = [event.kind for event in cache_events([there, gone])]
    assert kinds == ["compile_cache.created", "compile_cache.written"]


def test_own_journal_with_a_torn_line(tmp_path: Path) -> None:
    state = tmp_path / ".envguard"
    journal.append(state, "snapshot", {"id": "eg1-aa"}, "2026-05-18T18:00:00.000+00:00")
    journal.append(state, "restore", {"reference": "step_690"}, "2026-05-18T19:00:00.000+00:00")
    with journal.journal_file(state).open("ab") as stream:
        stream.write(b'{"time": "2026')
    unknown: list[Unknown] = []
    found = read_journal(HOST, str(state), unknown) or ()
    assert [entry.kind for entry in found] == ["snapshot", "restore"]
    assert [item.why for item in unknown] == ["1 lines are torn or no entries"]
    assert [event.kind for event in own_events(found, ())] == ["snapshot.taken"]
    assert read_journal(HOST, str(tmp_path / "none"), []) is None
    (state / "runs").mkdir()
    (state / "runs" / "x.json").write_text("{}")
    assert read_run_records(HOST, str(state), unknown) == ()
    assert unknown[-1].what.endswith("x.json")


def test_a_journal_of_any_length_is_read_to_its_end_and_held_once(tmp_path: Path) -> None:
    """It was read up to 256 MB: of a longer one the newest entries were missing, and nobody was told."""
    taken = sealed(fingerprint(*(package(f"p{number}") for number in range(20))))
    for _ in range(3):
        journal.append_snapshot(tmp_path, taken, None)
    with journal.journal_file(tmp_path).open("ab") as stream:
        stream.truncate(300 << 20)
    journal.append_snapshot(tmp_path, taken, None)
    unknown: list[Unknown] = []
    found = read_journal(HOST, str(tmp_path), unknown) or ()
    assert [entry.fingerprint == taken for entry in found] == [True] * 4
    assert [item.why for item in unknown] == ["1 lines are torn or no entries"]
    lists = {id(entry.fingerprint.packages) for entry in found if entry.fingerprint is not None}
    assert len(lists) == 1, "equal packages are held as often as they were recorded"


def test_configured_data_that_is_missing_or_empty_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(b"x" * 10)
    unknown: list[Unknown] = []
    found = read_trees(HOST, [str(tmp_path / name) for name in ("data", "empty", "missing")], unknown)
    assert [(tree.files, tree.size) for tree in found] == [(1, 10), (0, 0), (0, 0)]
    assert [item.why for item in unknown] == ["it holds no file", "No such file or directory"]


def test_a_driver_under_a_running_kernel_is_the_first_finding() -> None:
    driver = Driver(version="595.84", kernel_module="595.71.05", cuda=None, agrees=False)
    (draft,) = driver_findings(driver_mismatch(driver), ())
    assert draft.weight < (0, 0.0)
    assert "module 595.71.05" in draft.says
    assert "reboot needed" in draft.says
    assert driver_mismatch(Driver(version="1", kernel_module="1", cuda=None, agrees=True)) is None
