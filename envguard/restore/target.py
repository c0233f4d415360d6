"""From a REF to what is to be had: a stamp, a fingerprint, a lock file, or what witnesses still know."""

from __future__ import annotations

import os
from collections.abc import Callable

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.acquire.survey import Request, survey
from envguard.errors import InputError, RestoreError, UsageError
from envguard.fingerprint.comparison import fingerprint_of_bundle
from envguard.fingerprint.lock import Lock
from envguard.fingerprint.partial import installed_versions
from envguard.fingerprint.places import Places, Reference
from envguard.fingerprint.reference import resolve
from envguard.fingerprint.requirements import marker_environment
from envguard.model.fingerprint import Fingerprint
from envguard.restore.wanted import Target, Wanted, from_fingerprint
from envguard.restore.witnesses import from_survey

Witnesses = Callable[[Reference], Target]
"""Asks the machine's witnesses what was there when an unstamped checkpoint was saved."""


def find_target(text: str, places: Places, live: Callable[[], Fingerprint], witnesses: Witnesses) -> Target:
    """What `text` means as a goal. Raises `UsageError`, `InputError` and `RestoreError`."""
    found = find_reference(text, places)
    target = target_of(found, live)
    if target is not None:
        return target
    if found.kind == "checkpoint":
        return witnesses(found)
    raise RestoreError(f"{found.label} names no packages that could be brought back")


def target_of(found: Reference, live: Callable[[], Fingerprint]) -> Target | None:
    """What a reference means as a goal by itself; None where only witnesses know. Raises `InputError`."""
    if found.lock is not None:
        return from_lock(found.label, found.lock, live())
    if found.fingerprint is not None:
        dated = found.checkpoint is not None and found.checkpoint.dated
        saved = clock.iso_ns(found.checkpoint.saved_ns) if found.checkpoint is not None and dated else None
        return from_fingerprint(found.label, found.fingerprint, saved)
    if found.kind == "bundle" and found.path is not None:
        return from_fingerprint(found.label, fingerprint_of_bundle(found.path))
    return None


def find_reference(text: str, places: Places) -> Reference:
    """The reference that `text` names, where an environment can go back to it. Raises `UsageError`, `InputError`."""
    if text == "live":
        raise UsageError("`live` is what the environment is already", "name what it should go back to")
    found = resolve(text, places)
    if found.altered:
        raise InputError(
            f"{found.label}: {found.no_stamp}",
            "put the stamp back as it was, or name another REF; without any stamp the witnesses are asked",
        )
    return found


def from_lock(reference: str, lock: Lock, live: Fingerprint) -> Target:
    """The goal that a lock file names, for the environment's own interpreter and platform."""
    wanted, folder = [], os.path.dirname(os.path.abspath(lock.path))
    selected = lock.select(marker_environment(live), installed_versions(live))
    for item in selected.packages:
        wanted.append(
            Wanted(
                name=item.name,
                version=item.version,
                sha256=item.sha256,
                urls=item.urls,
                files=tuple(os.path.normpath(os.path.join(folder, path)) for path in item.files),
                index=item.index,
                editable=_source(folder, item.editable),
                folder=_source(folder, item.directory),
                commit=item.commit,
                witness=f"lock {reference}",
                sure=None if item.sha256 else "the lock gives no hash; by version only",
            )
        )
    wanted += [
        Wanted(name=item.name, version=None, witness=f"lock {reference}", sure=item.why) for item in selected.several
    ]
    return Target(reference=reference, kind="lock", packages=tuple(wanted), notes=lock.notes)


def _source(folder: str, path: str | None) -> str | None:
    """A source folder that a lock in `folder` names, absolute; a URL stands as it is."""
    return os.path.normpath(os.path.join(folder, path)) if path is not None and "://" not in path else path


def ask_witnesses(found: Reference, host: Host, request: Request) -> Target:
    """The goal of an unstamped checkpoint, from everything that this machine still knows."""
    if found.checkpoint is None or not found.checkpoint.dated:
        why = found.no_stamp or "it has no stamp"
        raise RestoreError(
            f"{found.label}: {why}, and when it was saved is not known",
            "`envguard log` lists other moments that can be brought back",
        )
    return from_survey(found.label, found.checkpoint, survey(host, request), found.no_stamp or "it has no stamp")
