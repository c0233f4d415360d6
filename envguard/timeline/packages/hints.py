"""What else tells that a package was there before its install, or confirms when that install was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.pyc_files import Compiled
from envguard.acquire.processes.live_processes import EnvironmentProcess
from envguard.model.evidence import Evidence

SLACK_NS = 2 * clock.NS


@dataclass
class Hints:
    """By package: a reason why an earlier build was there, and evidence by other writers for the time on disk."""

    was_there: dict[str, str] = field(default_factory=dict)
    confirms: dict[str, list[Evidence]] = field(default_factory=dict)


def read_hints(
    installs: Iterable[Install], processes: Iterable[EnvironmentProcess], pycs: Iterable[Compiled]
) -> Hints:
    """From processes that still map what is gone, and from what the interpreter compiled."""
    hints = Hints()
    by_name = {install.name: install for install in installs}
    for process in processes:
        for file in process.stale:
            name = _owner(file.path, by_name)
            install = by_name.get(name or "")
            if install is not None and install.end_ns is not None and install.end_ns > process.started * clock.NS:
                hints.was_there.setdefault(
                    install.name, f"process {process.pid} still maps {file.path} of the build before"
                )
    for compiled in pycs:
        _of_compiled(compiled, by_name.get(compiled.package), hints)
    return hints


def _owner(path: str, installs: dict[str, Install]) -> str | None:
    for install in installs.values():
        if path.startswith(f"{install.location}/{install.name.replace('-', '_')}/"):
            return install.name
    return None


def _of_compiled(compiled: Compiled, install: Install | None, hints: Hints) -> None:
    if install is None or install.end_ns is None or install.start_ns is None:
        return
    if compiled.of_another_source and compiled.written_ns < install.start_ns:
        hints.was_there.setdefault(
            install.name, f"{compiled.path} was compiled from another source before this install"
        )
        return
    # With files of their own (copy, clone, pip) the source's mtime is the install's, and the interpreter noted it
    # in the header. Hard-linked sources bear the time of unpacking: no confirmation then. Nor is what pip compiles
    # before it writes INSTALLER another's word.
    own = install.payload is not None and install.payload.link == "own inode"
    seen = compiled.source_mtime_s * clock.NS
    if (
        own
        and install.start_ns - SLACK_NS <= seen <= install.end_ns + SLACK_NS
        and compiled.written_ns > install.end_ns
    ):
        hints.confirms.setdefault(install.name, []).append(
            Evidence(
                witness="pyc",
                path=compiled.path,
                field="source mtime in its header",
                value=clock.iso(compiled.source_mtime_s, 0),
            )
        )
