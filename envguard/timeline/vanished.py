"""Packages that an earlier fingerprint of this environment has and that are no longer there.

An uninstall takes the dist-info with it, and nothing on disk tells of it: what remains is that a stamp or a snapshot
knew the package. The folder that held it tells by when it had gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.survey import Survey
from envguard.model.event import LOST, Event
from envguard.model.evidence import Evidence, Unknown
from envguard.model.fingerprint import Fingerprint, Package
from envguard.timeline.happening import make_event
from envguard.timeline.restored import Restored
from envguard.timeline.sightings import Recorded, own_fingerprints


@dataclass(frozen=True)
class _Look:
    """The packages that lay on disk by a fingerprint, by name."""

    time_ns: int
    prefix: str
    packages: Mapping[str, Package]
    proof: Evidence


def vanished(
    survey: Survey, told: Collection[str], restored: Iterable[Restored]
) -> tuple[list[Event], list[Unknown]]:
    """One event a package, between the last fingerprint that has it and the first sign that it had gone.

    `told` are names of which another witness told the removal. What envguard's own restore took away is no news.
    While an installer is at work, what is not there may be about to come: that is unknown.
    """
    if any(item.what.startswith("packages in ") for item in survey.distributions.unknown):
        return [], []  # what lies in a folder that cannot be read is not gone
    present = {dist.name for dist in survey.distributions.found} | set(told)
    looks = sorted((_look(item) for item in own_fingerprints(survey)), key=lambda look: look.time_ns)
    last: dict[str, tuple[int, _Look]] = {}
    for number, look in enumerate(looks):
        last.update((name, (number, look)) for name in look.packages if name not in present)
    away = {item.name: item.done_ns for item in restored if item.version is None}
    now = int(survey.machine.now * clock.NS)
    events = []
    for name, (number, look) in sorted(last.items()):
        package = look.packages[name]
        folder = _folder(package, look, survey.env.prefix)
        if folder not in survey.env.site or away.get(name, 0) > look.time_ns:
            continue
        after = looks[number + 1] if number + 1 < len(looks) else None
        events.append(_event(package, look, after, survey.site_changes.get(folder), now))
    if survey.busy is not None:
        return [], [Unknown(f"{LOST}{event.subject}", survey.busy) for event in events]
    return events, []


def _look(item: Recorded) -> _Look:
    return _Look(item.time_ns, item.fingerprint.python.environment, _on_disk(item.fingerprint), item.proof)


def _folder(package: Package, look: _Look, prefix: str) -> str:
    """Where it lay, by the name that this environment goes by here."""
    inner = (package.location or "").removeprefix(f"{look.prefix}/")
    return package.location or "" if inner == package.location else f"{prefix}/{inner}"


def _on_disk(fingerprint: Fingerprint) -> Mapping[str, Package]:
    """A process may have loaded what was no longer there when it stamped."""
    gone = {item.what for item in fingerprint.diverged or () if item.disk is None}
    return {package.name: package for package in fingerprint.packages if package.name not in gone}


def _event(package: Package, look: _Look, after: _Look | None, changed_ns: int | None, now: int) -> Event:
    proofs = [look.proof]
    ends = [after.time_ns] if after is not None else []
    if after is not None:
        proofs.append(after.proof)
    if changed_ns is not None and look.time_ns < changed_ns <= min([*ends, now]):
        ends = [changed_ns]
        value = f"{clock.iso_ns(changed_ns)} (it no longer holds {package.name})"
        proofs.append(Evidence(witness="dist-info", path=package.location or "", field="mtime", value=value))
    version = f" {package.version}" if package.version else ""
    return make_event(
        "package.removed",
        package.name,
        look.time_ns,
        ends[0] if ends else now,
        f"{package.name}{version} removed",
        proofs,
        confidence="strong",
        from_=package.version,
        open_end=not ends,
    )
