"""The processes of a run: which of them have a handler for a signal, and which outlive the command.

A rank is found by its parent while the launcher lives. One that was left behind has another parent by then: it is
found by the run's own variable among those that it was started with, or because it was seen below the command before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envguard.acquire.seam.collector.redaction import redact_argv
from envguard.state.runs import RUN_ID

_START = 19  # starttime of /proc/PID/stat (proc(5)), counted from the field after the command
_PPID = 1
_STATE = 0
_MOST = 1 << 20


@dataclass(frozen=True)
class Member:
    """A process by its number and its start (clock ticks since boot): a number alone is another process's later."""

    pid: int
    started: int


def descendants(pid: int) -> tuple[int, ...]:
    """The processes below one, nearest first. One read for each process of the machine."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        fields = _stat(other)
        if fields is not None:
            children.setdefault(int(fields[_PPID]), []).append(other)
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, ()) if child not in found]
        found += level
    return tuple(found)


def bearers(pid: int, number: signal.Signals) -> tuple[int, ...]:
    """The processes to hand a signal to: the command where it has a handler, else those below it that have one.

    One with a handler decides for those below it.
    """
    children: dict[int, list[int]] = {}
    for other in descendants(pid):
        fields = _stat(other)
        if fields is not None:
            children.setdefault(int(fields[_PPID]), []).append(other)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        each = waiting.pop(0)
        if has_handler(each, number):
            found.append(each)
        else:
            waiting += children.get(each, ())
    return tuple(found)


def has_handler(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches a signal (SigCgt of /proc/PID/status)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            lines = stream.read(_MOST).splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith(b"SigCgt:")), b"SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


class Family:
    """The processes of one run, as far as they were seen. `look` while the command lives, `left` after its end."""

    def __init__(self, run: str) -> None:
        self._mark = f"{RUN_ID}={run}".encode()
        self._seen: set[Member] = set()

    def look(self, pid: int) -> None:
        """Remembers what lives below the command now."""
        living = set(_members(descendants(pid)))
        self._seen = {member for member in self._seen if _lives(member)} | living

    def left(self) -> tuple[Member, ...]:
        """The processes of the run that live, the oldest first; not this one."""
        found = {member for member in self._seen if _lives(member)}
        found |= set(_members(pid for pid in _pids() if self._is_marked(pid)))
        return tuple(sorted((m for m in found if m.pid != os.getpid()), key=lambda m: (m.started, m.pid)))

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                return self._mark in stream.read(_MOST).split(b"\0")
        except OSError:
            return False  # another user's, or gone


def send(members: Iterable[Member], number: signal.Signals) -> None:
    """Sends a signal to those that still live."""
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(member.pid)
            try:
                # The descriptor is that of the process which has the number now: of none other is the start the same.
                if _lives(member):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def command_of(member: Member) -> str:
    """The command line of a process, without secrets."""
    try:
        with open(f"/proc/{member.pid}/cmdline", "rb") as stream:
            words = os.fsdecode(stream.read(_MOST)).split("\0")[:-1]
    except OSError:
        words = []
    return " ".join(redact_argv(words)) or "a process that has ended"


def wait_for(members: Iterable[Member], seconds: float) -> tuple[Member, ...]:
    """Waits until they have ended, `seconds` at most; those that still live."""
    living = tuple(members)
    until = time.monotonic() + seconds
    while living and time.monotonic() < until:
        time.sleep(0.05)
        living = tuple(member for member in living if _lives(member))
    return living


def _lives(member: Member) -> bool:
    fields = _stat(member.pid)
    return fields is not None and int(fields[_START]) == member.started and fields[_STATE] not in (b"Z", b"X")


def _members(pids: Iterable[int]) -> Iterator[Member]:
    for pid in pids:
        fields = _stat(pid)
        if fields is not None and fields[_STATE] not in (b"Z", b"X"):
            yield Member(pid, int(fields[_START]))


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read(_MOST).rpartition(b")")[2].split()
    except OSError:
        return None  # it has ended meanwhile
