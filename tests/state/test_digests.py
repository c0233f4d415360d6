"""The store of digests: bounded, whole after a kill, and not emptied by two that write at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envguard.state import digests as store
from envguard.state.digests import KEPT_DAYS, TORCH_OF, Digests, SeenPackage, is_racy

LATER = (KEPT_DAYS + 2) * 86_400


def package(size: int = 4) -> SeenPackage:
    return SeenPackage((1, 2, 3, 4), "identity", 1, 1, b"a", b"s" * size, False, b"", int(time.time()))


def saved(state: Path, digests: Digests) -> Digests:
    store.save(state, digests)
    return store.load(state)


def test_what_nobody_asked_for_in_long_is_dropped_and_what_a_process_may_still_run_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each data set, compile cache and environment that ever was something was kept for ever."""
    first = Digests()
    first.memo.update({"data /old": "mark answer", "data /used": "mark answer", f"{TORCH_OF}b1": "{}"})
    first.learn_package("/gone/a-1.dist-info", package())
    store.save(tmp_path, first)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LATER)
    again = store.load(tmp_path)
    assert again.memo["data /used"] == "mark answer"
    assert again.changed, "that it was asked for has to be kept"
    again.learn_package("/new/a-2.dist-info", package())
    kept = saved(tmp_path, again)
    assert sorted(kept.memo) == ["data /used", f"{TORCH_OF}b1"]
    assert kept.package("/gone/a-1.dist-info") is None
    assert kept.package("/new/a-2.dist-info") is not None


def test_asking_twice_in_a_day_writes_nothing(tmp_path: Path) -> None:
    first = Digests()
    first.memo["data /d"] = "mark answer"
    again = saved(tmp_path, first)
    assert again.memo["data /d"]
    assert not again.changed


def test_beyond_its_room_the_latest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile cache a run, each of a hundred thousand files, would make every command read gigabytes."""
    monkeypatch.setattr(store, "MOST_BYTES", 1000)
    first, now = Digests(), time.time()
    for number in range(5):
        monkeypatch.setattr(time, "time", lambda number=number: now + number * 90_000)
        first.memo[f"compile_cache /run{number}"] = "x" * 300
        first.learn_package(f"/env{number}", package(300))
    first.memo["compile_cache /huge"] = "x" * 2000
    kept = saved(tmp_path, first)
    assert sorted(kept.memo) == ["compile_cache /run2", "compile_cache /run3", "compile_cache /run4"]
    assert [kept.package(f"/env{number}") is not None for number in range(5)] == [False, False, True, True, True]


def test_of_two_that_write_neither_loses_what_it_learned(tmp_path: Path) -> None:
    """The second to write put back what it had read, without what the first one had learned since."""
    start = Digests()
    start.memo.update({"a": "old", "b": "old"})
    start.learn_package("/p0", package())
    store.save(tmp_path, start)
    first, second = store.load(tmp_path), store.load(tmp_path)
    first.memo["a"] = first.memo["new"] = "first"
    first.learn_package("/p1", package())
    second.memo["a"] = "second"
    del second.memo["b"]
    second.learn_package("/p2", package())
    store.save(tmp_path, first)
    kept = saved(tmp_path, second)
    assert dict(kept.memo) == {"a": "second", "new": "first"}
    assert all(kept.package(path) is not None for path in ("/p0", "/p1", "/p2"))


def test_writers_that_are_killed_leave_a_whole_store(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from envguard.state import digests as store\n"
        "state = pathlib.Path(sys.argv[1])\n"
        "for n in range(1000):\n"
        "    known = store.load(state); assert n == 0 or known.memo['kept'] == 'x' * 100_000\n"
        "    known.memo[sys.argv[2]] = str(n); known.memo['kept'] = 'x' * 100_000; store.save(state, known)\n"
        "    print(n, flush=True)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), who], stdout=subprocess.PIPE) for who in "xy"
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline()
    for child in children:
        assert child.poll() is None, "it met a store that was not whole"
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    assert store.load(tmp_path).memo["kept"] == "x" * 100_000


def test_a_stat_vouches_for_a_content_only_when_it_had_time_to_move() -> None:
    now = time.time_ns() // 10**9 * 10**9 + 1
    old = now - 10**10
    assert not is_racy((5, old, old, 7), now)
    assert is_racy((5, old, now, 8), now)
    assert is_racy((5, old, now - 10**9 - 1, 8), now), "a file system that keeps whole seconds"
