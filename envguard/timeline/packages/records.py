"""Whole lists of what was installed, by stamps and the journal: the one witness of what was *not* there."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.runs.stamps import Stamp
from envguard.acquire.survey import Survey
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import Fingerprint, Package
from envguard.timeline.packages.previous import Sighting
from envguard.timeline.packages.transactions import Version


@dataclass(frozen=True, slots=True)
class Named:
    """The packages of a fingerprint by name; one object for all records that list the same."""

    packages: Mapping[str, Package]
    """The first of each name, which is the one that import picked; none without a version."""
    there: Mapping[str, str]
    """What lay in the environment's own folders (what PYTHONPATH added is not its own), and where, by the name that
    the environment goes by here."""
    passing: frozenset[str] = frozenset()
    """What a process had loaded, and no longer lay there."""


@dataclass(frozen=True, slots=True)
class Record:
    """One fingerprint of this environment at a moment (ns): its packages by name, and its Python."""

    time_ns: int
    fingerprint: Fingerprint
    proof: Evidence
    own: bool
    """Of this environment on this machine; else of one that is not there any more, perhaps this one before it was
    moved."""
    named: Named

    @property
    def there(self) -> Mapping[str, str]:
        """What lay in the environment's own folders, and where."""
        return self.named.there

    @property
    def python(self) -> str | None:
        return self.fingerprint.python.version

    def sighting(self, name: str) -> Sighting | None:
        """What it says of one package; made when asked for, since stamps say the same again and again."""
        package, torch = self.named.packages.get(name), self.fingerprint.torch
        if package is None or package.version is None:
            return None
        is_torch = name == "torch" and torch is not None
        full = (torch.version if is_torch and torch is not None else None) or package.version
        return Sighting(
            name=name,
            version=Version(package.version, full),
            time_ns=self.time_ns,
            source=self.proof.witness,
            evidence=(self.proof,),
            best="strong" if self.own else "weak",
            build=package.identity,
            contents=package.build,
            cuda=torch.cuda if is_torch and torch is not None else None,
            git_version=torch.git_version if is_torch and torch is not None else None,
            prefix=None if self.own else self.fingerprint.python.environment,
            loaded=name in self.named.passing,
        )

    def has(self, name: str, build: str | None) -> bool:
        """Whether it has a package in the environment's own folders in that very build."""
        seen = self.sighting(name) if name in self.there else None
        return seen is not None and seen.build is not None and seen.build == build


def read_records(survey: Survey) -> tuple[Record, ...]:
    """The stamps and snapshots of this environment, in the order of their times."""
    known: dict[object, Named] = {}
    found = (
        _record(survey, fingerprint, time_ns, proof, known)
        for fingerprint, time_ns, proof in (*_stamps(survey), *_journal(survey))
    )
    return tuple(sorted(found, key=lambda record: record.time_ns))


def own_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """Those that tell what was *not* there, too: of another place or machine that is no word on this one."""
    return tuple(record for record in records if record.own)


def _stamps(survey: Survey) -> Iterator[tuple[Fingerprint, int, Evidence]]:
    for stamp in survey.stamps:
        if stamp.counts and stamp.fingerprint is not None and stamp.path not in survey.elsewhere:
            proof = Evidence(witness="stamp", path=stamp.path, field="packages", value=stamp.fingerprint.id)
            yield stamp.fingerprint, taken_ns(stamp), proof


def taken_ns(stamp: Stamp) -> int:
    """The moment that a stamp speaks of (ns): when it was taken, by its own word; its checkpoint's time where it has
    none. The files of a copy have the time of the copying."""
    try:
        return (
            clock.nanoseconds(stamp.fingerprint.taken_at)
            if stamp.fingerprint is not None
            else stamp.checkpoint.saved_ns
        )
    except ValueError:
        return stamp.checkpoint.saved_ns


def _journal(survey: Survey) -> Iterator[tuple[Fingerprint, int, Evidence]]:
    for entry in survey.journal:
        taken = entry.fingerprint
        if taken is None or taken.python.environment not in survey.prefixes:
            continue
        try:
            time_ns = clock.nanoseconds(taken.taken_at)
        except ValueError:
            continue
        yield taken, time_ns, Evidence(witness="journal", path=entry.path, field=f"line {entry.line}", value=taken.id)


def _record(
    survey: Survey, fingerprint: Fingerprint, time_ns: int, proof: Evidence, known: dict[object, Named]
) -> Record:
    environment, system = fingerprint.python.environment, fingerprint.system
    here = system is None or system.host == survey.machine.host
    # What a process had loaded may have been gone from disk by the time at which it stamped.
    passing = frozenset(item.what for item in fingerprint.diverged or ())
    # Equal lists are one object (`envguard.acquire.runs.shared`), which the fingerprint keeps alive.
    key = (id(fingerprint.packages), environment, passing)
    if key not in known:
        known[key] = _named(fingerprint, survey.env.prefix, passing)
    return Record(time_ns, fingerprint, proof, here and environment in survey.prefixes, known[key])


def _named(fingerprint: Fingerprint, prefix: str, passing: frozenset[str]) -> Named:
    inside = f"{fingerprint.python.environment}/"
    packages: dict[str, Package] = {}
    there: dict[str, str] = {}
    for item in fingerprint.packages:
        if item.version is not None:
            packages.setdefault(item.name, item)
        if item.location.startswith(inside) and item.name not in passing:
            there[item.name] = f"{prefix}/{item.location.removeprefix(inside)}"
    return Named(packages, {name: folder for name, folder in there.items() if name in packages}, passing)


def record_at(records: Sequence[Record], moment_ns: int) -> Record | None:
    """The last record up to a moment, of records in the order of their times."""
    count = bisect.bisect_right(records, moment_ns, key=lambda record: record.time_ns)
    return records[count - 1] if count else None
