"""What a process was started with: real processes, that change their environment, their title, and have children."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.acquire.processes.start_environment import is_launcher, parse_start

START = {"PATH": "/bin:/usr/bin", "CUDA_HANDED": "1", "NCCL_HASH": "abc", "TORCH_GONE": "yes", "LC_ALL": "C.UTF-8"}
TELL = """
import json, os
from envguard.acquire.processes.start_environment import start_variables
def tell(): print(json.dumps(start_variables()), flush=True)
"""


def run(tmp_path: Path, text: str, start: dict[str, str]) -> list[dict[str, str] | None]:
    """What a program says, one JSON line each. It is executed with `start`, and finds this envguard on its path."""
    script = tmp_path / "program.py"
    root = Path(__file__).parents[2]
    script.write_text(f"import sys; sys.path[:0] = {[str(root), *sys.path[1:]]!r}\n{TELL}\n{text}")
    done = subprocess.run(
        [sys.executable, "-S", str(script)], env=start, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_a_process_does_to_its_environment_is_not_its_start(tmp_path: Path) -> None:
    text = 'os.environ.update(TORCH_NEW="1", CUDA_HANDED="2"); del os.environ["TORCH_GONE"]; tell()'
    assert run(tmp_path, text, START) == [START]


def test_a_start_with_nothing_is_known(tmp_path: Path) -> None:
    assert run(tmp_path, 'os.environ["TORCH_NEW"] = "1"; tell()', {}) == [{}]


def test_a_value_that_is_no_text_and_one_with_an_equals_sign(tmp_path: Path) -> None:
    start = {**START, "TORCH_HOME": "/caf\udce9", "CUDA_X": "a=b=", "CUDA_EMPTY": ""}
    assert run(tmp_path, "tell()", start) == [start]


# As setproctitle does it: over the arguments, on into the environment, and zeros after a shorter one.
TITLE = """
import ctypes
fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
arguments, past, start, end = (int(field) for field in fields[45:49])
def title(text, pad=0):
    ctypes.memmove(arguments, text + bytes(1 + pad), len(text) + 1 + pad)
length = past - arguments
"""


@pytest.mark.parametrize(
    "how",
    [
        'title(b"t" * length)',  # its end is the first byte of the environment
        'title(b"t" * (length + 3))',
        'title(b"x=" * (length // 2 + 9))',  # its rest looks like a variable
        'title(b"lr=1 " * (length // 5 + 2)); title(b"short", pad=length + 20)',
        'title(b"short", pad=end - arguments - 6)',  # all of it is zero
        'title(b"t" * (end - arguments - 1))',
        'ctypes.memmove(end - 4, b"xxxx", 4)',  # the last entry has no end
    ],
)
def test_a_title_over_the_environment_leaves_its_start_unknown(tmp_path: Path, how: str) -> None:
    assert run(tmp_path, f"{TITLE}\n{how}\ntell()", START) == [None]


def test_a_title_that_stays_within_the_arguments_takes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, f'{TITLE}\ntitle(b"trainer", pad=length - 8)\ntell()', START) == [START]


def test_memory_that_holds_other_variables_than_the_process_has(tmp_path: Path) -> None:
    other = 'ctypes.memmove(start, b"A=" + b"x" * (end - start - 3) + bytes(1), end - start)'
    assert run(tmp_path, f"{TITLE}\n{other}\ntell()", START) == [None]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_has_the_start_of_its_family(tmp_path: Path, method: str) -> None:
    """A spawned child is executed with what its parent had made of the environment by then."""
    text = f"""
import multiprocessing, multiprocessing.forkserver
AT_IMPORT = start_variables()
def both():
    tell()
    print(json.dumps(AT_IMPORT), flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    multiprocessing.forkserver.ensure_running()  # the server is executed once, with what is there then
    os.environ["TORCH_NEW"] = "1"
    child = context.Process(target=both)
    child.start()
    child.join()
"""
    assert run(tmp_path, text, START) == [START, START]


LAUNCHER = """
import os, subprocess, sys
made = {**os.environ, "ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1", "RANK": "0"}
made.pop("TORCH_GONE", None)
sys.exit(subprocess.call([sys.executable, "-S", *sys.argv[2:]], env=made))
"""


@pytest.mark.parametrize("launcher", ["accelerate", "script"])
def test_a_rank_has_the_start_of_its_launcher(tmp_path: Path, launcher: str) -> None:
    """accelerate hands over settings of its own; a script that does the same is a program of its own."""
    script = tmp_path / launcher
    script.write_text(LAUNCHER)
    rank = f"import sys; sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path[1:]]!r}\n{TELL}\ntell()"
    (tmp_path / "rank.py").write_text(rank)
    command = [sys.executable, "-S", str(script), "launch", str(tmp_path / "rank.py")]
    done = subprocess.run(command, env=START, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert (found == START) == (launcher == "accelerate"), done.stderr
    assert found["NCCL_HASH"] == "abc"


def test_which_command_lines_launch_ranks() -> None:
    for line in (
        "/v/bin/python /v/bin/accelerate launch --cpu train.py",
        "/v/bin/python -u /v/bin/torchrun --nproc-per-node 2 train.py",
        "python -m torch.distributed.run train.py",
        "python -X faulthandler /v/bin/deepspeed train.py",
        "python -u -m deepspeed.launcher.launch --node_rank=0 train.py",
        "python -m accelerate launch train.py",
        "python -m trainer.agent 2 train c.toml",
    ):
        assert is_launcher(line.split()), line
    for line in (
        "/v/bin/python train.py torchrun",
        "python /v/bin/accelerate test",
        "python -m trainer -m torch.distributed.run",
        "bash torchrun.sh",
        "python -c torchrun",
        "python",
        "",
    ):
        assert not is_launcher(line.split()), line


def stat_of(*extents: int) -> bytes:
    return b"7 (a) b) " + b" ".join([b"0"] * 45 + [str(number).encode() for number in extents] + [b"0"])


def test_extents_that_the_kernel_does_not_tell() -> None:
    environ, cmdline = b"PATH=/bin\0", b"python\0"
    assert parse_start(environ, cmdline, stat_of(100, 107, 107, 117)) == {"PATH": "/bin"}
    assert parse_start(environ, cmdline, stat_of(0, 0, 0, 0)) is None
    assert parse_start(environ, cmdline, b"7 (python) S 1 2") is None


def test_an_entry_that_is_no_variable_and_a_name_that_is_there_twice() -> None:
    for environ in (b"PATH=/bin\0loose\0", b"=x\0", b"A=1\0\0B=2\0"):
        assert parse_start(environ, b"a\0", stat_of(10, 12, 12, 12 + len(environ))) is None
    twice = b"A=1\0A=2\0"
    assert parse_start(twice, b"a\0", stat_of(10, 12, 12, 20)) == {"A": "1"}
