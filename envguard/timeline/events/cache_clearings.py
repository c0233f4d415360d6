"""Compile caches that stamps and snapshots of this machine name and that hold nothing any more: they went after the
last one."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.runs.own_records import Entry
from envguard.acquire.runs.stamps import Stamp
from envguard.acquire.seam.host import Machine
from envguard.acquire.torch.cache_evidence import seen_here
from envguard.acquire.torch.compile_times import CacheTimes
from envguard.fingerprint.units import size
from envguard.model.event import Event
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import CompileCache
from envguard.timeline.events.happening import make_event


@dataclass(frozen=True)
class _Look:
    """A fingerprint that saw something in a cache: when, whose word it is, and how a sentence names it."""

    time_ns: int
    proof: Evidence
    label: str
    cache: CompileCache


def clearing_events(
    stamps: Iterable[Stamp], caches: Iterable[CacheTimes], machine: Machine, journal: Iterable[Entry] = ()
) -> Iterable[Event]:
    """A clearing for each cache that a stamp or a snapshot saw something in and that is gone or holds no file now.

    It went between the last of them and the last change of the folders that held it, or the birth of the folder that
    is there now. Where those are gone too, or their times are older, nothing but now bounds it.
    """
    last: dict[str, _Look] = {}
    for look in _looks(stamps, journal, machine):
        if look.cache.path not in last or last[look.cache.path].time_ns < look.time_ns:
            last[look.cache.path] = look
    for cache in caches:
        if cache.path not in last or (cache.exists and cache.files):
            continue
        seen = last[cache.path]
        bounds = [at for at in (cache.emptied_ns, cache.born_ns) if at is not None and at >= seen.time_ns]
        now = "it holds no file" if cache.exists else "it is not there"
        proofs = [
            seen.proof,
            Evidence(witness="compile-cache", path=cache.path, field="state", value=now),
        ]
        held = size(seen.cache.bytes) or "entries"
        state = "empty" if cache.exists else "gone"
        text = f"{posixpath.basename(cache.path)} is {state}: {seen.label} with {held} in it"
        end = min(bounds, default=int(machine.now * clock.NS))
        yield make_event(
            "compile_cache.cleared", cache.path, seen.time_ns, end, text, proofs, from_=held, open_end=not bounds
        )


def _looks(stamps: Iterable[Stamp], journal: Iterable[Entry], machine: Machine) -> Iterator[_Look]:
    """Every word on a cache of this user on this machine that held something; one without a time dates nothing."""
    said = [(stamp.fingerprint, "stamp", stamp.path, "", f"{stamp.checkpoint.name} was saved")
            for stamp in stamps if stamp.counts]  # fmt: skip
    said += [
        (entry.fingerprint, "journal", entry.path, f"line {entry.line}", "a snapshot saw it") for entry in journal
    ]
    for taken, witness, path, where, label in said:
        if taken is None:
            continue
        try:
            moment = clock.nanoseconds(taken.taken_at)
        except ValueError:
            continue
        for cache in seen_here(taken, machine):
            proof = Evidence(
                witness=witness, path=path, field=where or f"compile_cache {cache.path}", value=cache.verdict
            )
            yield _Look(moment, proof, label, cache)
