"""What a restore aims at: packages by build, from a stamp, a lock file, or from what witnesses still know."""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.acquire.seam.address import Address
from envguard.fingerprint.package_changes import full_version
from envguard.model.fingerprint import Fingerprint, Python


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One package to have. `build` is a build identity, `sha256` those of its wheels; without either only the
    version is known, and `sure` says how far that goes."""

    name: str
    version: str | None
    """As METADATA declares it."""
    full_version: str | None = None
    """With the local part that the build itself says, where that is more than METADATA does."""
    build: str | None = None
    sha256: tuple[str, ...] = ()
    urls: tuple[Address, ...] = ()
    files: tuple[str, ...] = ()
    """Absolute paths of wheels that a lock names."""
    index: Address | None = None
    editable: str | None = None
    folder: str | None = None
    """The source folder that a lock has it built from, absolute; a lock gives no hash of such a build."""
    commit: str | None = None
    source: str | None = None
    """Digest of the code that import took from an editable install, or of what has no RECORD."""
    departs: tuple[str, ...] = ()
    """Files that were not as RECORD says when the stamp was taken; no wheel brings those back."""
    edited: str | None = None
    """The build as the stamp saw it, with those files: what has it is as wanted, though no source does."""
    unread: tuple[str, ...] = ()
    """Files that could not be read when the stamp was taken: whether they were as RECORD says is not known."""
    witness: str
    sure: str | None = None

    @property
    def shown(self) -> str | None:
        """The version as a person is told it."""
        return self.full_version or self.version


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The goal: `packages` to have, for the interpreter `python` where it is known."""

    reference: str
    kind: Literal["stamp", "lock", "witnesses"]
    packages: tuple[Wanted, ...]
    python: Python | None = None
    fingerprint: Fingerprint | None = None
    moment: str | None = None
    """The moment that is gone back to, ISO: when the checkpoint was saved, else when the fingerprint was taken."""
    complete: bool = True
    """Whether every package of the environment is named, so that `--exact` can tell what is too much."""
    newer: tuple[str, ...] = ()
    """Where it is not: packages that were certainly not there."""
    notes: tuple[str, ...] = ()


def from_fingerprint(reference: str, taken: Fingerprint, moment: str | None = None) -> Target:
    """The goal that a stamp names; of two distributions of one name the one that import picked."""
    wanted: dict[str, Wanted] = {}
    for package in taken.packages:
        wanted.setdefault(
            package.name,
            Wanted(
                name=package.name,
                version=package.version,
                full_version=full_version(taken, package),
                build=package.record or package.build,
                editable=package.editable,
                commit=package.commit,
                source=package.source,
                departs=package.departs,
                edited=package.build if package.departs else None,
                unread=package.unread,
                witness=f"stamp {taken.id}",
            ),
        )
    return Target(
        reference=reference,
        kind="stamp",
        packages=tuple(wanted.values()),
        python=taken.python,
        fingerprint=taken,
        moment=moment or taken.taken_at,
    )
