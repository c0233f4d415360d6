"""The command line's manners: help, errors, exit codes, one JSON object."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest

from envguard.cli.app import COMMANDS, whole_group
from envguard.demo.stage import Stage
from envguard.model.schema import KINDS, schema


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "envguard", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_is_there_and_explains_itself(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"envguard {name}" in done.stdout


def test_no_command_prints_help_and_is_a_usage_error() -> None:
    done = run()
    assert done.returncode == 2
    assert {"Look:", "Record:", "Act:", "Learn:"} <= set(done.stdout.split())


@pytest.mark.parametrize("words", [["snapshott"], ["schema", "nonsense"], ["schema", "--nope"]])
def test_a_mistake_is_error_hint_and_two(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")


def test_under_json_an_error_is_one_object_of_the_schema(tmp_path: Path) -> None:
    done = run("diff", "no-such-checkpoint", "--json", cwd=tmp_path)
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema("error"))
    assert answer["code"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_each_schema_is_a_valid_schema_that_requires_every_key(kind: str) -> None:
    printed = json.loads(run("schema", kind).stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    root = printed["$defs"][printed["$ref"].rpartition("/")[2]]
    assert root["required"] == list(root["properties"])


def test_a_closed_pipe_is_no_traceback() -> None:
    script = f"{shlex.quote(sys.executable)} -P -m envguard schema timeline | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("room") / "stage")
    stage.make_venv()
    (stage.checkpoints / "step_1").mkdir()
    (stage.checkpoints / "step_1" / "model.bin").write_bytes(b"x")
    assert stage.envguard("snapshot", "--into", "step_1").returncode == 0
    return stage


SPEAKING = (
    "log",
    "snapshot",
    "verify",
    "vault list",
    "timeline",
    "diff step_1",
    "restore step_1 --dry-run",
    "--help",
)


@pytest.mark.parametrize("json_", ["", "--json"])
@pytest.mark.parametrize("command", SPEAKING)
def test_a_reader_that_goes_away_is_141(stamped: Stage, command: str, json_: str) -> None:
    words = [sys.executable, "-P", "-m", "envguard", *command.split(), *json_.split()]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, cwd=stamped.project, env=stamped.environ())
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["schema timeline", "--version", "no-such-command", "no-such-command --json"])
def test_a_stream_that_is_closed_changes_no_code(command: str, closed: str) -> None:
    words = f"{shlex.quote(sys.executable)} -P -m envguard {command}"
    done = subprocess.run(["bash", "-c", f"{words} {closed}"], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "no-such" in command else 0)
    assert "Traceback" not in done.stderr


def test_a_mistyped_command_is_told_the_nearest() -> None:
    done = run("dif")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: No such command 'dif'. Did you mean 'diff'?")


def test_an_answer_that_finds_no_room_is_no_fault_of_the_program() -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-P", "-m", "envguard", "schema", "diff"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: the answer cannot be written: No space left on device"


@pytest.mark.parametrize("words", [["snapshot"], ["snapshot", "--json"], ["log"], ["diff", "no-such-one", "--json"]])
def test_a_full_device_is_two_in_every_mode(stamped: Stage, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            stamped.envguard_command(*words), stdout=full, stderr=subprocess.PIPE, text=True,
            cwd=stamped.project, env=stamped.environ(), check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2] == "error: the answer cannot be written: No space left on device"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_takes_parts_gets_all_of_the_answer(stamped: Stage, unbuffered: str) -> None:
    """A raw stream passes a text on in one write, of which a pipe may take a part."""
    reader, writer = os.pipe()
    done = subprocess.Popen(
        [sys.executable, "-P", "-c", PARTS], stdout=writer, env=stamped.environ({"PYTHONUNBUFFERED": unbuffered})
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        got = stream.read()
    assert (done.wait(), len(got)) == (0, 3 * 65536 + 1)


PARTS = """
import io, sys
class Pipe(io.RawIOBase):
    def writable(self): return True
    def fileno(self): return 1
    def write(self, data):
        import os
        return os.write(1, bytes(data[:65536]))
from envguard.cli.app import _take_every_character
import os
raw = Pipe()
if os.environ["PYTHONUNBUFFERED"]:
    sys.stdout = io.TextIOWrapper(raw, "utf-8", write_through=True)
else:
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8")
_take_every_character([])
sys.stdout.write("x" * 3 * 65536 + "\\n")
sys.stdout.flush()
"""


INTERRUPTED = """
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from envguard.cli.entry import main
main()
"""


@pytest.mark.parametrize(
    "module",
    ["envguard.cli.app", "click", "typer.main", "envguard.cli.timeline", "envguard.acquire.survey", "rich.text"],
)
def test_an_interrupt_while_modules_are_imported_is_130(stamped: Stage, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED.replace("MODULE", repr(module)), "timeline"],
        cwd=stamped.project, env=stamped.environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


def test_version() -> None:
    assert run("--version").stdout.startswith("envguard ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_says_what_it_is(name: str) -> None:
    command = whole_group().get_command(click.Context(whole_group()), name)
    assert command is not None
    silent = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert silent == []
    shown = run(name, "--help").stdout
    assert shown.count("rguments:") == (1 if any(isinstance(item, click.Argument) for item in command.params) else 0)
