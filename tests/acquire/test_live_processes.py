"""Processes of an environment, with the environment swapped underneath them by the real uv."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.processes.live_processes import EnvironmentProcess, read_processes
from envguard.acquire.seam.host import Host, LiveHost
from envguard.demo.elf import build_id
from envguard.demo.stage import Stage

HOST = LiveHost()
Start = Callable[..., "subprocess.Popen[str]"]
WAIT = "import sys; {}; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that says when it is ready and lives until the test ends."""
    living: list[subprocess.Popen[str]] = []

    def begin(argv: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        living.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield begin
    for child in living:
        child.communicate()


def environment(stage: Stage) -> Environment:
    return locate(HOST, str(stage.venv), str(stage.project))


def only(found: tuple[EnvironmentProcess, ...], pid: int) -> EnvironmentProcess:
    (process,) = (process for process in found if process.pid == pid)
    return process


def test_a_process_that_still_runs_the_old_torch_is_named_with_its_version(torch_stage: Stage, start: Start) -> None:
    child = start([str(torch_stage.python), "-c", WAIT.format("import torch")], torch_stage.environ())
    env = environment(torch_stage)
    before = only(read_processes(HOST, env).value, child.pid)
    assert (before.how, before.stale, before.torch) == ("maps", (), None)
    assert before.as_problem() is None
    torch_stage.install("torch==2.11.0+cu130")
    after = only(read_processes(HOST, env, uv_caches=(str(torch_stage.cache),)).value, child.pid)
    library = str(torch_stage.site / "torch" / "lib" / "libtorch_cuda.so")
    assert [file.path for file in after.stale] == [library]
    assert after.torch is not None
    assert after.torch.version == "2.11.0+cu128"
    assert after.as_model().torch == "2.11.0+cu128"
    problem = after.as_problem()
    assert problem is not None
    assert f"process {child.pid} still runs the old torch 2.11.0+cu128" in problem.says


def test_an_earlier_fingerprint_knows_a_build_that_the_cache_has_lost(torch_stage: Stage, start: Start) -> None:
    child = start([str(torch_stage.python), "-c", WAIT.format("import torch")], torch_stage.environ())
    torch_stage.install("torch==2.11.0+cu130")
    shutil.rmtree(torch_stage.cache)
    builds = {build_id("torch 2.11.0+cu128 cuda "): "2.11.0+cu128"}
    env = environment(torch_stage)
    found = only(read_processes(HOST, env, uv_caches=(str(torch_stage.cache),), builds=builds).value, child.pid)
    assert found.torch is not None
    if found.torch.build_id is None:  # the kernel shows map_files to the privileged alone
        assert found.torch.version is None
        assert "version not known" in str(found.as_problem())
    else:
        assert found.torch.version == "2.11.0+cu128"


def test_a_reinstall_of_the_same_build_changes_nothing_that_runs(torch_stage: Stage, start: Start) -> None:
    child = start([str(torch_stage.python), "-c", WAIT.format("import torch")], torch_stage.environ())
    library = torch_stage.site / "torch" / "lib" / "libtorch_cuda.so"
    before = library.stat().st_ino
    torch_stage.install("torch==2.11.0+cu128", arguments=["--reinstall", "--link-mode", "copy"])
    assert library.stat().st_ino != before
    caches = (str(torch_stage.cache),)
    found = only(read_processes(HOST, environment(torch_stage), uv_caches=caches).value, child.pid)
    assert (found.stale, found.torch) == ((), None)


def test_how_a_process_belongs(torch_stage: Stage, start: Start) -> None:
    environ = torch_stage.environ({"VIRTUAL_ENV": str(torch_stage.venv)})
    base = str(torch_stage.python.resolve())
    by_command = start([str(torch_stage.python), "-c", WAIT.format("pass")], torch_stage.environ())
    activated = start([base, "-c", WAIT.format("pass")], environ)
    foreign = start([base, "-c", WAIT.format("pass")], torch_stage.environ())
    shell = start(["/bin/sh", "-c", "echo ready; read x; :"], environ)
    found = {process.pid: process.how for process in read_processes(HOST, environment(torch_stage)).value}
    assert found[by_command.pid] == "command"
    assert found[activated.pid] == "VIRTUAL_ENV"
    assert foreign.pid not in found
    assert shell.pid not in found


def test_a_process_left_out_is_left_out(torch_stage: Stage, start: Start) -> None:
    child = start([str(torch_stage.python), "-c", WAIT.format("import torch")], torch_stage.environ())
    found = read_processes(HOST, environment(torch_stage), leave_out=frozenset({child.pid})).value
    assert child.pid not in {process.pid for process in found}


def test_a_secret_on_a_command_line_is_not_kept(torch_stage: Stage, start: Start) -> None:
    argv = [str(torch_stage.python), "-c", WAIT.format("import torch"), "--wandb-token", "hunter2hunter2"]
    child = start(argv, torch_stage.environ())
    found = only(read_processes(HOST, environment(torch_stage)).value, child.pid)
    assert "hunter2" not in repr(found)
    assert "[redacted]" in found.command


class Machine(Host):
    """One process of an environment, with the kernel's answers given by the test."""

    label = "made up"

    def __init__(self, maps: list[tuple[Any, ...]], inodes: dict[str, tuple[int, int]], **more: Any) -> None:
        self.maps, self.inodes, self.more = maps, inodes, more

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == "processes":
            process = {
                "pid": 7, "parent": 1, "state": "S", "started": 1000.0, "uid": 1, "argv": ["/venv/bin/python"],
                "exe": None, "cwd": "/", "environ": {}, "maps": self.maps, "refused": self.more.get("refused", []),
            }  # fmt: skip
            return [process]
        if operation == "readlink" and arguments[0] in self.more.get("links", {}):
            return self.more["links"][arguments[0]]
        if operation == "stat_target" and arguments[0] in self.inodes:
            inode, device = self.inodes[arguments[0]]
            return ("file", 0o644, 1, 1, 0, 0, inode, device, 0, 0, None)
        if operation == "stat_target" and "denied" in arguments[0]:
            raise PermissionError(13, "Permission denied", arguments[0])
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


ENV = Environment(
    "/venv", "/venv/bin/python", None, "venv", "CPython", "3.11", None, None, (), ("/venv/site",), "test"
)


@pytest.mark.parametrize(
    ("mapping", "now", "stale", "unknown"),
    [
        (("/venv/site/a.so", 5, False, 1), (5, 1), False, False),
        (("/venv/site/a.so", 5, False, 1), (6, 1), True, False),  # replaced, without "(deleted)"
        (("/venv/site/a.so", 5, True, 1), (6, 1), True, False),
        (("/venv/site/a.so", 5, False, 1), (6, 2), False, True),  # an overlay: the layer's inode, not the file's
        (("/venv/site/a.so", 5, False), (6, 2), True, False),
        (("/venv/site/a.so", 5, False, 1), None, True, False),
        (("/venv/site/denied.so", 5, False, 1), None, False, True),
        (("/dev/shm/torch_1", 5, True, 1), None, False, False),  # not a file of the environment
    ],
)
def test_what_counts_as_replaced(
    mapping: tuple[Any, ...], now: tuple[int, int] | None, stale: bool, unknown: bool
) -> None:
    section = read_processes(Machine([mapping], {mapping[0]: now} if now else {}), ENV)
    (process,) = section.value
    assert bool(process.stale) is stale
    assert bool(section.unknown) is unknown


def test_the_same_path_in_another_container_is_another_file() -> None:
    links = {"/proc/self/ns/mnt": "mnt:[1]", "/proc/7/ns/mnt": "mnt:[2]"}
    maps = [("/venv/site/a.so", 5, False, 1)]
    assert read_processes(Machine(maps, {"/venv/site/a.so": (9, 1)}, links=links), ENV).value == ()
    (process,) = read_processes(Machine(maps, {"/venv/site/a.so": (5, 1)}, links=links), ENV).value
    assert process.stale == ()


def test_maps_that_may_not_be_read_are_unknown_and_not_sound() -> None:
    section = read_processes(Machine([], {}, refused=["maps"]), ENV)
    assert [process.pid for process in section.value] == [7]
    assert section.unknown[0].what == "processes: libraries of 7"


def test_a_machine_without_proc_is_unknown() -> None:
    class Blind(Host):
        def call(self, operation: str, *arguments: Any) -> Any:
            raise PermissionError(13, "Permission denied")

    section = read_processes(Blind(), ENV)
    assert section.value == ()
    assert section.unknown[0].what == "processes"
