"""conda's own records of an environment: `conda-meta/history` and one JSON a package.

conda, mamba and micromamba write both; pixi writes the JSONs. conda links files with the times of a package's build,
so that these records, and the births of folders, date an install where its files do not. Package URLs may hold a
token: of a line, what stands behind the channel is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from envguard.acquire.machine.zone import Zone, parse_moment
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.seam.host import Host, NotRecorded, Stat
from envguard.clock import NS
from envguard.model.evidence import Unknown

if TYPE_CHECKING:
    from envguard.acquire.packages.distributions import Distribution

MOST_HISTORY = 64 << 20
MOST_JSON = 64 << 20
# Names that a conda package bears where its distribution has another.
DISTRIBUTIONS = {
    "pytorch": "torch", "pytorch-cpu": "torch", "pytorch-gpu": "torch", "py-opencv": "opencv-python",
    "matplotlib-base": "matplotlib", "python-flatbuffers": "flatbuffers", "faiss-gpu": "faiss", "faiss-cpu": "faiss",
}  # fmt: skip
_SITE = re.compile(r"(.+)/lib/python[^/]+/site-packages")
_HEAD = re.compile(r"==>\s*(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*<==")
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+?)(?:\.conda|\.tar\.bz2)?")
_ZONES_NS = 900 * NS
_ALIKE_NS = 120 * NS


@dataclass(frozen=True)
class CondaRecord:
    """One `conda-meta/NAME-VERSION-BUILD.json`; conda writes it when the package has been linked."""

    name: str
    """Of the distribution, normalised."""
    version: str
    build: str
    path: str
    stat: Stat


@dataclass(frozen=True)
class CondaStep:
    """A line of a revision in `conda-meta/history`: a package that it removed or installed, at `time_ns`."""

    path: str
    line: int
    what: Literal["removed", "installed"]
    name: str
    """Of the distribution, normalised."""
    version: str
    build: str
    time_ns: int


class CondaRecords:
    """The JSONs of the environments that distributions lie in, each folder listed once."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._known: dict[str, tuple[CondaRecord, ...]] = {}

    def of(self, distribution: Distribution) -> CondaRecord | None:
        """The record of the package that brought a distribution; None where conda did not. Raises OSError."""
        match = _SITE.fullmatch(distribution.location)
        if match is None or distribution.installer in ("pip", "uv"):
            return None
        prefix = match.group(1)
        if prefix not in self._known:
            self._known[prefix] = read_records(self.host, prefix)
        same = [record for record in self._known[prefix] if _same_version(record.version, distribution.version)]
        named = next((record for record in same if record.name == distribution.name), None)
        return named or next((record for record in same if self._lists(record, distribution)), None)

    def _lists(self, record: CondaRecord, distribution: Distribution) -> bool:
        """Whether a package of another name brought it: `files` of its JSON name the dist-info."""
        folder = distribution.directory.removeprefix(f"{distribution.location}/")
        return f"site-packages/{folder}/".encode() in self.host.read(record.path, MOST_JSON)


def read_records(host: Host, prefix: str) -> tuple[CondaRecord, ...]:
    """The JSONs of one environment; none where it is not conda's. Raises OSError where they cannot be seen."""
    folder = f"{prefix}/conda-meta"
    try:
        names = [name for name, kind in host.listing(folder) if name.endswith(".json") and kind != "directory"]
    except (FileNotFoundError, NotADirectoryError, NotRecorded):
        return ()  # a bundle in which nobody asked is of no conda environment, or of an older envguard
    found = []
    for name in names:
        match, stat = _FILE.fullmatch(name.removesuffix(".json")), host.find(f"{folder}/{name}")
        if match is not None and stat is not None:
            found.append(
                CondaRecord(_name(match["name"]), match["version"], match["build"], f"{folder}/{name}", stat)
            )
    return tuple(found)


def read_history(host: Host, prefix: str, zone: Zone, unknown: list[Unknown]) -> tuple[CondaStep, ...]:
    """Every step of every revision, in the file's order; none where there is no history."""
    path = f"{prefix}/conda-meta/history"
    try:
        data = host.read(path, MOST_HISTORY)
        records = read_records(host, prefix)
    except (FileNotFoundError, NotADirectoryError, NotRecorded):
        return ()
    except OSError as error:
        unknown.append(Unknown.refused(path, error))
        return ()
    if len(data) == MOST_HISTORY:
        unknown.append(Unknown(path, f"only its first {MOST_HISTORY >> 20} MiB were read"))
    return tuple(parse_history(path, data.decode("utf-8", "replace"), zone, records))


def parse_history(path: str, text: str, zone: Zone, records: Iterable[CondaRecord] = ()) -> Iterator[CondaStep]:
    """The steps of a history. Its times have no offset: where the JSON of a package shows that they are of another
    zone (an image that was built elsewhere), the JSON's time is taken."""
    written = {(record.name, record.version, record.build): record.stat.mtime_ns for record in records}
    time_ns: int | None = None
    revision: list[CondaStep] = []
    for number, line in enumerate(text.splitlines(), 1):
        if (head := _HEAD.fullmatch(line.strip())) is not None:
            yield from _in_zone(revision, written)
            moment = parse_moment(head.group(1), zone)
            time_ns, revision = moment.start_ns if moment is not None else None, []
        elif time_ns is not None and line.strip() and not line.startswith("#"):
            step = _step(path, number, line.strip(), time_ns)
            revision += [step] if step is not None else []
    yield from _in_zone(revision, written)


def _step(path: str, number: int, line: str, time_ns: int) -> CondaStep | None:
    """`+conda-forge/linux-64::torch-2.11.0-cuda130_0`, `-defaults::x-1.0-0`, `+x-1.0-0`; without a sign, a package of
    the state that an old conda wrote whole."""
    match = _FILE.fullmatch(line.lstrip("+-").rpartition("::")[2].rpartition("/")[2])
    if match is None:
        return None
    what: Literal["removed", "installed"] = "removed" if line.startswith("-") else "installed"
    return CondaStep(path, number, what, _name(match["name"]), match["version"], match["build"], time_ns)


def _in_zone(revision: list[CondaStep], written: dict[tuple[str, str, str], int]) -> Iterator[CondaStep]:
    """The steps with the shift of whole quarters of an hour by which the JSONs of the revision were written apart."""
    shift = 0
    for step in revision:
        at = written.get((step.name, step.version, step.build))
        if step.what == "installed" and at is not None:
            quarters = round((at - step.time_ns) / _ZONES_NS) * _ZONES_NS
            if quarters and abs(at - step.time_ns - quarters) < _ALIKE_NS and abs(quarters) <= 26 * 3600 * NS:
                shift = quarters
            break
    for step in revision:
        yield CondaStep(step.path, step.line, step.what, step.name, step.version, step.build, step.time_ns + shift)


def _name(conda: str) -> str:
    name = canonical(conda)
    return DISTRIBUTIONS.get(name, name)


def _same_version(conda: str, version: str | None) -> bool:
    """conda has no `+` in a version, and `_` where PEP 440 has `-`."""
    return version is not None and conda in (version, version.partition("+")[0], version.replace("+", "_"))
