"""What commands that take a REF share: where references are looked up, and who is asked what they do not hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from envguard.cli.options import Session

if TYPE_CHECKING:
    from envguard.acquire.packages.distributions import Distributions
    from envguard.acquire.packages.environment import Environment
    from envguard.acquire.seam.host import Host
    from envguard.fingerprint.comparison import Knowledge
    from envguard.fingerprint.places import Places, Reference
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.screen import Screen


def live_fingerprint(
    session: Session,
    screen: Screen,
    deep: bool = False,
    witnesses: Sequence[Fingerprint] = (),
    found: tuple[Environment, Distributions] | None = None,
) -> Callable[[], Fingerprint]:
    """Takes the fingerprint of now when it is first asked for, and only once; `found` is what is installed, where
    that was read just before.

    By then `witnesses` holds the fingerprints that it will be compared with: it looks for compile caches where they
    had theirs, too.
    """
    from envguard.fingerprint.snapshot import take_live

    own = frozenset({os.getpid(), os.getppid()})

    def take() -> Fingerprint:
        with screen.hashing() as progress:
            return take_live(
                session.project,
                session.python,
                deep=deep,
                own_pids=own,
                progress=progress,
                warn=screen.warn,
                witnesses=tuple(witnesses),
                found=found,
            )

    return cache(take)


def resolve_all(texts: Sequence[str], places: Places, witnesses: list[Fingerprint]) -> list[Reference]:
    """The references that `texts` name, in their order; without any the default one. `live` is taken last, and sees
    in `witnesses` what the others hold."""
    from envguard.fingerprint.reference import resolve, resolve_default

    named = {text: resolve(text, places) for text in texts if text != "live"}
    found = named if texts else {"": resolve_default(places)}
    witnesses += [each.fingerprint for each in found.values() if each.fingerprint is not None]
    if not texts:
        return [*found.values()]
    return [named[text] if text != "live" else resolve("live", places) for text in texts]


def elsewhere(found: Sequence[Reference], live: Fingerprint, host: Host) -> Iterator[str]:
    """Which references are of another environment of this machine than the one that is looked at."""
    from envguard.acquire.runs.elsewhere import said_of_another

    said = (said_of_another(host, item.label, item.fingerprint, live.python.prefix) for item in found)
    yield from filter(None, said)


def newest_stamp(places: Places, screen: Screen) -> tuple[Fingerprint, ...]:
    """The stamp of the newest checkpoint that was stamped on this machine; none where there is none, and none where
    one cannot be read, which is said."""
    from envguard.acquire.torch.cache_evidence import taken_here
    from envguard.errors import InputError
    from envguard.fingerprint.reference import stamped

    machine = places.host.machine()
    try:
        for found in stamped(places):
            if found.fingerprint is not None and taken_here(found.fingerprint, machine):
                return (found.fingerprint,)
    except InputError as error:
        screen.warn(f"where the newest run kept its compile cache is not known: {error}")
    return ()


def open_places(session: Session, live: Callable[[], Fingerprint]) -> Places:
    """This machine's places, as the session's project configures them."""
    from envguard.acquire.seam.host import LiveHost
    from envguard.fingerprint.places import Places
    from envguard.state.runs import baseline_file

    lock = session.project.config.lock
    return Places(
        host=LiveHost(),
        start=str(session.start),
        roots=tuple(str(path) for path in session.checkpoint_roots),
        journaled=session.journaled,
        state=str(session.project.state),
        live=live,
        baseline=str(baseline_file(session.project.state)),
        lock=str(session.project.path(lock)) if lock is not None else None,
    )


def open_knowledge(session: Session, live: Callable[[], Fingerprint]) -> Knowledge:
    """This machine's caches and witnesses; neither is read before it is needed."""
    from envguard.fingerprint.comparison import Knowledge, builds_in_caches
    from envguard.fingerprint.partial import Recalled

    def witnesses(reference: Reference) -> Recalled:
        from envguard.cli.timeline import request_of
        from envguard.timeline.known import known_at

        return known_at(reference, request_of(session))

    return Knowledge(lambda: builds_in_caches(session.project.config), witnesses, live)
