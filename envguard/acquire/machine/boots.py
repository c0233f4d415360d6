"""Boots: the kernel's own word on the last one, and wtmp on those before.

wtmp's clock is the wall clock at the time: a boot before the clock was set shows an impossible time and is left out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envguard.acquire.seam.host import Host, Machine
from envguard.clock import NS
from envguard.model.evidence import Unknown

WTMP = "/var/log/wtmp"
# type, pid, line, id, user, host, exit, session, seconds, microseconds, address, unused: glibc's record on Linux.
_RECORD = struct.Struct("<hxxi32s4s32s256shhiii4i20x")
BOOT, NEW_TIME, OLD_TIME = 2, 3, 4
MOST_BYTES = 40_000 * 384
"""Whole records, of 384 bytes each, from the end: the file is appended to."""
_EARLIEST = 946_684_800


@dataclass(frozen=True)
class Boot:
    """A start of the machine. `kernel` is what wtmp calls its host field: the kernel's release."""

    time_ns: int
    source: str
    kernel: str | None


@dataclass(frozen=True)
class ClockStep:
    """The clock was set, from one time to another."""

    before_ns: int
    after_ns: int


@dataclass(frozen=True)
class Boots:
    """Boots and clock steps, oldest first."""

    boots: tuple[Boot, ...]
    steps: tuple[ClockStep, ...]


def read_boots(host: Host, machine: Machine, unknown: list[Unknown]) -> Boots:
    """Every boot that is still recorded; the last one also by the kernel."""
    boots: list[Boot] = []
    steps: list[ClockStep] = []
    try:
        boots, steps = parse_wtmp(host.read(WTMP, MOST_BYTES, -MOST_BYTES))
    except FileNotFoundError:
        unknown.append(Unknown("boots before the last one", f"{WTMP} is not there", "absent"))
    except OSError as error:
        unknown.append(Unknown.refused("boots before the last one", f"{WTMP}: {error.strerror or error}"))
    if machine.boot_time is not None:
        boots.append(Boot(machine.boot_time * NS, "/proc/stat", machine.kernel))
    return Boots(tuple(sorted(boots, key=lambda boot: boot.time_ns)), tuple(steps))


def parse_wtmp(data: bytes) -> tuple[list[Boot], list[ClockStep]]:
    """Boot and clock records; a torn record at the end is passed over."""
    boots: list[Boot] = []
    steps: list[ClockStep] = []
    old: int | None = None
    for offset in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
        record = _RECORD.unpack_from(data, offset)
        kind, host, seconds, micros = record[0], record[5], record[9], record[10]
        time = seconds * NS + micros * 1000
        if seconds < _EARLIEST:
            continue
        if kind == BOOT:
            boots.append(Boot(time, WTMP, host.rstrip(b"\0").decode("utf-8", "replace") or None))
        elif kind == OLD_TIME:
            old = time
        elif kind == NEW_TIME and old is not None:
            steps.append(ClockStep(old, time))
            old = None
    return boots, steps
