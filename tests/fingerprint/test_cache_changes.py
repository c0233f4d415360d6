"""Two fingerprints' compile caches: by path first, so that a full one elsewhere hides none that is gone."""

from __future__ import annotations

from typing import Any

from envguard.fingerprint.diff import compare
from envguard.model.fingerprint import CompileCache, Fingerprint
from tests.fingerprint.made import cache, fingerprint, gpu, replace

RUN = "/project/.cache/trainer/inductor/torch-2.11.0+cu128"
DEFAULT = "/tmp/torchinductor_root"
GONE: dict[str, Any] = {"verdict": "EMPTY", "bytes": 0, "entries": 0, "files": 0, "digest": None, "writers": {}}


def of(*caches: CompileCache, **more: Any) -> Fingerprint:
    return fingerprint(compile_cache=caches, **more)


def rows(a: Fingerprint, b: Fingerprint) -> list[tuple[str, str, str]]:
    """(subject, severity, why) of what differs in the caches."""
    return [(d.subject, d.severity, d.why) for d in compare(a, b).drifts if d.facet == "compile_cache"]


RAN = cache(path=RUN, bytes=3_100_000, digest="r" * 64)
OTHER = cache(path=DEFAULT, bytes=488_000_000)


def test_a_full_cache_elsewhere_does_not_hide_that_the_run_s_own_is_gone() -> None:
    gone, default = rows(of(RAN), of(OTHER, replace(RAN, why="it is not there", **GONE)))
    assert gone[:2] == ("inductor", "warn")
    assert f"{RUN} is gone" in gone[2]
    assert "compiles cold" in gone[2]
    assert default[:2] == (f"inductor {DEFAULT}", "info")


def test_a_folder_that_is_left_without_an_entry_is_empty_and_not_gone() -> None:
    left = replace(RAN, why="no entry beside 4 compiled files", **{**GONE, "files": 4})
    ((_, severity, why),) = rows(of(RAN), of(left))
    assert severity == "warn"
    assert f"{RUN} is empty (no entry beside 4 compiled files)" in why


def test_an_unrelated_cache_is_at_most_info_whoever_wrote_it() -> None:
    for verdict in ("VALID", "FOREIGN", "MIXED"):
        assert [row[1] for row in rows(of(RAN), of(replace(OTHER, verdict=verdict), RAN))] == ["info"]
    assert rows(of(RAN), of(replace(OTHER, **GONE), RAN)) == []
    unsafe = replace(OTHER, verdict="UNSAFE", why="mode 777")
    assert [row[1] for row in rows(of(RAN), of(unsafe, RAN))] == ["block"], "who may write there runs code here"


def test_those_at_other_paths_are_held_together_by_kind() -> None:
    elsewhere = cache(path="/home/ada/cache", bytes=3_100_000, digest="r" * 64)
    assert rows(of(RAN), of(elsewhere)) == []
    assert rows(of(RAN), of(cache(kind="triton", path=RUN), elsewhere))[0][:2] == ("triton", "info")
    # The one at the same path is not taken away from it by one that comes first.
    assert rows(of(OTHER, RAN), of(RAN, OTHER)) == []


def test_what_the_newer_side_did_not_look_at_is_not_gone() -> None:
    """Two stamps: the second was made in a process that knew of one cache alone."""
    ((subject, severity, why),) = rows(of(OTHER, RAN), of(OTHER))
    assert (subject, severity) == (f"inductor {RUN}", "info")
    assert "nobody looked there" in why


def test_a_path_of_another_machine_is_never_cleared() -> None:
    system = fingerprint().system
    assert system is not None
    for there in (of(system=replace(system, host="other")), of(gpus=(gpu(8), gpu(9)))):
        assert [row[1] for row in rows(of(RAN), there)] == ["info"]


def test_another_build_s_cache_that_nobody_touched_costs_nothing_where_this_build_has_a_warm_one() -> None:
    mine = cache(path="/home/ada/.cache/envguard/inductor/torch-2.12.0", writers={"cu130": 4})
    foreign = replace(RAN, verdict="FOREIGN", why="every entry was written by another build")
    (moved, _) = rows(of(RAN), of(mine, foreign))
    assert moved[1] == "info"
    assert "a warm cache elsewhere" in moved[2]
    assert [row[1] for row in rows(of(RAN), of(foreign))] == ["warn"]
    written = replace(foreign, writers={"cu130": 4})
    assert rows(of(RAN), of(mine, written))[0][1] == "warn", "its own entries are gone"
