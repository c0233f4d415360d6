"""Fingerprinting from a bundle, and what `collect` has to ask so that a bundle can answer it."""

from __future__ import annotations

from envguard.acquire.gathering import Also, OpenBundle
from envguard.acquire.packages.distributions import Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.acquire.survey import Request, Survey
from envguard.fingerprint import snapshot
from envguard.fingerprint.places import Places
from envguard.fingerprint.reference import no_live, stamps_of_newest
from envguard.fingerprint.verify import with_unseen
from envguard.fingerprint.verify_live import verify_on
from envguard.model.drift import VerifyReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.state.digests import Digests


def fingerprint_bundle(opened: OpenBundle) -> Fingerprint:
    """The fingerprint of the environment that a bundle was gathered from. Raises `InputError`."""
    return fingerprint_on(opened.host, opened.request)


def fingerprint_on(
    host: Host,
    request: Request,
    witnesses: tuple[Fingerprint, ...] = (),
    found: tuple[Environment, Distributions] | None = None,
) -> Fingerprint:
    """The fingerprint as `snapshot` takes it, on any host; nothing is kept of what was hashed. Compile caches are
    looked for where `witnesses` had theirs, too; `found` is what is installed, where that was read just before."""
    asked = snapshot.Request(
        start=request.start,
        python=request.python,
        root=request.root,
        config=request.config,
        own_pids=request.own_pids,
        witnesses=witnesses,
    )
    return snapshot.take(host, asked, Digests(), found=found)


def verify_bundle(opened: OpenBundle, packages: tuple[str, ...]) -> VerifyReport:
    """`verify` of the environment that a bundle was gathered from, against the stamps in the bundle.

    What `collect` did not hash cannot be hashed afterwards: it is unverifiable, and said to be. Raises `UsageError`.
    """
    request = opened.request
    places = Places(
        host=opened.host, start=request.start, roots=request.checkpoint_roots, state=request.state or "",
        live=no_live, baseline=None, lock=None, journaled=request.journaled,
    )  # fmt: skip
    unseen: list[Unknown] = []
    report = verify_on(
        opened.host,
        request.start,
        request.python,
        request.config,
        packages,
        False,
        stamps_of_newest(places, unseen),
        Digests(),
    )
    return with_unseen(report, unseen)


def _ask_verification(host: Host, request: Request, seen: Survey) -> None:
    verify_on(host, request.start, request.python, request.config, (), False, {}, Digests())


def _ask_fingerprint(host: Host, request: Request, seen: Survey) -> None:
    # `timeline` holds the environment against any of the stamps, and looks where each had its compile caches.
    stamps = (stamp.fingerprint for stamp in seen.stamps if stamp.counts)
    fingerprint_on(host, request, tuple(each for each in stamps if each is not None))


QUESTIONS: tuple[Also, ...] = (_ask_fingerprint, _ask_verification)
"""Readers beside the survey whose questions a bundle answers."""
