"""The watch beside a run: a real uv under a real process, real edits, and who the kernel says it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import Host, LiveHost
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
from envguard.launch import installs, sources
from envguard.launch.installs import Installed, Swap
from envguard.launch.sources import Sources, fs_type, read_mounts
from envguard.launch.watch import Watch, Watched, count_entries, folders_below
from envguard.launch.who import KernelWitness, candidates, is_noise, program_of
from envguard.model.action import ChangeSeen

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="fanotify tells who only to root")


# A shell that goes by the name of git, as a checkout under a run would.
AS_GIT = "import os, sys; os.execv('/bin/sh', ['git', '-c', sys.argv[1]])"


class Watching:
    """A watch on a stage, with a process that holds torch's library; `said` are its sentences."""

    def __init__(self, stage: Stage, **fields: tuple[str, ...]) -> None:
        env = locate(LiveHost(), str(stage.venv), str(stage.project))
        code = fields.get("code", ())
        tracked = frozenset(str(path) for folder in code for path in Path(folder).glob("*.py"))
        files = tuple(("config", path) for path in fields.get("files", ()))
        self.changes: list[ChangeSeen] = []
        self.heard = threading.Event()
        program = "import torch, time; print('ready', flush=True); time.sleep(600)"
        self.process = subprocess.Popen([stage.python, "-c", program], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        watched = Watched(env, code, tracked, files, fields.get("caches", ()))
        self.watch = Watch(LiveHost(), watched, self.process.pid, self._tell, lambda now: None)
        self.watch.start()
        assert self.watch.ready.wait(20)

    def _tell(self, change: ChangeSeen) -> None:
        self.changes.append(change)
        self.heard.set()

    def next(self, seconds: float = 15) -> ChangeSeen:
        assert self.heard.wait(seconds), "nothing was said"
        self.heard.clear()
        return self.changes[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.watch.close()


@pytest.fixture
def watching(torch_stage: Stage) -> Iterator[Callable[..., Watching]]:
    made: list[Watching] = []

    def begin(**fields: tuple[str, ...]) -> Watching:
        made.append(Watching(torch_stage, **fields))
        return made[-1]

    yield begin
    for item in made:
        item.close()


@as_root
def test_an_install_under_a_run_is_one_sentence_with_who_and_what(
    torch_stage: Stage, watching: Callable[..., Watching]
) -> None:
    seen = watching()
    with serve_index(torch_stage.wheels) as index:
        torch_stage.install("sglang", index=index)
    change = seen.next()
    assert change.facet == "torch"
    assert change.subject == "sglang"
    assert change.says.startswith("sglang installed into this environment at ")
    assert " by uv (PID " in change.says
    assert "torch 2.11.0+cu128 → 2.11.0+cu130" in change.says
    assert change.says.endswith("the running process still has the old torch")
    assert change.by is not None
    assert "pip install" in change.by
    time.sleep(3)
    assert len(seen.changes) == 1


def test_without_the_kernels_word_who_could_have_is_said_as_such(
    torch_stage: Stage, watching: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelWitness, "open", classmethod(lambda cls: None))
    # A copy that takes its time, so that it is still there when the first change is heard.
    slow = f"f={torch_stage.site}/transformers/__init__.py; for i in 1 2 3 4 5 6; do cp /dev/null $f; sleep 0.5; done"
    seen = watching()
    subprocess.run([sys.executable, "-c", AS_GIT, slow], check=True)
    change = seen.next()
    assert "transformers/__init__.py" in change.says
    assert "perhaps git (PID " in change.says
    assert "was not seen writing" in change.says


@as_root
def test_an_edit_of_an_installed_file_names_it_and_its_author_and_no_other(
    torch_stage: Stage, watching: Callable[..., Watching]
) -> None:
    seen = watching()
    torch_stage.install("torch==2.11.0+cu130")  # uv has just written another __init__.py
    seen.next()
    target = torch_stage.site / "transformers" / "__init__.py"
    subprocess.run([sys.executable, "-c", f"open({str(target)!r}, 'a').write('# patched')"], check=True)
    change = seen.next()
    assert "transformers/__init__.py" in change.says
    assert "uv" not in change.says
    assert change.subject == "transformers"


def test_a_removal_is_said(torch_stage: Stage, watching: Callable[..., Watching]) -> None:
    seen = watching()
    torch_stage.uv("pip", "uninstall", "--python", str(torch_stage.python), "transformers")
    assert seen.next().says.startswith("transformers removed from this environment at ")


def test_an_environment_that_is_made_anew_is_seen(torch_stage: Stage, watching: Callable[..., Watching]) -> None:
    seen = watching()
    torch_stage.uv("venv", "--clear", "--quiet", "--python", sys.executable, str(torch_stage.venv))
    change = seen.next()
    assert "torch" in change.says
    assert "removed from" in change.says
    time.sleep(2)  # the new one is listened to
    torch_stage.install("transformers==5.6.0")
    assert seen.next().says.startswith("transformers installed into this environment at ")


def test_bytecode_and_reading_say_nothing(torch_stage: Stage, watching: Callable[..., Watching]) -> None:
    seen = watching()
    subprocess.run([torch_stage.python, "-c", "import transformers, torch"], env=torch_stage.environ(), check=True)
    assert list(torch_stage.site.rglob("*.pyc"))
    assert not seen.heard.wait(4)


def test_code_configuration_and_a_cleared_cache_are_seen(
    torch_stage: Stage, watching: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envguard.launch.watch.TICK_S", 0.5)
    code, config = torch_stage.project / "code", torch_stage.project / "run.toml"
    cache = torch_stage.root / "cache"
    code.mkdir()
    (code / "model.py").write_text("x = 1\n")
    config.write_text("lr = 1\n")
    for name in ("aa", "bb", "cc"):
        (cache / "fxgraph" / name).mkdir(parents=True)
    seen = watching(code=(str(code),), files=(str(config),), caches=(str(cache),))
    (code / "model.py").write_text("x = 2\n")
    (code / "notes.txt").write_text("no code\n")
    change = seen.next()
    assert (change.facet, change.subject) == ("code", str(code / "model.py"))
    assert "1 file of the code changed at " in change.says
    config.write_text("lr = 2\n")
    assert seen.next().facet == "config"
    shutil.rmtree(cache / "fxgraph")
    change = seen.next()
    assert change.facet == "compile_cache"
    assert "(4 entries, now " in change.says
    assert "compiles cold" in change.says


def test_a_fault_of_the_watch_is_said_and_never_passes_for_silence(
    torch_stage: Stage, watching: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken on purpose")

    seen = watching()
    monkeypatch.setattr(installs, "swaps", broken)
    torch_stage.install("torch==2.11.0+cu130")
    change = seen.next()
    assert change.facet == "unknown"
    assert "sees nothing any more" in change.says


# --- sources ---


def batch_of(feed: Sources, seconds: float = 10) -> frozenset[str]:
    return feed.queue.get(timeout=seconds).paths


def test_where_inotify_refuses_polling_sees_installs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "Inotify", refuse)
    monkeypatch.setattr(sources, "POLL_S", 0.2)
    feed = Sources()
    feed.listen(LiveHost(), [str(tmp_path)], [])
    time.sleep(0.5)
    (tmp_path / "torch-2.dist-info").mkdir()
    assert str(tmp_path / "torch-2.dist-info") in batch_of(feed)
    (tmp_path / "torch-2.dist-info" / "RECORD").write_text("x")
    assert str(tmp_path / "torch-2.dist-info" / "RECORD") in batch_of(feed)
    assert "looked at every" in feed.notes[0]
    feed.close()


class OnNfs(LiveHost):
    def call(self, operation: str, *arguments: object) -> object:
        if operation == "read" and arguments[0] == "/proc/self/mountinfo":
            return (
                b"22 1 8:1 / / rw - ext4 /dev/root rw\n23 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/ rw\n"
            )
        return super().call(operation, *arguments)


def test_a_remote_file_system_is_polled(tmp_path: Path) -> None:
    mounts = read_mounts(OnNfs())
    assert [fs_type(mounts, path) for path in ("/home/ada/.venv", "/homes", "/")] == ["nfs4", "ext4", "ext4"]
    feed = Sources()
    feed.listen(OnNfs(), ["/home/ada/.venv"], [])
    assert feed.notes == ["/home/ada/.venv lies on nfs4: looked at every 10 s"]
    feed.close()


@pytest.mark.parametrize(
    ("name", "noise"),
    [("__pycache__", True), ("a.cpython-311.pyc", True), ("a.cpython-311.pyc.139", True), (".model.py.swp", True),
     ("4913", True), ("~orch", True), ("model.py", False), ("torch-2.dist-info", False), ("RECORD", False)],
)  # fmt: skip
def test_what_is_noise(name: str, noise: bool) -> None:
    assert is_noise(name) is noise


# --- who ---


@as_root
def test_the_kernel_names_who_touched_which_path(tmp_path: Path) -> None:
    witness = KernelWitness.open()
    assert witness is not None
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "__pycache__").mkdir()
    began = time.time()
    assert witness.watch(folders_below(LiveHost(), str(tmp_path))) == 3
    witness.start()
    for number, path in enumerate((inner / "x.py", tmp_path / "x.py")):
        # lives on for a moment, so that /proc can be asked what it is
        program = f"import time; open({str(path)!r}, 'w').write('x'); time.sleep(0.5)"
        subprocess.run([sys.executable, "-c", program, f"writer{number}"], check=True)
    (first,) = witness.who([str(inner / "x.py")], began)
    (second,) = witness.who([str(tmp_path / "x.py")], began)
    assert "writer0" in first.command
    assert "writer1" in second.command
    assert first.certain
    assert witness.who([str(inner / "x.py")], time.time() + 1) == ()
    assert witness.who([str(inner / "never.py")], began) == ()
    witness.close()


@as_root
def test_a_process_that_has_ended_is_a_number_and_never_somebody_else(tmp_path: Path) -> None:
    witness = KernelWitness.open()
    assert witness is not None
    witness.watch([str(tmp_path)])
    began = time.time()
    done = subprocess.Popen(["sh", "-c", f"echo x > {tmp_path}/file"])
    done.wait()
    witness.start()  # reads the event when its author is long gone
    time.sleep(0.3)
    (actor,) = witness.who([str(tmp_path / "file")], began - 1)
    assert actor.pid == done.pid
    assert str(actor) == f"a process that has ended (PID {done.pid})"
    witness.close()


def test_candidates_are_living_installers_that_have_to_do_with_it(tmp_path: Path) -> None:
    prefix = tmp_path / "project" / ".venv"
    prefix.mkdir(parents=True)
    as_uv = [sys.executable, "-c", "import os, sys; os.execv('/bin/sleep', ['/usr/bin/uv', '30'])"]
    begin = subprocess.Popen
    bystander = begin(["sleep", "30"], cwd=prefix.parent)
    elsewhere = begin(as_uv, cwd="/")
    in_project = begin(as_uv, cwd=prefix.parent)
    by_variable = begin(as_uv, cwd="/", env={**os.environ, "VIRTUAL_ENV": str(prefix)})
    every = (bystander, elsewhere, in_project, by_variable)

    def found(leave_out: frozenset[int] = frozenset()) -> set[int]:
        return {actor.pid for actor in candidates(LiveHost(), [str(prefix)], leave_out, most=50)}

    try:
        deadline = time.monotonic() + 10
        while found() != {in_project.pid, by_variable.pid} and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found() == {in_project.pid, by_variable.pid}
        assert found(frozenset({in_project.pid})) == {by_variable.pid}
    finally:
        for each in every:
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("argv", "name"),
    [(["/usr/bin/uv", "pip"], "uv"), (["python3", "-m", "pip", "install"], "pip"),
     (["/venv/bin/python", "/venv/bin/pip", "install"], "pip"), (["python", "-u", "train.py"], "train.py"),
     (["python", "-c", "x"], "python"), ([], "a kernel thread")],
)  # fmt: skip
def test_how_a_program_is_named(argv: list[str], name: str) -> None:
    assert program_of(argv) == name


# --- installs ---


def installed(name: str, version: str, mark: int = 0, requires: tuple[str, ...] = ()) -> Installed:
    return Installed(name, version, f"/s/{name}-{version}.dist-info", (mark, 0, 0), "uv", frozenset(requires))


def test_sentences() -> None:
    old, new = installed("torch", "2.11.0+cu128"), installed("torch", "2.11.0+cu130")
    root = Swap("sglang", None, installed("sglang", "0.5.6", requires=("torch",)))
    swap = Swap("torch", old, new)
    assert installs.sentence((root, swap), "20:52:11", "uv (PID 7)", ("torch",)) == (
        "sglang installed into this environment at 20:52:11 by uv (PID 7): torch 2.11.0+cu128 → 2.11.0+cu130; "
        "the running process still has the old one"
    )
    assert installs.sentence((swap,), "20:52:11", None, ()) == (
        "torch installed into this environment at 20:52:11: torch 2.11.0+cu128 → 2.11.0+cu130"
    )
    assert installs.sentence((Swap("torch", old, None),), "20:52:11", "pip (PID 8)", ("torch",)) == (
        "torch removed from this environment at 20:52:11 by pip (PID 8); the running process still has the old one"
    )
    again = Swap("torch", old, installed("torch", "2.11.0+cu128", mark=1))
    assert installs.sentence((again,), "20:52:11", None, ()).endswith("torch 2.11.0+cu128 installed anew")
    many = tuple(Swap(f"p{n}", installed(f"p{n}", "1"), installed(f"p{n}", "2")) for n in range(9))
    assert installs.sentence(many, "20:52:11", None, ()).endswith("p3 1 → 2 and 5 more")


def test_a_scan_reads_torchs_own_word_for_its_version(torch_stage: Stage) -> None:
    found = installs.scan(LiveHost(), [str(torch_stage.site)])
    assert found["torch"].version == "2.11.0+cu128"
    assert found["transformers"].version == "5.6.0"
    again = installs.scan(LiveHost(), [str(torch_stage.site)], found)
    assert installs.swaps(found, again) == ()
    assert again["torch"] is found["torch"]


class Unreadable(LiveHost):
    def call(self, operation: str, *arguments: object) -> object:
        raise PermissionError(13, "Permission denied")


def test_what_cannot_be_listed_counts_as_nothing_there() -> None:
    host: Host = Unreadable()
    assert installs.scan(host, ["/s"]) == {}
    assert count_entries(host, "/c") == 0
    assert list(folders_below(host, "/s")) == ["/s"]
