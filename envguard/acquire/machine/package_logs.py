"""The distribution's own records: apt's history and dpkg's log, plain and rotated.

Both write local time without an offset. dpkg writes five to eight lines a package: what counts is that a version
was taken up (`upgrade`, `install`) or removed, with the versions as they stand (an epoch is kept; a transitional
package's name says nothing of its version).
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from envguard.acquire.machine.zone import Span, Zone, parse_moment
from envguard.acquire.seam.host import Host
from envguard.model.evidence import Unknown

APT = "/var/log/apt"
DPKG = "/var/log"
MOST_BYTES = 64 << 20
WATCHED = re.compile(
    r"nvidia|cuda|libcudnn|libnccl|linux-image|linux-modules|^gcc|^g\+\+|^libc6$|python3|amdgpu|rocm"
)


@dataclass(frozen=True)
class PackageStep:
    """One package that changed; `old` is None for a new one, `new` for a removed one."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class AptRun:
    """A stanza of apt's history. `error` is its `Error:` line: such a run failed, wholly or in part."""

    path: str
    start: Span
    end: Span | None
    command: str | None
    by: str | None
    steps: tuple[PackageStep, ...]
    error: str | None

    @property
    def intervals(self) -> tuple[tuple[int, int | None], ...]:
        """When it may have run, in ns; an end that was not written is None.

        In the hour that comes twice these are two short intervals, and not the hour between them. Each ends at the
        first reading of its end that does not precede its start.
        """
        if self.end is None:
            return tuple((start, None) for start in self.start.readings)
        ends = self.end.readings
        return tuple((start, next((end for end in ends if end >= start), ends[-1])) for start in self.start.readings)


@dataclass(frozen=True)
class DpkgChange:
    """A package that dpkg took to another version."""

    path: str
    time: Span
    step: PackageStep


def read_apt(host: Host, zone: Zone, unknown: list[Unknown]) -> tuple[AptRun, ...] | None:
    """apt's runs, oldest first; None where there is no history."""
    files = _files(host, APT, "history.log", unknown)
    if files is None:
        return None
    runs = [run for path, text in files for run in parse_apt(path, text, zone)]
    return tuple(sorted(runs, key=lambda run: run.start.start_ns))


def read_dpkg(host: Host, zone: Zone, unknown: list[Unknown]) -> tuple[DpkgChange, ...] | None:
    """dpkg's changes of watched packages, oldest first; None where there is no log."""
    files = _files(host, DPKG, "dpkg.log", unknown)
    if files is None:
        return None
    found = [change for path, text in files for change in parse_dpkg(path, text, zone)]
    return tuple(sorted(found, key=lambda change: (change.time.start_ns, change.step.name)))


def _files(host: Host, folder: str, stem: str, unknown: list[Unknown]) -> list[tuple[str, str]] | None:
    try:
        names = host.listing(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        unknown.append(Unknown.refused(f"{folder}/{stem}", error))
        return []
    found = []
    for name, kind in names:
        if kind != "file" or not re.fullmatch(rf"{re.escape(stem)}(\.\d+(\.gz)?)?", name):
            continue
        path = f"{folder}/{name}"
        try:
            data = host.read(path, MOST_BYTES)
            data = unpack(data) if name.endswith(".gz") else data
        except (OSError, EOFError, zlib.error) as error:
            unknown.append(Unknown.refused(path, error))
            continue
        if len(data) == MOST_BYTES:
            unknown.append(Unknown(path, f"only its first {MOST_BYTES >> 20} MiB were read"))
        found.append((path, data.decode("utf-8", "replace")))
    return found


def unpack(data: bytes, most: int = MOST_BYTES) -> bytes:
    """gunzip, bounded: what unpacks to more is cut. Raises OSError, EOFError, zlib.error."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return stream.read(most)


_STEP = re.compile(r"(?<![^\s:,(])([^\s:,(]+)(?::[\w-]+)?\s+\(([^()]*)\)")


def parse_apt(path: str, text: str, zone: Zone) -> Iterable[AptRun]:
    """The stanzas of one history file; one without a start date tells nothing that could be placed."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(line.partition(":")[::2] for line in stanza.splitlines() if ":" in line)
        start = parse_moment(re.sub(r"\s+", " ", fields.get("Start-Date", "")), zone)
        if start is None:
            continue
        steps: list[PackageStep] = []
        for action in ("Install", "Upgrade", "Downgrade", "Reinstall", "Remove", "Purge"):
            for name, inner in _STEP.findall(fields.get(action, "")):
                steps.append(_apt_step(action, name, [part.strip() for part in inner.split(",")]))
        yield AptRun(
            path=path,
            start=start,
            end=parse_moment(re.sub(r"\s+", " ", fields.get("End-Date", "")), zone),
            command=(fields.get("Commandline") or "").strip() or None,
            by=(fields.get("Requested-By") or "").strip() or None,
            steps=tuple(steps),
            error=(fields.get("Error") or "").strip() or None,
        )


def _apt_step(action: str, name: str, versions: list[str]) -> PackageStep:
    if action in ("Remove", "Purge"):
        return PackageStep(name, versions[0], None)
    if action in ("Upgrade", "Downgrade") and len(versions) > 1:
        return PackageStep(name, versions[0], versions[1])
    return PackageStep(name, None, versions[0])


def parse_dpkg(path: str, text: str, zone: Zone) -> Iterable[DpkgChange]:
    """`DATE TIME install|upgrade|remove NAME:ARCH OLD NEW`: one change each; status lines are its echoes."""
    for line in text.splitlines():
        words = line.split()
        if len(words) < 6 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        name = words[3].partition(":")[0]
        if not WATCHED.search(name):
            continue
        time = parse_moment(f"{words[0]} {words[1]}", zone)
        if time is None:
            continue
        old = None if words[4] == "<none>" else words[4]
        new = None if words[2] in ("remove", "purge") or words[5] == "<none>" else words[5]
        if words[2] == "purge" and old is None:
            continue
        yield DpkgChange(path, time, PackageStep(name, old, new))
