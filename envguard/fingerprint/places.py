"""What a REF leads to, and where it is looked up."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from envguard.acquire.runs.checkpoint_search import Checkpoints, find_checkpoints
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.own_records import stamped_paths
from envguard.acquire.seam.host import Host
from envguard.fingerprint.lock import Lock
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint

ReferenceKind = Literal["checkpoint", "fingerprint", "lock", "bundle", "live", "journal", "baseline"]


@dataclass(frozen=True)
class Reference:
    """What a REF leads to. `fingerprint` is None for an unstamped checkpoint (`no_stamp` says why), for a lock
    (`lock` is set) and for a bundle (its environment is fingerprinted by whoever opens it)."""

    label: str
    kind: ReferenceKind
    path: str | None = None
    fingerprint: Fingerprint | None = None
    checkpoint: Checkpoint | None = None
    lock: Lock | None = None
    no_stamp: str | None = None
    altered: bool = False
    """There is a stamp, and it is not as it was written: nobody may act on it, nor as if it were not there."""
    unread: bool = False
    """There is a stamp, and what it says of the checkpoint is not known: nobody may act as if it were not there."""
    undecided: tuple[Unknown, ...] = ()
    """What keeps this reference from being, for certain, the one that was meant."""
    settings: Mapping[str, str] | None = None
    """Plain hyper-parameters that the run wrote beside the checkpoint."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Places:
    """Where references are looked up: absolute paths on `host`. `live` takes the fingerprint of now when asked."""

    host: Host
    start: str
    roots: tuple[str, ...]
    state: str
    live: Callable[[], Fingerprint]
    baseline: str | None = None
    lock: str | None = None
    journaled: bool = True
    """Stamps that the journal knows of are looked up, too: not where a person said where to look."""
    found: Checkpoints | None = None
    """What a look at `roots` found; None: each question is a look of its own."""

    def path(self, text: str) -> str:
        return posixpath.normpath(posixpath.join(self.start, _expanded(text, self.host)))

    def checkpoints(self) -> Checkpoints:
        if self.found is not None:
            return self.found
        unknown: list[Unknown] = []
        stamped = stamped_paths(self.host, self.state, unknown) if self.journaled else ()
        found = find_checkpoints(self.host, self.roots, stamped=stamped)
        return replace(found, unknown=(*found.unknown, *unknown))

    def looked(self) -> Places:
        """The same after one look, for whoever asks several times in a moment: a look may be a walk through hundreds
        of thousands of files."""
        return replace(self, found=self.checkpoints())


def _expanded(text: str, host: Host) -> str:
    return f"{host.machine().home}{text[1:]}" if text == "~" or text.startswith("~/") else text
