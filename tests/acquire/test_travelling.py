"""The collector as it travels: what its modules say, under old and new Pythons, and it reads and never writes."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.seam import collector
from envguard.acquire.seam.collector import programs
from envguard.acquire.seam.collector.operations import OPERATIONS, answer
from envguard.acquire.seam.remote import COMMAND
from envguard.acquire.seam.travelling import program
from tests.interpreters import python

__all__ = ["python"]

FOLDER = Path(str(collector.__file__)).parent
MODULES = sorted(FOLDER.glob("*.py"))
VOLATILE = {"machine", "processes", "space", "nvml"}
"""What two askings need not agree in: the time, who lives, what is free, which binding of NVML is installed."""


@pytest.fixture
def questions(tmp_path: Path) -> dict[str, list[Any]]:
    """Operation → arguments, of every one there is."""
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "text").write_text("one\n\n  two hf_abcdef\n")
    (tree / "bytes").write_bytes(b"\x00\xff")
    (tree / "link").symlink_to("bytes")
    text, data, link = (str(tree / name) for name in ("inner/text", "bytes", "link"))
    return {
        "stat": [data], "stat_target": [link], "listing": [str(tree)], "walk": [str(tree), True, ["none"]],
        "stats": [str(tree), ["bytes", "link", "inner", "missing", "nul\0"]], "order": [str(tree)], "read": [data],
        "digest": [data], "hashed": [data, "md5"], "lines": [text], "chain": [[["text", "ä"], ["file", data]]],
        "scan": [text, ["hf_"], 4, 3, 1 << 20, 8], "readlink": [link], "realpath": [link], "environ": [],
        "withheld": [], "machine": [], "processes": [[str(tree)]], "query": [["uname", "-a"]],
        "probe": [sys.executable, "print(1)"], "nvml": [], "space": [str(tree)],
    }  # fmt: skip


def served(python: Path, text: str, requests: list[list[Any]]) -> subprocess.CompletedProcess[str]:
    """What the program prints when it is run, with the options of a far one."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [str(python), *(option for option in COMMAND[1:] if option != "-i"), "-c", text]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=False)


def test_every_operation_answers_over_there_as_it_does_here(python: Path, questions: dict[str, list[Any]]) -> None:
    assert questions.keys() == OPERATIONS.keys()
    done = served(python, program(), [[operation, arguments] for operation, arguments in questions.items()])
    assert done.stderr == ""
    there = dict(zip(questions, done.stdout.splitlines(), strict=True))
    for operation, arguments in questions.items():
        here = json.dumps(answer(operation, arguments))
        if operation not in VOLATILE:
            assert there[operation] == here
        else:
            assert "error" not in json.loads(there[operation]), there[operation]
    mine, theirs = answer("machine", [])["value"], json.loads(there["machine"])["value"]
    assert {**theirs, "now": 0} == {**mine, "now": 0}
    assert any(process["pid"] == os.getpid() for process in json.loads(there["processes"])["value"])


def test_what_cannot_be_seen_is_told_by_the_same_error(python: Path, tmp_path: Path) -> None:
    requests = [["stat", ["/no/such"]], ["read", [str(tmp_path)]], ["digest", ["/dev/null"]]]
    done = served(python, program(), requests)
    assert done.stdout.splitlines() == [json.dumps(answer(*request)) for request in requests]


def test_the_modules_travel_as_they_are(python: Path) -> None:
    """Each text, under its own name; a module that is added to the folder is no less a part of the program."""
    ask = "\nimport json\nprint(json.dumps(sys.meta_path[0].texts))\n"
    texts = json.loads(served(python, program() + ask, []).stdout)
    sent = {name.partition(".")[2] or "__init__": text for name, text in texts.items()}
    there = {path.stem: path.read_text(encoding="utf-8") for path in MODULES}
    assert program().startswith(there.pop("loader"))
    assert sent == there


def test_a_fault_over_there_names_its_module_and_line(python: Path) -> None:
    done = served(python, program(), [["query", [["rm", "-rf", "/no/such"]]]])
    lines, first = inspect.getsourcelines(programs.query)
    at = next(at for at, line in enumerate(lines, first) if "raise ValueError" in line)
    assert f'File "envguard_collector/programs.py", line {at}, in query\n' in done.stderr
    assert done.stderr.endswith("ValueError: not a query program: 'rm'\n")


WATCH = """
import os as _os, sys as _sys
_WRITING = _os.O_WRONLY | _os.O_RDWR | _os.O_CREAT | _os.O_TRUNC | _os.O_APPEND
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr")

def _watch(event, arguments):
    if event == "open" and arguments[2] & _WRITING and arguments[0] != "/dev/null":
        told = "writes %r" % (arguments[0],)
    elif event == "subprocess.Popen":
        told = "runs %s" % _os.path.basename(_os.fsdecode(arguments[1][0]))
    elif event.partition(".")[0] in ("os", "shutil", "tempfile", "socket", "signal") and event not in _HARMLESS:
        told = "does %s" % event
    else:
        return
    _sys.stderr.write(told + "\\n")

_sys.addaudithook(_watch)
"""


def test_nothing_is_written_and_only_query_programs_run(python: Path, questions: dict[str, list[Any]]) -> None:
    before = sorted((str(path), path.lstat().st_ctime_ns) for path in Path(questions["order"][0]).rglob("*"))
    requests = [[operation, arguments] for operation, arguments in questions.items()]
    told = served(python, WATCH + program(), requests).stderr.splitlines()
    assert {"runs uname", f"runs {Path(sys.executable).name}"} <= set(told)
    assert set(told) <= {"runs uname", f"runs {Path(sys.executable).name}", "runs nvidia-smi", "does os.posix_spawn"}
    assert sorted((str(path), path.lstat().st_ctime_ns) for path in Path(questions["order"][0]).rglob("*")) == before
    seen = served(python, f"{WATCH}\nopen('/dev/full', 'w')\n_os.remove('/no/such')\n", []).stderr.splitlines()
    assert seen[:2] == ["writes '/dev/full'", "does os.remove"]


# --- by their text: what a module may import, and what of it it may use --------------------------------------------

STANDARD = {
    "base64", "ctypes", "errno", "hashlib", "json", "os", "pwd", "re", "shutil", "signal",
    "stat", "subprocess", "sys", "threading", "time",
}  # fmt: skip
MAY_USE = {
    "os": {
        "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NONBLOCK", "O_PATH", "O_RDONLY", "SEEK_HOLE", "SEEK_SET",
        "close", "cpu_count", "environ", "fdopen",
        "fsdecode", "fsencode", "fstat", "getcwd", "getuid", "killpg", "listdir", "lseek", "lstat",
        "makedev", "open", "path",
        "readlink", "readv", "scandir", "stat", "statvfs", "strerror", "sysconf", "uname",
    },
    "shutil": {"which"},
    "signal": {"SIGKILL"},
    "subprocess": {"DEVNULL", "PIPE", "Popen", "TimeoutExpired", "run"},
    "_libc": {"statx"},
}  # fmt: skip
MAY_BE_NAMED = {"__future__", "collections.abc", "importlib.machinery"}
"""Where names may be taken from: there is none in them that does anything to a machine."""
ONLY_IN = {"subprocess": "programs", "signal": "programs", "exec": "loader", "compile": "loader"}
NEVER = {"eval", "__import__", "input", "breakpoint", "globals", "setattr", "delattr", "getattr", "vars"}
GETATTR = "nvml"
"""An error of pynvml's may have no number; its class is not known here."""


def breaches(module: str, text: str) -> list[str]:
    """What in a module's text might change a machine, or would not run on the oldest Python that it has to."""
    found = []
    for node in ast.walk(ast.parse(text, feature_version=(3, 8))):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if name.name not in STANDARD | {"pynvml"}]
                found += [name.name for name in names if module != ONLY_IN.get(name.name, module)]
                found += [f"{name.name} as" for name in names if name.asname and name.name in MAY_USE]
            case ast.ImportFrom(module=source, level=level):
                beside = level == 1 and source in {path.stem for path in MODULES} - {"loader"}
                found += [] if beside or source in MAY_BE_NAMED else [f"from {'.' * level}{source}"]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found += [f"{name}.{attribute}"] if attribute not in MAY_USE.get(name, {attribute}) else []
            case ast.Name(id=name):
                found += [name] if name in NEVER and (name, module) != ("getattr", GETATTR) else []
                found += [name] if ONLY_IN.get(name, module) != module else []
        match node:
            case ast.Call(func=ast.Name(id="open") | ast.Attribute(attr="fdopen"), args=[_, mode, *_]):
                found += [] if isinstance(mode, ast.Constant) and mode.value == "rb" else ["a mode of open"]
            case ast.keyword(arg="mode" | "shell" | "opener" as name):
                found.append(f"{name}=")
            case ast.Subscript(value=ast.Attribute(attr="environ"), ctx=ast.Store() | ast.Del()):
                found.append("os.environ[…] =")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_s_text_only_reads(path: Path) -> None:
    assert breaches(path.stem, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import tempfile", "tempfile"),
        ("import os as system", "os as"),
        ("from os import remove", "from os"),
        ("from envguard.state import files", "from envguard.state"),
        ("import os\nos.replace('a', 'b')", "os.replace"),
        ("import os\nos.open('a', os.O_RDONLY | os.O_CREAT)", "os.O_CREAT"),
        ("import os\nos.environ['A'] = ''", "os.environ[…] ="),
        ("open('a', 'w')", "a mode of open"),
        ("open('a', mode='w')", "mode="),
        ("import shutil\nshutil.rmtree('a')", "shutil.rmtree"),
        ("import subprocess", "subprocess"),
        ("_libc.unlink(b'a')", "_libc.unlink"),
        ("exec('1')", "exec"),
        ("getattr(1, 'real')", "getattr"),
    ],
)
def test_a_text_that_could_write_is_found(text: str, says: str) -> None:
    assert says in breaches("files", text)


def test_a_text_that_an_old_python_cannot_read_is_found() -> None:
    with pytest.raises(SyntaxError):
        breaches("files", "match 1:\n    case _:\n        pass\n")
