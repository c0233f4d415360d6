"""Compile caches that stamps of this machine name and that are not there any more: they went after the last one."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from envguard import clock
from envguard.acquire.runs.stamps import Stamp
from envguard.acquire.seam.host import Machine
from envguard.acquire.torch.cache_evidence import seen_here
from envguard.acquire.torch.compile_times import CacheTimes
from envguard.fingerprint.units import size
from envguard.model.event import Event
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import CompileCache
from envguard.timeline.events.happening import make_event

Last = tuple[int, Stamp, CompileCache]


def clearing_events(stamps: Iterable[Stamp], caches: Iterable[CacheTimes], machine: Machine) -> Iterable[Event]:
    """A clearing for each cache that a stamp saw something in and that is gone or holds no file now.

    It went between that stamp and the last change of the folder that held it, which is the removal itself or came
    later; where that folder is gone too, or its time is older, nothing but now bounds it.
    """
    last = _last_seen(stamps, machine)
    for cache in caches:
        if cache.path not in last or (cache.exists and cache.files):
            continue
        seen_ns, stamp, was = last[cache.path]
        parent = cache.parent_changed_ns
        dated = parent is not None and parent >= seen_ns
        now = "it holds no file" if cache.exists else "it is not there"
        proofs = [
            Evidence(witness="stamp", path=stamp.path, field=f"compile_cache {cache.path}", value=was.verdict),
            Evidence(witness="compile-cache", path=cache.path, field="state", value=now),
        ]
        held = size(was.bytes) or "entries"
        text = f"{posixpath.basename(cache.path)} is gone: {stamp.checkpoint.name} was saved with {held} in it"
        end = parent if dated else int(machine.now * clock.NS)
        yield make_event(
            "compile_cache.cleared", cache.path, seen_ns, end, text, proofs, from_=held, open_end=not dated
        )


def _last_seen(stamps: Iterable[Stamp], machine: Machine) -> dict[str, Last]:
    """Path → when a stamp last saw entries in the cache there, which stamp, and what it saw."""
    found: dict[str, Last] = {}
    for stamp in stamps:
        if not stamp.counts or stamp.fingerprint is None:
            continue
        try:
            taken = clock.nanoseconds(stamp.fingerprint.taken_at)
        except ValueError:
            continue  # a stamp whose time is none dates nothing
        for cache in seen_here(stamp.fingerprint, machine):
            if cache.path not in found or found[cache.path][0] < taken:
                found[cache.path] = taken, stamp, cache
    return found
