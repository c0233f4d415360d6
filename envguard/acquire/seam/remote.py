"""A machine that a command prefix reaches: `ssh root@host`, `ssh host pct exec 200 --`, `docker exec -i box`.

Nothing but `python3` (3.8 or newer) is needed over there, and nothing is written there. The words after the prefix
hold no shell metacharacter, so that prefixes which let a shell parse them again (ssh does, `pct exec` does) work; the
program itself goes in on stdin. `python3 -i -u` reads its stdin a statement at a time and unbuffered, so that the one
bootstrap line can read the collector's text after it from the same pipe and then serve requests on it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import posixpath
import secrets
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from envguard.acquire.seam.host import Host, NotRecorded
from envguard.acquire.seam.record import Record
from envguard.acquire.seam.recorded import BundleHost
from envguard.acquire.seam.travelling import program
from envguard.acquire.survey import Request
from envguard.config import Config, parse_project_config
from envguard.errors import InputError

COMMAND = ("python3", "-I", "-B", "-u", "-i")
START_S = 60.0
ANSWER_S = 120.0
MOST_LINE = 512 << 20
MOST_NOISE = 1 << 20
BATCH = 48
"""Requests sent before answers are read: together they stay below what a pipe holds, or both ends would wait."""


class RemoteError(InputError):
    """The far machine could not be reached, has no usable python3, or stopped answering."""


class RemoteHost(Host):
    """The collector running at the end of a prefix. Use as a context manager; answers are kept, so that a question
    costs one trip however many readers ask it."""

    def __init__(self, prefix: str, chdir: str | None = None, command: Sequence[str] = COMMAND) -> None:
        try:
            words = shlex.split(prefix)
        except ValueError as error:
            raise RemoteError(f"--via {prefix!r}: {error}", "write it as for a shell: 'ssh root@host'") from error
        if not words:
            raise RemoteError("--via is empty", "write the words that reach the machine: 'ssh root@host'")
        self.label = prefix
        self.pid = 0
        self._known: dict[str, Any] = {}
        self._trees = Record()
        self._seen = BundleHost(self._trees, prefix)
        self._files: list[str] = []
        self._place: dict[str, int] = {}
        self.trips = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [*words, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
            )
        except OSError as error:
            self._stderr.close()
            raise RemoteError(
                f"--via: {words[0]} cannot be started: {error.strerror or error}",
                "its first word is a program of this machine: `ssh`, `docker`, `pct`",
            ) from error
        self._buffer = b""
        try:
            self._start(chdir)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RemoteHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the far collector: it stops when its input does."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def _start(self, chdir: str | None) -> None:
        text = program().encode("utf-8")
        nonce = secrets.token_hex(8)
        # Whole lines: the far interpreter reads a statement at a time. It ends with the collector, since whatever
        # came in on stdin afterwards would be taken for more statements.
        before = (
            "import os, sys, json\n"
            "sys.version_info >= (3, 8) or (print('envguard-old', sys.version.split()[0], flush=True), os._exit(3))\n"
            f"_n, _b, _g = {len(text)}, b'', {{'__name__': 'envguard'}}\n"
            "exec('while len(_b) < _n:\\n _c = os.read(0, _n - len(_b))\\n _c or os._exit(4)\\n _b += _c')\n"
        )
        told = json.dumps({"nonce": nonce, "chdir": chdir})
        # A stream of its own: under PYTHONUNBUFFERED sys.stdout may lose the end of a long answer.
        serve = (
            f"_t = json.loads({told!r})\n"
            "_t['pid'] = os.getpid()\n"
            "_d = _t['chdir']\n"
            "exec('try:\\n _d and os.chdir(_d)\\nexcept OSError as e:\\n _t[\"error\"] = e.strerror')\n"
            "exec(compile(_b, 'envguard-collector', 'exec'), _g)\n"
            "print(json.dumps(_t), flush=True)\n"
            'exec(\'try:\\n _g["serve"](sys.stdin, open(1, "w", closefd=False))\\n\''
            "'except Exception:\\n sys.excepthook(*sys.exc_info())\\n'"
            "'finally:\\n sys.stderr.flush()\\n os._exit(0)')\n"
        )
        self._send(before.encode("ascii"))
        self._send(text + serve.encode("ascii"))
        hello = self._hello(nonce)
        self.pid = int(hello["pid"])
        if hello.get("error"):
            raise RemoteError(f"--chdir {chdir}: {hello['error']}", "name a folder on the far machine")

    def _hello(self, nonce: str) -> dict[str, Any]:
        """The first line of ours; what a login shell prints before it (a banner, a greeting) is passed over."""
        noise = 0
        while True:
            line = self._line(START_S)
            if nonce.encode() in line:
                with contextlib.suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict) and value.get("nonce") == nonce:
                        return value
            if line.startswith(b"envguard-old"):
                version = line.decode("ascii", "replace").split()[-1]
                raise RemoteError(
                    f"python3 over there is {version}; 3.8 or newer is needed",
                    "put a newer python3 first on PATH over there",
                )
            noise += len(line)
            if noise > MOST_NOISE or line.startswith(b"import os, sys, json"):  # an echo of what was sent
                raise RemoteError(f"`{self.label}` prints something else than the collector's answers", self._quiet())

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError as error:
            raise self._died() from error

    def _line(self, timeout: float) -> bytes:
        """The next line of the far side's stdout."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        pieces = [self._buffer]
        total = len(self._buffer)
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in pieces[-1]:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise RemoteError(f"`{self.label}` has not answered for {timeout:.0f} s", self._quiet())
                piece = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
                if not piece:
                    raise self._died()
                total += len(piece)
                if total > MOST_LINE:
                    raise RemoteError(
                        f"`{self.label}` sent an answer of more than {MOST_LINE >> 20} MB", self._quiet()
                    )
                pieces.append(piece)
        line, _, self._buffer = b"".join(pieces).partition(b"\n")
        return line

    def _died(self) -> RemoteError:
        code = self._process.poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2)
        self._stderr.seek(0)
        said = [line for line in self._stderr.read().decode("utf-8", "replace").splitlines() if line.strip("> .")]
        last = said[-1].lstrip("> ").strip() if said else "it said nothing"
        return RemoteError(f"`{self.label}` ended (exit code {code}): {last}", self._quiet())

    def _no_answer(self, line: bytes) -> RemoteError:
        return RemoteError(f"`{self.label}` sent something that is no answer: {line[:80]!r}", self._quiet())

    def _quiet(self) -> str:
        return f"`{self.label} python3 --version` has to work, without a question, and print nothing else"

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation in ("stat", "listing"):
            # What a walk has shown, or shown to be absent, needs no trip of its own.
            with contextlib.suppress(NotRecorded):
                return self._seen.call(operation, *arguments)
        key = _key(operation, arguments)
        if key not in self._known and operation in ("digest", "hashed") and arguments[0] in self._place:
            # Who hashes one file of a package hashes the next ones, too.
            at = self._place[arguments[0]]
            self.prefetch([(operation, (path, *arguments[1:])) for path in self._files[at : at + BATCH]])
        if key not in self._known:
            self._ask([(key, operation, arguments)])
        return _value(self._known[key])

    def know_tree(self, root: str, skip: tuple[str, ...] = ()) -> None:
        """Walks a tree in one trip; every later `stat` and `listing` in it is answered from that walk."""
        try:
            value = self.call("walk", root, True, skip)
        except OSError:
            return  # a reader that asks for it meets the same error
        self._trees.learn("walk", (root, True, skip), value)
        for row in value[0]:
            if row[1] == "file":
                self._place[f"{root}/{row[0]}"] = len(self._files)
                self._files.append(f"{root}/{row[0]}")

    def prefetch(self, questions: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Asks many questions in few trips; their answers are at hand when a reader asks them one by one."""
        fresh = {
            key: (key, operation, arguments)
            for operation, arguments in questions
            if (key := _key(operation, arguments)) not in self._known
        }
        todo = list(fresh.values())
        for start in range(0, len(todo), BATCH):
            self._ask(todo[start : start + BATCH])

    def _ask(self, questions: Sequence[tuple[str, str, tuple[Any, ...]]]) -> None:
        lines = [json.dumps([operation, arguments]) + "\n" for _, operation, arguments in questions]
        self.trips += 1
        self._send("".join(lines).encode("ascii"))
        for key, _, _ in questions:
            line = self._line(ANSWER_S)
            try:
                answer = json.loads(line)
            except ValueError as error:
                raise self._no_answer(line) from error
            if not isinstance(answer, dict) or not {"value", "bytes", "error"} & answer.keys():
                raise self._no_answer(line)
            self._known[key] = answer


def _key(operation: str, arguments: tuple[Any, ...]) -> str:
    return json.dumps([operation, arguments])


def _value(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        code, text = answer["error"]
        raise OSError(int(code), str(text))
    if "bytes" in answer:
        return base64.b64decode(answer["bytes"])
    return answer["value"]


def remote_request(host: RemoteHost, python: str | None, checkpoints: list[str] | None) -> Request:
    """What to survey over there: the far working directory, its project and its configuration.

    `python` and `checkpoints` are paths over there. Raises `UsageError` for a bad configuration.
    """
    start = host.machine().cwd
    root = _find_root(host, start)
    config = _config(host, root)
    base = root or start
    names = checkpoints or list(config.checkpoints)
    request = Request(
        start=start,
        python=python or config.python,
        root=root,
        state=f"{base}/{config.state or '.envguard'}" if root or config.state else None,
        checkpoint_roots=(),
        config=config,
        own_pids=frozenset({host.pid}),
    )
    own = start if checkpoints else base
    return replace(request, checkpoint_roots=tuple(_joined(own, name) for name in names), journaled=not checkpoints)


def _joined(base: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(base, name))


def _find_root(host: Host, start: str) -> str | None:
    folder = start
    while True:
        for name in ("envguard.toml", ".git"):
            if host.find(f"{folder.rstrip('/')}/{name}") is not None:
                return folder
        text = _text(host, f"{folder.rstrip('/')}/pyproject.toml")
        if text is not None and "[tool.envguard" in text:
            return folder
        if folder in ("/", ""):
            return None
        folder = folder.rstrip("/").rpartition("/")[0] or "/"


def _config(host: Host, root: str | None) -> Config:
    if root is None:
        return Config()
    for name, inner in (("envguard.toml", False), ("pyproject.toml", True)):
        text = _text(host, f"{root}/{name}")
        if text is not None and (not inner or "[tool.envguard" in text):
            return parse_project_config(f"{root}/{name}", text, inner)
    return Config()


def _text(host: Host, path: str) -> str | None:
    try:
        return host.read(path, 1 << 20).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path} over there cannot be read: {error.strerror or error}",
            "ask for the right to read it over there, or name another folder with `--chdir`",
        ) from error
