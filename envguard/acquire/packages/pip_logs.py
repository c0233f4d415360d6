"""pip's `--log` files: what one run uninstalled and installed, and when. uv writes none.

pip writes lines such as `2026-05-18T20:52:11,123   Found existing installation: torch 2.11.0+cu128`, in local time,
and without the stamp where an old pip wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.machine.zone import Span, Zone, parse_moment
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import lines
from envguard.model.evidence import Unknown

NAMES = ("pip.log", "pip-log.txt", "pip_install.log", "pip-debug.log")
_LINE = re.compile(r"^(?:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[,.]\d+)?)\s+)?\s*(.*)$")
_FOUND = re.compile(r"Found existing installation: (\S+) (\S+)")
_GONE = re.compile(r"Successfully uninstalled (\S+)-([^-\s]+)$")
_DONE = re.compile(r"Successfully installed (.+)$")


@dataclass(frozen=True)
class PipStep:
    """A version that pip met (`found`), removed (`removed`) or put in (`installed`)."""

    path: str
    line: int
    what: str
    name: str
    version: str
    time: Span | None


def read_pip_logs(
    host: Host, places: tuple[str, ...], named: str | None, zone: Zone, unknown: list[Unknown]
) -> tuple[PipStep, ...]:
    """Steps of all pip logs of the usual names in `places`, and of the one that PIP_LOG names."""
    paths = [f"{place}/{name}" for place in places for name in NAMES]
    found: list[PipStep] = []
    for path in dict.fromkeys([*([named] if named else []), *paths]):
        try:
            found += parse_pip_log(path, lines(host, path), zone)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unknown.append(Unknown.refused(f"pip log {path}", error))
    return tuple(found)


def parse_pip_log(path: str, numbered: Iterable[tuple[int, str]], zone: Zone) -> list[PipStep]:
    """The telling lines of one log."""
    found: list[PipStep] = []
    for number, line in numbered:
        if "nstall" not in line:
            continue
        match = _LINE.match(line)
        assert match is not None
        time = parse_moment(match.group(1), zone) if match.group(1) else None
        message = match.group(2)
        if (old := _FOUND.search(message)) is not None:
            found.append(PipStep(path, number, "found", canonical(old.group(1)), old.group(2), time))
        elif (gone := _GONE.search(message)) is not None:
            found.append(PipStep(path, number, "removed", canonical(gone.group(1)), gone.group(2), time))
        elif (done := _DONE.search(message)) is not None:
            for word in done.group(1).split():
                name, dash, version = word.rpartition("-")
                if dash and version[:1].isdigit():
                    found.append(PipStep(path, number, "installed", canonical(name), version, time))
    return found
