"""Fingerprinting from a bundle, and what `collect` has to ask so that a bundle can answer it."""

from __future__ import annotations

from envguard.acquire.gathering import Also, OpenBundle
from envguard.acquire.host import Host
from envguard.acquire.survey import Request
from envguard.fingerprint import snapshot
from envguard.model.fingerprint import Fingerprint
from envguard.state.digests import Digests


def fingerprint_bundle(opened: OpenBundle) -> Fingerprint:
    """The fingerprint of the environment that a bundle was gathered from. Raises `InputError`."""
    return fingerprint_on(opened.host, opened.request)


def fingerprint_on(host: Host, request: Request) -> Fingerprint:
    """The fingerprint as `snapshot` takes it, on any host; nothing is kept of what was hashed."""
    asked = snapshot.Request(
        start=request.start,
        python=request.python,
        root=request.root,
        config=request.config,
        own_pids=request.own_pids,
    )
    return snapshot.take(host, asked, Digests())


def _ask_fingerprint(host: Host, request: Request) -> None:
    fingerprint_on(host, request)


QUESTIONS: tuple[Also, ...] = (_ask_fingerprint,)
"""Readers beside the survey whose questions a bundle answers."""
