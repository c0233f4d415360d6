"""Whole lists of what was installed, by stamps and the journal: the one witness of what was *not* there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from envguard import clock
from envguard.acquire.survey import Survey
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import Fingerprint
from envguard.timeline.previous import Sighting
from envguard.timeline.transactions import Version


@dataclass(frozen=True)
class Record:
    """One fingerprint of this environment at a moment (ns): its packages by name, and its Python."""

    time_ns: int
    fingerprint: Fingerprint
    proof: Evidence
    own: bool
    """Of this environment on this machine; else of one that is not there any more, perhaps this one before it was
    moved."""
    there: Mapping[str, Sighting]
    """What lay in the environment's own folders: what PYTHONPATH added is not its own."""
    folders: Mapping[str, str]
    """Where each of them lay, by the name that the environment goes by here."""

    @property
    def python(self) -> str | None:
        return self.fingerprint.python.version

    def sightings(self) -> Iterator[Sighting]:
        """Everything that it names, once."""
        return _sightings(self.fingerprint, self.time_ns, self.proof, own=self.own)


def read_records(survey: Survey) -> tuple[Record, ...]:
    """The stamps and snapshots of this environment, in the order of their times."""
    return tuple(sorted((*_stamps(survey), *_journal(survey)), key=lambda record: record.time_ns))


def own_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """Those that tell what was *not* there, too: of another place or machine that is no word on this one."""
    return tuple(record for record in records if record.own)


def _stamps(survey: Survey) -> Iterator[Record]:
    for stamp in survey.stamps:
        if stamp.counts and stamp.fingerprint is not None and stamp.path not in survey.elsewhere:
            proof = Evidence(witness="stamp", path=stamp.path, field="packages", value=stamp.fingerprint.id)
            yield _record(survey, stamp.fingerprint, stamp.checkpoint.saved_ns, proof)


def _journal(survey: Survey) -> Iterator[Record]:
    for entry in survey.journal:
        raw = entry.fields.get("fingerprint")
        if entry.kind != "snapshot" or not isinstance(raw, dict):
            continue
        try:
            fingerprint = msgspec.convert(raw, Fingerprint)
            time_ns = clock.nanoseconds(fingerprint.taken_at)
        except (msgspec.ValidationError, ValueError):
            continue  # of a version that this one does not read
        if fingerprint.python.environment in survey.prefixes:
            proof = Evidence(witness="journal", path=entry.path, field=f"line {entry.line}", value=fingerprint.id)
            yield _record(survey, fingerprint, time_ns, proof)


def _record(survey: Survey, fingerprint: Fingerprint, time_ns: int, proof: Evidence) -> Record:
    environment, system = fingerprint.python.environment, fingerprint.system
    here = system is None or system.host == survey.machine.host
    own = here and environment in survey.prefixes
    # What a process had loaded may have been gone from disk by the time at which it stamped.
    passing = {item.what for item in fingerprint.diverged or ()}
    inside = {
        item.name: f"{survey.env.prefix}/{item.location.removeprefix(f'{environment}/')}"
        for item in fingerprint.packages
        if item.location.startswith(f"{environment}/") and item.name not in passing
    }
    seen = _sightings(fingerprint, time_ns, proof, own=own)
    there = {item.name: item for item in seen if item.name in inside}
    return Record(time_ns, fingerprint, proof, own, there, inside)


def _sightings(fingerprint: Fingerprint, time_ns: int, proof: Evidence, *, own: bool) -> Iterator[Sighting]:
    """Each package of a fingerprint once: the first of a name is the one that import picked."""
    torch = fingerprint.torch
    seen: set[str] = set()
    for package in fingerprint.packages:
        if package.version is None or package.name in seen:
            continue
        seen.add(package.name)
        is_torch = package.name == "torch" and torch is not None
        full = (torch.version if is_torch and torch is not None else None) or package.version
        yield Sighting(
            name=package.name,
            version=Version(package.version, full),
            time_ns=time_ns,
            source=proof.witness,
            evidence=(proof,),
            best="strong" if own else "weak",
            build=package.build,
            cuda=torch.cuda if is_torch and torch is not None else None,
            git_version=torch.git_version if is_torch and torch is not None else None,
            prefix=None if own else fingerprint.python.environment,
        )


def record_at(records: Iterable[Record], moment_ns: int) -> Record | None:
    """The last record up to a moment."""
    return next((record for record in reversed(tuple(records)) if record.time_ns <= moment_ns), None)
