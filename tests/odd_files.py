"""Every place that a command reads, tried as every oddity: the room, the list of places, and the program that tries.

The list is derived and not kept: an audit hook of the interpreter names each file below the room that a command
opens. So a new reader is tried from the day on which the room holds something for it to read.

Run as a program it reads one JSON object on stdin (`room`, `commands`, `deadline_s`, and `cells` to try or null to
list the places) and prints one JSON line a result. It imports envguard once and forks for each command.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envguard.demo.stage import Stage

DIGITS = 5000
DEPTH = 100_000
_NUMBER = re.compile(rb"(?<![\w.\"'-])\d+(?![\w.\"'-])")


def _holding(content: Callable[[bytes], bytes]) -> Callable[[Path, bytes], None]:
    def put(place: Path, was: bytes) -> None:
        place.write_bytes(content(was))

    return put


def _nested(place: Path, was: bytes) -> None:
    """Alone in formats without a key, else as a value that nobody asks for."""
    deep = b"[" * DEPTH + b"]" * DEPTH
    if was.lstrip().startswith(b"{"):
        at = was.index(b"{") + 1
        place.write_bytes(was[:at] + b'"zz": ' + deep + b", " + was[at:])
    else:
        place.write_bytes(b"zz = " + deep + b"\n" if place.suffix in (".toml", ".lock", ".cfg") else deep)


def _digits(place: Path, was: bytes) -> None:
    """In place of its first number, in place of all, or alone."""
    many = b"9" * DIGITS
    found = _NUMBER.sub(many, was)
    place.write_bytes(found if found != was else b"a = " + many + b"\n" if place.suffix == ".toml" else many)


def _hole(place: Path, was: bytes) -> None:
    place.write_bytes(was)
    os.truncate(place, 1 << 40)


def _unreadable(place: Path, was: bytes) -> None:
    place.write_bytes(was)
    place.chmod(0)


def _socket(place: Path, _: bytes) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name[:100])
        if place.name != place.name[:100]:
            os.rename(place.name[:100], place.name)
    finally:
        os.chdir(here)


ODDITIES: dict[str, Callable[[Path, bytes], None]] = {
    "pipe": lambda place, _: os.mkfifo(place),
    "socket": _socket,
    "device": lambda place, _: place.symlink_to("/dev/zero"),
    "terminal": lambda place, _: place.symlink_to("/dev/ptmx"),
    "loop": lambda place, _: place.symlink_to(place.name),
    "hole": _hole,
    "folder": lambda place, _: place.mkdir(),
    "unreadable": _unreadable,
    "nested": _nested,
    "digits": _digits,
    "garbage": _holding(lambda was: random.Random(24).randbytes(5000)),
    "empty": _holding(lambda was: b""),
    "newlines": _holding(lambda was: b"\n" * (1 << 20)),
    "long line": _holding(lambda was: b"a-" * (1 << 19)),
    "halved": _holding(lambda was: was[: len(was) // 2]),
    "flipped": _holding(lambda was: bytes(b ^ 0x15 if n % 37 == 5 else b for n, b in enumerate(was))),
}
"""Name → what makes it at a place that is free, from what was there."""


def furnish(stage: Stage) -> None:
    """Something of everything that envguard reads, on a stage with torch in its venv and cache."""
    project, home = stage.project, stage.home

    def put(path: Path, content: str | bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    put(project / "envguard.toml", 'data = ["data"]\nconfig = ["conf"]\ncode = ["src"]\nlogs = ["named.log"]\n'
        f'shell_history = true\nfind_links = ["{stage.wheels}"]\ncompile_caches = ["inductor"]\n')  # fmt: skip
    put(project / "pyproject.toml", '[project]\nname = "p"\nversion = "1"\n[tool.uv]\ncache-dir = "../uv-cache"\n')
    put(project / "uv.toml", 'cache-dir = "../uv-cache"\n')
    put(project / "uv.lock", 'version = 1\n[[package]]\nname = "torch"\nversion = "2.11.0+cu128"\n')
    put(project / "requirements.txt", "torch==2.11.0+cu128\n")
    put(project / "pylock.toml", 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.11.0+cu128"\n')
    put(project / "src" / "train.py", "print(1)\n")
    put(project / "conf" / "a.yaml", "lr: 1\n")
    put(project / "data" / "a.jsonl", '{"x": 1}\n')
    put(project / "data" / "b.parquet", _parquet())
    put(home / ".bash_history", "#1700000000\nuv pip install torch\n")
    put(home / ".zsh_history", ": 1700000000:0;uv pip install torch\n")
    put(home / ".local/share/fish/fish_history", "- cmd: uv pip install torch\n  when: 1700000000\n")
    put(home / ".config/envguard/envguard.toml", 'refuse = "warn"\n')
    put(home / ".config/uv/uv.toml", "offline = true\n")
    put(home / ".config/pip/pip.conf", "[global]\nlog = /nowhere\n")
    put(home / "pip.log", "2026-05-18T20:41:07,123 Installing collected packages: torch\n")
    put(project / "pip.log", "2026-05-18T20:41:07,123 Installing collected packages: torch\n")
    put(project / "inductor" / "fxgraph" / "ab" / "x" / "entry", b"\x80\x04K\x01.")
    put(project / "inductor" / "ab" / "cabc.py", "# torch\n")
    put(stage.site / "extra.pth", "import os\n")
    put(stage.site / "sitecustomize.py", "")
    egg = stage.site / "old-1.0.egg-info"
    put(egg / "PKG-INFO", "Metadata-Version: 1.0\nName: old\nVersion: 1.0\n")
    put(egg / "installed-files.txt", "../old.py\n")
    put(stage.site / "old.py", "")
    put(stage.venv / "conda-meta" / "history", "==> 2026-05-18 20:41:07 <==\n# cmd: conda install x\n+c::x-1-0\n")
    put(stage.venv / "conda-meta" / "x-1-0.json", '{"name": "x", "version": "1", "build": "0", "files": []}')
    for step in (1, 2):
        folder = project / "runs" / "a" / f"step_{step}"
        put(folder / "config.json", '{"transformers_version": "5.6.0", "hidden_size": 64}')
        put(folder / "trainer_state.json", '{"global_step": 1, "log_history": [{"step": 1, "loss": 2.5}]}')
        header = b'{"__metadata__": {"torch_version": "2.11.0"}}'
        put(folder / "model.safetensors", len(header).to_bytes(8, "little") + header)
    _lightning(project / "checkpoints" / "epoch=0-step=3.ckpt")
    row = '{"step": %d, "time": %d, "loss": 2.5, "tok_s": 21000}'
    put(project / "runs" / "a" / "train_log.jsonl", "".join(row % (n, 1_700_000_000 + n) + "\n" for n in range(50)))
    put(project / "runs" / "a" / "metrics.csv", "step,loss\n1,2.5\n2,2.4\n")
    put(project / "runs" / "a" / "hparams.yaml", "lr: 0.1\n")
    put(project / "runs" / "a" / "out.log", "2026-05-18 20:41:07 step 1 loss 2.5\nKilled\n")
    put(project / "runs" / "a" / "events.out.tfevents.1.host.1.0", _events())
    put(project / "named.log", "2026-05-18 20:41:07 INFO step 1\n")
    wandb = project / "wandb" / "run-20260518_204107-abc" / "files"
    put(wandb / "wandb-metadata.json", '{"startedAt": "2026-05-18T20:41:07Z", "python": "3.11"}')
    put(wandb / "requirements.txt", "torch==2.11.0+cu128\n")
    put(wandb / "config.yaml", "lr:\n  value: 1\n")
    put(wandb / "wandb-summary.json", '{"_step": 1}')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "src", "conf"], ["commit", "-qm", "one"], ["pack-refs", "--all"]):
        subprocess.run([*git, *words], cwd=project, env=stage.environ(), check=True)
    put(project / "src" / "train.py", "print(2)\n")
    for words in (
        ["snapshot", "--into", "runs/a/step_1"],
        ["snapshot", "--into", "runs/a/step_2"],
        ["snapshot", "--into", "checkpoints/epoch=0-step=3.ckpt"],
        ["snapshot", "--keep"],
        ["snapshot", "-o", "taken.json"],
        ["launch", "--baseline", "--", "true"],
    ):
        done = stage.envguard(*words)
        assert done.returncode in (0, 1, 3), done.stderr
    waiver = {"facet": "packages", "subject": "x", "because": "why", "author": "me",
              "given": "2026-01-01T00:00:00+00:00", "until": "2099-01-01T00:00:00+00:00"}  # fmt: skip
    put(project / ".envguard" / "waivers.json", json.dumps([waiver]))


def _parquet() -> bytes:
    footer = bytes([0x15, 2, 0x19, 0x0C, 0x16, 4, 0x00])
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _events() -> bytes:
    """Two scalars, as a writer of event files leaves them."""
    out = b""
    for step in (1, 2):
        value = b"\x0a\x04loss\x15" + struct.pack("<f", 2.5)
        summary = b"\x0a" + bytes([len(value)]) + value
        data = b"\x09" + struct.pack("<d", 1_700_000_000.0 + step) + bytes([0x10, step, 0x2A, len(summary)]) + summary
        out += len(data).to_bytes(8, "little") + bytes(4) + data + bytes(4)
    return out


def _lightning(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"pytorch-lightning_version": "2.5.0"}, protocol=2))


# --- the program ---


def main() -> None:
    asked = json.load(sys.stdin)
    os.chdir(asked["project"])
    import envguard.cli.app  # noqa: F401 - once, for all that are forked

    # What they import when they run is imported by the first of them that runs here.
    if asked["cells"] is None:
        for name, words in asked["commands"].items():
            print(json.dumps({"command": name, "opened": list(_opened(words, asked["room"]))}), flush=True)
        return
    for command, place, oddity in asked["cells"]:
        code, seconds, out = _tried(
            asked["commands"][command], Path(place), oddity, asked["deadline_s"], asked["room"]
        )
        print(json.dumps([command, place, oddity, code, round(seconds, 2), out]), flush=True)


def _tried(words: list[str], place: Path, oddity: str, deadline_s: float, room: str) -> tuple[Any, float, str]:
    was, facts, folder = place.read_bytes(), place.stat(), place.parent.stat()
    aside, state, state_aside = Path(f"{room}-aside"), Path(".envguard"), Path(f"{room}-state")
    shutil.copytree(state, state_aside, dirs_exist_ok=True)
    os.rename(place, aside)
    try:
        ODDITIES[oddity](place, was)
        if place.is_file() and not place.is_symlink():
            os.utime(place, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.utime(place.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
        return _forked(words, deadline_s)
    finally:
        _remove(place)
        place.parent.mkdir(exist_ok=True)
        os.rename(aside, place)
        os.utime(place.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
        shutil.rmtree(state)
        os.rename(state_aside, state)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()


def _forked(words: list[str], deadline_s: float) -> tuple[Any, float, str]:
    """(exit code or "hang", seconds, what it printed) of one command in a child."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        import resource

        resource.setrlimit(
            resource.RLIMIT_AS, (4 << 30, 4 << 30)
        )  # a reader without a bound fails, and not the machine
        _give_up_the_right_to_read_everything()
        try:
            envguard_main(words)
        finally:
            os._exit(99)
    os.close(writer)
    out = b""
    ended = False
    os.set_blocking(reader, False)
    while time.monotonic() - began < deadline_s:
        try:
            piece = os.read(reader, 1 << 16)
        except BlockingIOError:
            time.sleep(0.005)
            continue
        if not piece:
            ended = True
            break
        out += piece
    if not ended:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    return (
        (os.waitstatus_to_exitcode(status) if ended else "hang"),
        time.monotonic() - began,
        out.decode("utf-8", "replace"),
    )


def _give_up_the_right_to_read_everything() -> None:
    """As root a mode refuses nothing: without these capabilities root is refused as others are."""
    if os.geteuid() != 0:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", 0x20080522, 0)  # version 3: two words of each set
    held = ctypes.create_string_buffer(24)
    assert libc.capget(header, held) == 0, os.strerror(ctypes.get_errno())
    words = list(struct.unpack("6I", held))
    for at in (0, 1):  # effective and permitted: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
        words[at] &= ~(1 << 1 | 1 << 2)
    assert libc.capset(header, struct.pack("6I", *words)) == 0, os.strerror(ctypes.get_errno())


def envguard_main(words: list[str]) -> None:
    from envguard.cli.app import main as run

    try:
        run(words)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 98)


def _opened(words: list[str], room: str) -> Iterator[str]:
    """Regular files below the room that the command opens, in the order of opening."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(arguments[0], str | bytes):
                path = os.path.abspath(os.fsdecode(arguments[0]))
                if path.startswith(room + "/"):
                    os.write(writer, os.fsencode(path) + b"\0")

        sys.addaudithook(hook)
        try:
            envguard_main(words)
        finally:
            os._exit(99)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        seen = dict.fromkeys(stream.read().split(b"\0"))
    os.waitpid(child, 0)
    for path in filter(None, seen):
        try:
            facts = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISREG(facts.st_mode):
            yield os.fsdecode(path)


if __name__ == "__main__":
    main()
