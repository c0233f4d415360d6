"""The command that `launch` starts, and its supervision: signals, the terminal, its end.

The command stays in our process group on our terminal, so that it is in the foreground when we are, Ctrl-Z stops
both, and tmux sees one job. Signals are taken synchronously with `sigwaitinfo`, because that tells who sent one: a
signal of the terminal (Ctrl-C) has reached the command already, and passing it on would make a trainer see it twice,
whose second Ctrl-C means "now, without a checkpoint".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envguard.errors import Error
from envguard.launch import family

PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
    signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
# Nobody sends these but to a handler: without one, the first process of a run would end and leave its ranks.
_FOR_HANDLERS = (signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SI_KERNEL = 0x80  # include/uapi/asm-generic/siginfo.h: sent by the kernel, as the terminal's signals are
_PR_SET_PDEATHSIG = 1


class CannotExecute(Error):
    """The command is there and cannot be executed."""

    code = 126


class CommandNotFound(CannotExecute):
    """There is no such command."""

    code = 127


class Listener(Protocol):
    """Learns of the signals that are passed on; `before` must not wait for a disk, or the signal would."""

    def before(self, number: signal.Signals) -> None: ...

    def heard(self, number: signal.Signals, reached: tuple[int, ...]) -> None: ...


@dataclass(frozen=True)
class Ended:
    """How the command ended: `code` as a shell would give it (128+n for signal n), `signal` by name."""

    code: int
    signal: str | None


def find_command(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The file that `argv[0]` names. Raises `CannotExecute` before anything else is done for it."""
    name = argv[0]
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found is not None:
        return found
    if "/" in name and (why := _why_not(Path(name))):
        raise CannotExecute(f"{name}: {why}", f"`chmod +x {name}`, or name its interpreter")
    hint = "what comes after `--` is the command and its arguments"
    raise CommandNotFound(f"{name if name.strip() else repr(name)}: command not found", hint)


def _why_not(path: Path) -> str | None:
    """Why a path is no command; None where nothing is there."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a folder on the way that may not be looked into, a circle of links
        return error.strerror or str(error)
    return "is a directory" if stat.S_ISDIR(mode) else "is not executable"


def block_signals() -> set[signal.Signals]:
    """Takes the signals that are passed on out of this process's hands; returns the mask as it was.

    A signal that was ignored when we were started (nohup, a background job of a script) stays ignored, here and in
    the command. Threads made later inherit the mask, so that none of them takes a signal.
    """
    taken = {number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken | {signal.SIGCHLD})
    return {signal.Signals(number) for number in before}


class Child:
    """A started command. Call `block_signals` before; `wait` takes the process's signals until the command ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        # A pid may be another process's after the command has ended; the descriptor never is.
        self._pidfd = os.pidfd_open(process.pid)

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; False where the command has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, listener: Listener | None = None) -> Ended:
        """Passes signals on until the command has ended; `listener` learns of those that are no job control."""
        taken = {n for n in PASSED_ON if signal.getsignal(n) != signal.SIG_IGN} | {signal.SIGCHLD}
        while True:
            ended = self._reap()
            if ended is not None:
                return ended
            info = signal.sigwaitinfo(taken)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._pass_on(signal.Signals(info.si_signo), info, listener)

    def _pass_on(self, number: signal.Signals, info: signal.struct_siginfo, listener: Listener | None) -> None:
        if number not in (*ENDING, *_FOR_HANDLERS):
            listener = None
        if listener is not None:
            listener.before(number)
        reached: tuple[int, ...] = (self.pid,)
        if number in _FOR_HANDLERS:
            reached = family.bearers(self.pid, number)
            for pid in reached:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        elif not self._has_it(info):
            self.send(number)
        if listener is not None:
            listener.heard(number, reached)

    def _has_it(self, info: signal.struct_siginfo) -> bool:
        """Whether the terminal sent this signal, and to the command's process group too."""
        if info.si_code != _SI_KERNEL:
            return False
        if info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid():
            # A terminal that goes away tells the leader of its session alone, which we are in a tmux pane of our own.
            return False
        with contextlib.suppress(ProcessLookupError):
            return os.getpgid(self.pid) == os.getpgrp()
        return True

    def _reap(self) -> Ended | None:
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                # Ctrl-Z: the shell waits for us, not for the command, so we stop when it has stopped; `fg`
                # continues the whole group. A SIGSTOP (a debugger's, say) is for the command alone.
                if os.WSTOPSIG(status) in _JOB_CONTROL:
                    os.kill(os.getpid(), signal.SIGSTOP)
                continue
            code = os.waitstatus_to_exitcode(status)
            self._process.returncode = code
            os.close(self._pidfd)
            return Ended(code, None) if code >= 0 else Ended(128 - code, _signal_name(-code))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals between SIGRTMIN and SIGRTMAX have no names


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    mask: set[signal.Signals],
    stdout_to_stderr: bool,
    folder: Path | None = None,
) -> Child:
    """Starts the command with the signal mask `mask`. Raises `CannotExecute`.

    Descriptors that we were given without close-on-exec (a lock of Slurm, sockets of systemd) go on to the command.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            executable=find_command(argv, environ),
            env=dict(environ),
            stdout=sys.stderr.fileno() if stdout_to_stderr else None,
            cwd=folder,
            close_fds=False,
            preexec_fn=_before_exec(os.getpid(), mask),
        )
    except OSError as error:
        raise _cannot(argv[0], error) from error
    return Child(process)


def _cannot(name: str, error: OSError) -> CannotExecute:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT:
        return CannotExecute(f"{name}: the interpreter in its first line does not exist")
    hint = "a script needs a `#!` line, or name its interpreter" if error.errno == errno.ENOEXEC else None
    return CannotExecute(f"{name}: {reason}", hint)


def _before_exec(supervisor: int, mask: set[signal.Signals]) -> Callable[[], None]:
    """What the new process does first: its own signal mask, and word of our death.

    Where we are killed outright (kill -9, out of memory) nobody would watch or record the run any more. The kernel
    then sends the command SIGTERM, on which a trainer saves a checkpoint and ends, instead of leaving it behind.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != supervisor:  # it died between fork and here
            os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare
