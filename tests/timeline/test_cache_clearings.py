"""A compile cache that only stamps name: when it went, between the last of them and the last change of its folder."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace as replace_times
from pathlib import Path
from typing import Any

import pytest

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.own_records import Entry
from envguard.acquire.runs.stamps import Stamp
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.torch.cache_places import Place
from envguard.acquire.torch.compile_times import CacheTimes, read_cache_times
from envguard.demo.stage import Stage
from envguard.model.event import Event
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import CompileCache
from envguard.timeline.events.cache_clearings import clearing_events
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.events.system import cache_events
from tests.acquire.made_up import MadeUp
from tests.caches import cache_of_step_4
from tests.fingerprint.made import cache, fingerprint, replace

MACHINE = MadeUp().machine()
RUN = "/project/.cache/inductor"
SAVED = clock.seconds("2026-05-18T18:41:00.000+00:00")


def stamp(*caches: CompileCache, host: str = "box", minutes: int = 0, why_not: str | None = None) -> Stamp:
    system = fingerprint().system
    assert system is not None
    taken = fingerprint(
        system=replace(system, host=host), compile_cache=caches, taken_at=clock.iso(SAVED + 60 * minutes)
    )
    checkpoint = Checkpoint("step_4", "/c/step_4", "directory", 4, "/c", 0, 0, 0, None)
    return Stamp("/c/step_4/envguard.json", checkpoint, taken, why_not)


WARM = cache(path=RUN, owner="ada", bytes=3_100_000)
GONE = CacheTimes(RUN, "inductor", False, emptied_ns=int((SAVED + 7200) * clock.NS))


def told(*stamps: Stamp, times: CacheTimes = GONE) -> list[Event]:
    return list(clearing_events(stamps, [times], MACHINE))


def test_it_went_between_the_last_stamp_and_the_last_change_of_its_folder() -> None:
    (event,) = told(stamp(WARM), stamp(WARM, minutes=30), stamp(minutes=60), stamp(WARM, minutes=90, why_not="moved"))
    assert (event.kind, event.subject, event.from_) == ("compile_cache.cleared", RUN, "3.1 MB")
    assert (start_of(event), end_of(event)) == (SAVED + 1800, SAVED + 7200)
    assert event.summary == "inductor is gone: step_4 was saved with 3.1 MB in it"
    assert {proof.witness for proof in event.evidence} == {"stamp", "compile-cache"}


@pytest.mark.parametrize(
    "stamps",
    [
        (),
        (stamp(WARM, host="another"),),
        (stamp(replace(WARM, owner="uid 1001")),),
        (stamp(replace(WARM, verdict="EMPTY")),),
        (stamp(replace(WARM, path="/another")),),
        (stamp(WARM, why_not="the stamp was made afterwards"),),
    ],
)
def test_nothing_is_told_of_a_path_that_says_nothing_about_this_machine(stamps: tuple[Stamp, ...]) -> None:
    assert told(*stamps) == []


def test_one_that_is_there_did_not_go() -> None:
    there = CacheTimes(RUN, "inductor", True, files=4, bytes=3_100_000)
    assert told(stamp(WARM), times=there) == []
    (event,) = told(stamp(WARM), times=CacheTimes(RUN, "inductor", True))
    assert end_of(event) == MACHINE.now, "emptied, and nothing tells when"


@pytest.mark.parametrize(
    ("times", "end_s", "state"),
    [
        ({"emptied_ns": 60}, 60, "empty"),
        ({"emptied_ns": 60, "born_ns": -9_000}, 60, "empty"),
        # Removed and made anew: it was gone when the new one was born.
        ({"emptied_ns": 60, "born_ns": 50}, 50, "empty"),
        ({"emptied_ns": -5, "born_ns": -9_000}, None, "empty"),
    ],
)
def test_an_emptied_folder_tells_when(times: dict[str, int], end_s: int | None, state: str) -> None:
    facts: dict[str, Any] = {name: int((SAVED + at) * clock.NS) for name, at in times.items()}
    emptied = replace_times(CacheTimes(RUN, "inductor", True), **facts)
    (event,) = told(stamp(WARM), times=emptied)
    assert event.summary == f"inductor is {state}: step_4 was saved with 3.1 MB in it"
    assert end_of(event) == (SAVED + end_s if end_s is not None else MACHINE.now)
    assert not list(cache_events([emptied])), "a folder of nothing was not created"


def test_a_snapshot_that_saw_it_later_is_the_lower_bound() -> None:
    later = fingerprint(compile_cache=(WARM,), taken_at=clock.iso(SAVED + 900))
    journal = [Entry("/p/.envguard/journal-box.jsonl", 3, "snapshot", later.taken_at, {}, later)]
    (event,) = clearing_events([stamp(WARM)], [GONE], MACHINE, journal)
    assert (start_of(event), end_of(event)) == (SAVED + 900, SAVED + 7200)
    assert event.evidence[0].witness == "journal"
    (event,) = clearing_events([stamp(WARM, minutes=30)], [GONE], MACHINE, journal)
    assert start_of(event) == SAVED + 1800


def test_the_folders_that_are_left_bound_the_emptying(tmp_path: Path) -> None:
    (tmp_path / "inductor" / "fxgraph" / "aa").mkdir(parents=True)
    os.utime(tmp_path / "inductor", (SAVED - 5, SAVED - 5))
    os.utime(tmp_path / "inductor" / "fxgraph", (SAVED + 30, SAVED + 30))
    os.utime(tmp_path / "inductor" / "fxgraph" / "aa", (SAVED + 60, SAVED + 60))
    unknown: list[Unknown] = []
    (times,) = read_cache_times(LiveHost(), [Place("inductor", str(tmp_path / "inductor"), "test")], unknown)
    assert (times.files, times.emptied_ns) == (0, int((SAVED + 60) * clock.NS))


def test_a_folder_that_last_changed_before_the_stamp_dates_nothing() -> None:
    (event,) = told(stamp(WARM), times=CacheTimes(RUN, "inductor", False, emptied_ns=1))
    assert end_of(event) == MACHINE.now


def test_the_nearest_folder_that_is_there_bounds_the_removal(tmp_path: Path) -> None:
    place = Place("inductor", str(tmp_path / "gone" / "too" / "inductor"), "test")
    os.utime(tmp_path, (SAVED, SAVED))
    unknown: list[Unknown] = []
    (times,) = read_cache_times(LiveHost(), [place], unknown)
    assert (times.exists, times.emptied_ns, unknown) == (False, int(SAVED * clock.NS), [])


def test_the_timeline_tells_when_the_trainer_s_cache_vanished(torch_stage: Stage) -> None:
    run = cache_of_step_4(torch_stage)
    answer = json.loads(torch_stage.envguard("timeline", "--json").stdout)
    caches = {event["kind"] for event in answer["events"] if event["subject"] == str(run)}
    assert caches == {"compile_cache.created", "compile_cache.written"}
    before = time.time()
    shutil.rmtree(run)
    answer = json.loads(torch_stage.envguard("timeline", "--json").stdout)
    (event,) = [event for event in answer["events"] if event["subject"] == str(run)]
    assert event["kind"] == "compile_cache.cleared"
    assert before - 1 <= clock.seconds(event["end"]) <= time.time()
    assert clock.seconds(event["time"]) <= before
