"""What commands that take a REF share: where references are looked up, and who is asked what they do not hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from envguard.cli.options import Session

if TYPE_CHECKING:
    from envguard.fingerprint.comparison import Knowledge
    from envguard.fingerprint.reference import Places
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.screen import Screen


def live_fingerprint(session: Session, screen: Screen, deep: bool = False) -> Callable[[], Fingerprint]:
    """Takes the fingerprint of now when it is first asked for, and only once."""
    from envguard.fingerprint.snapshot import take_live

    own = frozenset({os.getpid(), os.getppid()})

    def take() -> Fingerprint:
        with screen.hashing() as progress:
            return take_live(
                session.project, session.python, deep=deep, own_pids=own, progress=progress, warn=screen.warn
            )

    return cache(take)


def open_places(session: Session, live: Callable[[], Fingerprint]) -> Places:
    """This machine's places, as the session's project configures them."""
    from envguard.acquire.seam.host import LiveHost
    from envguard.fingerprint.reference import Places
    from envguard.state.runs import baseline_file

    lock = session.project.config.lock
    return Places(
        host=LiveHost(),
        start=str(session.start),
        roots=tuple(str(path) for path in session.checkpoint_roots),
        state=str(session.project.state),
        live=live,
        baseline=str(baseline_file(session.project.state)),
        lock=str(session.project.path(lock)) if lock is not None else None,
    )


def open_knowledge(session: Session, live: Callable[[], Fingerprint]) -> Knowledge:
    """This machine's caches and witnesses; neither is read before it is needed."""
    from envguard.fingerprint.comparison import Knowledge, builds_in_caches, known_at
    from envguard.fingerprint.partial import Known
    from envguard.fingerprint.reference import Reference

    def witnesses(reference: Reference) -> tuple[Known, ...]:
        from envguard.cli.timeline import request_of

        return known_at(reference, request_of(session))

    return Knowledge(lambda: builds_in_caches(session.project.config), witnesses, live)
