"""The supervised command: real processes, real signals, a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SUPERVISOR = [sys.executable, "-P", str(Path(__file__).with_name("supervisor.py"))]

# Prints each signal that it gets, by name; ends on the third SIGINT, or on SIGTERM with 7.
LISTENER = """
import os, signal, sys, time
seen = []
def hear(number, frame):
    seen.append(number)
    os.write(1, (signal.Signals(number).name + "\\n").encode())
    if number == signal.SIGTERM:
        os._exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGWINCH, signal.SIGCONT):
    signal.signal(number, hear)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    time.sleep(0.05)
"""


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": str(root)}


@pytest.fixture(autouse=True)
def no_signal_is_ignored() -> Iterator[None]:
    """Whoever runs the tests under nohup, or in the background of a script, hands ignored signals down to them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)}
    for number, handler in before.items():
        if handler == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def supervised(*argv: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*SUPERVISOR, *argv],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(*argv: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SUPERVISOR, *argv], env={**environment(), **extra}, capture_output=True, text=True, check=False, timeout=30
    )


def listen(process: subprocess.Popen[str]) -> int:
    """Waits for the listener to be ready; its PID."""
    assert process.stdout is not None
    return int(process.stdout.readline().removeprefix("ready "))


def test_the_exit_code_is_the_commands_own() -> None:
    for code in (0, 1, 2, 3, 75, 78, 255):
        assert run("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE])
def test_a_command_killed_by_a_signal_gives_128_and_the_signal(number: signal.Signals) -> None:
    assert run("sh", "-c", f"kill -{number.value} $$").returncode == 128 + number


def test_a_real_time_signal_has_no_name_and_still_a_code() -> None:
    number = signal.SIGRTMIN + 3
    assert run(sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})").returncode == 128 + number


def test_no_such_command_is_127_and_one_that_cannot_be_executed_126(tmp_path: Path) -> None:
    missing = run("no-such-command-here")
    assert missing.returncode == 127
    assert "command not found" in missing.stderr
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert run(str(plain)).returncode == 126
    assert run(str(tmp_path)).returncode == 126
    assert run(str(tmp_path / "missing")).returncode == 127
    assert run(str(plain / "below")).returncode == 127
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    circle = run(str(tmp_path / "circle"))
    assert circle.returncode == 126
    assert "symbolic links" in circle.stderr
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x00\x01no program")
    noise.chmod(0o755)
    assert run(str(noise)).returncode == 126
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    done = run(str(orphan))
    assert done.returncode == 126
    assert "interpreter" in done.stderr


def test_stdin_arguments_and_both_streams_are_the_commands() -> None:
    done = subprocess.run(
        [*SUPERVISOR, "sh", "-c", 'cat; echo "$1" >&2', "sh", "a b"],
        env=environment(), input="in", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("in", "a b\n")


def test_its_stdout_goes_to_stderr_where_stdout_is_taken() -> None:
    done = run("sh", "-c", "echo out; echo err >&2", TO_STDERR="1")
    assert (done.stdout, done.stderr) == ("", "out\nerr\n")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH]
)
def test_signals_sent_to_the_supervisor_reach_the_command_once(number: signal.Signals) -> None:
    with supervised(sys.executable, "-c", LISTENER) as process:
        listen(process)
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{number.name}\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=10)
        assert out == "SIGTERM\n"
        assert process.returncode == 7


def test_sigint_twice_reaches_the_command_twice_and_the_supervisor_stays_to_the_end() -> None:
    with supervised(sys.executable, "-c", LISTENER) as process:
        listen(process)
        assert process.stdout is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "SIGINT\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 7


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    ignoring = "import os, signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *SUPERVISOR, sys.executable, "-c", ignoring],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_the_command_starts_with_nothing_blocked_and_sigpipe_as_it_was() -> None:
    # python itself ignores SIGPIPE and SIGXFSZ, so that another program has to say what it was given
    done = run("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status")
    # 32 and 33 are the C library's own: its posix_spawn, which Python 3.13 uses for us, leaves them ignored
    ours = ~(1 << 31 | 1 << 32)
    assert [int(mask, 16) & ours for mask in re.findall(r":\t(\w+)", done.stdout)] == [0, 0], done.stdout


def test_a_supervisor_that_is_killed_takes_the_command_with_it() -> None:
    with supervised(sys.executable, "-c", LISTENER) as process:
        pid = listen(process)
        process.kill()
        out, _ = process.communicate(timeout=10)
        assert out == "SIGTERM\n"  # the command was told, and could save a checkpoint
        wait_until_gone(pid)


def wait_until_gone(pid: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # dead, and waited for by nobody here
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_a_descriptor_that_we_were_given_goes_on_to_the_command() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    subprocess.run(
        [*SUPERVISOR, "sh", "-c", f"echo here > /proc/self/fd/{writer}"],
        env=environment(),
        close_fds=False,
        check=True,
    )
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "here\n"


class Terminal:
    """A shell with job control on a pseudo-terminal, as in a tmux pane."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment(), PS1="$ ", TERM="dumb")
            os.execlp("bash", "bash", "--norc", "--noprofile", "--noediting", "-i")
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str, seconds: float = 15) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while True:
            match = re.search(pattern, self.text)
            if match:
                self.text = self.text[match.end() :]
                return match
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {pattern!r}, got {self.text!r}"
            if select.select([self.fd], [], [], left)[0]:
                self.text += os.read(self.fd, 4096).decode(errors="replace").replace("\r", "")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def supervise_line(tmp_path: Path, program: str) -> str:
    script = tmp_path / "program.py"
    script.write_text(program)
    return shlex.join([*SUPERVISOR, sys.executable, str(script)]) + "\n"


def test_a_terminal_stays_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    program = "import os, sys; print([os.isatty(f) for f in (0, 1, 2)], os.tcgetpgrp(0) == os.getpgrp())\n"
    terminal.type(supervise_line(tmp_path, program))
    terminal.expect(re.escape("[True, True, True] True"))


def test_ctrl_c_reaches_the_command_once_each_time(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type(supervise_line(tmp_path, LISTENER))
    pid = int(terminal.expect(r"ready (\d+)").group(1))
    for _ in range(2):
        terminal.type("\x03")
        terminal.expect("SIGINT\n")
        time.sleep(0.3)
    terminal.type("\x1c")
    terminal.expect("SIGQUIT\n")
    os.kill(pid, signal.SIGTERM)
    terminal.expect(r"\$ $")
    assert "SIGINT" not in terminal.text
    terminal.type("echo code=$?\n")
    terminal.expect("code=7")


def test_ctrl_z_stops_both_and_fg_continues_both(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type(supervise_line(tmp_path, LISTENER))
    pid = int(terminal.expect(r"ready (\d+)").group(1))
    terminal.type("\x1a")
    terminal.expect("Stopped")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    terminal.type("fg\n")
    terminal.expect("SIGCONT\n")
    terminal.type("\x03")
    terminal.expect("SIGINT\n")
    os.kill(pid, signal.SIGTERM)
    terminal.expect(r"\$ $")


def test_a_resized_window_reaches_the_command(terminal: Terminal, tmp_path: Path) -> None:
    import fcntl
    import struct
    import termios

    terminal.type(supervise_line(tmp_path, LISTENER))
    pid = int(terminal.expect(r"ready (\d+)").group(1))
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    terminal.expect("SIGWINCH\n")
    os.kill(pid, signal.SIGTERM)
    terminal.expect(r"\$ $")


def test_a_terminal_that_goes_away_tells_the_command(terminal: Terminal, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program = (
        "import os, signal, time\n"
        f"signal.signal(signal.SIGHUP, lambda n, f: (open({str(seen)!r}, 'w').write('hup'), os._exit(0)))\n"
        "os.write(1, b'ready %d\\n' % os.getpid())\n"
        "while True: time.sleep(0.05)\n"
    )
    terminal.type(supervise_line(tmp_path, program))
    pid = int(terminal.expect(r"ready (\d+)").group(1))
    os.close(terminal.fd)
    terminal.fd = os.open(os.devnull, os.O_RDONLY)
    wait_until_gone(pid)
    assert seen.read_text() == "hup"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_under_tmux_keys_reach_the_command_and_closing_the_session_hangs_it_up(tmp_path: Path) -> None:
    server, seen = ["tmux", "-L", f"eg-{os.getpid()}"], tmp_path / "seen"
    program = tmp_path / "program.py"
    hup = f"signal.signal(signal.SIGHUP, lambda n, f: (open({str(seen)!r}, 'a').write('SIGHUP'), os._exit(0)))\n"
    hear = f"signal.signal(signal.SIGINT, lambda n, f: open({str(seen)!r}, 'a').write('SIGINT '))\n"
    ready = f"open({str(tmp_path / 'ready')!r}, 'w').write(str(os.isatty(0)))\n"
    program.write_text(f"import os, signal, time\n{hup}{hear}{ready}while True: time.sleep(0.05)\n")
    line = shlex.join(["exec", *SUPERVISOR, sys.executable, str(program)])
    subprocess.run([*server, "-f", "/dev/null", "new-session", "-d", "-s", "t", line], env=environment(), check=True)
    try:
        wait_for_text(tmp_path / "ready", "True")
        subprocess.run([*server, "send-keys", "-t", "t", "C-c"], check=True)
        wait_for_text(seen, "SIGINT ")
        time.sleep(0.3)
        subprocess.run([*server, "kill-session", "-t", "t"], check=True)
        wait_for_text(seen, "SIGINT SIGHUP")
    finally:
        subprocess.run([*server, "kill-server"], check=False, capture_output=True)


def wait_for_text(path: Path, text: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text() == text):
        assert time.monotonic() < deadline, path.read_text() if path.exists() else f"no {path.name}"
        time.sleep(0.05)
