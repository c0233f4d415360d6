"""Contents against RECORD: what a stat shows, what a digest shows, and what is remembered between two looks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path

import pytest

from envguard.acquire.packages import contents as contents_module
from envguard.acquire.packages.contents import MISSING, AllContents, Contents, Policy, read_contents
from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.record_file import ALGORITHMS, record_hash
from envguard.acquire.seam import bundle
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.record import Record
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.demo import wheels
from envguard.demo.stage import Stage
from envguard.state import digests as digest_store
from envguard.state.digests import Digests
from tests.permissions import held_host, unreadable

FILES = {"demo/__init__.py": b"x = 1\n", "demo/data.bin": b"0123456789" * 100, "demo/deep/er.py": b"y = 2\n"}


class CountingHost(LiveHost):
    """This machine, with a count of the files that were hashed."""

    def __init__(self) -> None:
        self.hashed: list[str] = []

    def call(self, operation: str, *arguments: object) -> object:
        if operation == "digest":
            self.hashed.append(str(arguments[0]))
        return super().call(operation, *arguments)


class Looking:
    """Looks at one environment again and again, with a store that is written and read each time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.state = stage.root / "state"
        self.hashed: list[str] = []
        self.last: AllContents | None = None

    def __call__(self, name: str = "demo", trust: bool = False, **policy: object) -> Contents:
        host = CountingHost()
        found = read_distributions(host, locate(host, str(self.stage.python), "/"))
        store = digest_store.load(self.state)
        asked = Policy(**policy)  # type: ignore[arg-type]
        self.last = read_contents(host, found.found, asked, store, trust_records=trust)
        digest_store.save(self.state, store)
        self.hashed = [os.path.relpath(path, self.stage.site) for path in host.hashed]
        dist = found.of(name)
        assert dist is not None
        return self.last.of[dist.directory]


@pytest.fixture
def look(stage: Stage) -> Looking:
    wheels.build_wheel(stage.wheels, "demo", "1.0", FILES)
    stage.install("demo", arguments=["--link-mode", "copy"])
    settle(stage.site)
    return Looking(stage)


def settle(site: Path) -> None:
    """Lets the clock of the file system move on: what changed a moment ago is never trusted by its stat."""
    time.sleep(2 * digest_store.RACY_NS / 1e9)


def rewrite(path: Path, data: bytes, keep_mtime: bool = True) -> None:
    """An edit in place, of the same size where `data` is, that puts the old mtime back."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()
    if keep_mtime:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_sound_package_has_its_records_identity_at_every_depth(look: Looking) -> None:
    by_stat, watched, deep = look(), look(watch=("demo",)), look(deep=True)
    assert by_stat.build == watched.build == deep.build == by_stat.identity
    assert (by_stat.depth, watched.depth, deep.depth) == ("stat", "watched", "deep")
    assert by_stat.departs == {}
    assert by_stat.bytes == sum(map(len, FILES.values())) + sum(
        (look.stage.site / "demo-1.0.dist-info" / name).stat().st_size for name in ("METADATA", "WHEEL")
    )


def test_nothing_is_hashed_by_stat_and_everything_once_when_watched(look: Looking) -> None:
    look()
    assert look.hashed == []
    look(watch=("dem*",))
    assert sorted(look.hashed) == sorted([*FILES, "demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/WHEEL"])
    look(watch=("dem*",))
    assert look.hashed == []
    look()
    assert look.hashed == []


def test_a_missing_file_and_a_truncated_one_show_without_hashing(look: Looking) -> None:
    (look.stage.site / "demo/deep/er.py").unlink()
    (look.stage.site / "demo/data.bin").write_bytes(b"")
    found = look()
    assert found.departs["demo/deep/er.py"] == MISSING
    assert found.departs["demo/data.bin"].startswith("sha256=")
    assert found.build != found.identity
    assert look.hashed == ["demo/data.bin"]


@pytest.mark.parametrize("after_s", [0.005, 0.5, 1.9, 20])
@pytest.mark.parametrize("record_anew", [False, True])
def test_an_edit_after_the_install_is_cause_enough(look: Looking, after_s: float, record_anew: bool) -> None:
    """The first look at an environment: its size is the same, its time is not. A set-up script edits at once, and
    RECORD may be touched after it."""
    path, marks = look.stage.site / "demo/__init__.py", look.stage.site / "demo-1.0.dist-info"
    rewrite(path, b"x = 2\n", keep_mtime=False)
    later = max((marks / name).stat().st_mtime_ns for name in ("INSTALLER", "RECORD")) + int(after_s * 1e9)
    os.utime(path, ns=(later, later))
    if record_anew:
        os.utime(marks / "RECORD", ns=(later + 1, later + 1))
    assert list(look().departs) == ["demo/__init__.py"]


def test_an_edit_that_keeps_size_and_mtime_shows_on_the_same_machine(look: Looking) -> None:
    sound = look()
    rewrite(look.stage.site / "demo/__init__.py", b"x = 2\n")
    edited = look()
    assert list(edited.departs) == ["demo/__init__.py"]
    assert look.hashed == ["demo/__init__.py"]
    assert edited.build != sound.build


def test_an_edit_that_keeps_size_and_mtime_is_not_seen_without_a_digest_or_a_memory(look: Looking) -> None:
    """What a stat-only pass cannot see: said by `depth`, found by a deep look."""
    rewrite(look.stage.site / "demo/__init__.py", b"x = 2\n")
    blind = look()
    assert (blind.departs, blind.depth) == ({}, "stat")
    assert list(look(deep=True).departs) == ["demo/__init__.py"]
    assert list(look().departs) == ["demo/__init__.py"]


def test_putting_the_file_back_heals(look: Looking) -> None:
    sound = look()
    path = look.stage.site / "demo/__init__.py"
    rewrite(path, b"x = 2\n")
    assert look().departs
    rewrite(path, FILES["demo/__init__.py"])
    assert look() == sound


def test_a_replaced_file_is_hashed_and_found_the_same(look: Looking) -> None:
    sound = look(watch=("demo",))
    path = look.stage.site / "demo/data.bin"
    path.unlink()
    path.write_bytes(FILES["demo/data.bin"])
    settle(look.stage.site)
    assert look(watch=("demo",)).build == sound.build
    assert look.hashed == ["demo/data.bin"]
    look(watch=("demo",))
    assert look.hashed == []


def test_a_file_that_changed_a_moment_ago_is_not_trusted_by_its_stat(look: Looking) -> None:
    """Two writes within one tick of the kernel's clock give one ctime."""
    look(watch=("demo",))
    path = look.stage.site / "demo/data.bin"
    path.unlink()
    path.write_bytes(FILES["demo/data.bin"])
    look(watch=("demo",))
    look(watch=("demo",))
    assert look.hashed == ["demo/data.bin"]


def test_an_install_through_links_is_followed(stage: Stage) -> None:
    wheels.build_wheel(stage.wheels, "demo", "1.0", FILES)
    stage.install("demo", arguments=["--link-mode", "symlink"])
    assert (stage.site / "demo/__init__.py").is_symlink()
    look = Looking(stage)
    assert look(deep=True).departs == {}
    (stage.site / "demo/__init__.py").unlink()
    (stage.site / "demo/__init__.py").symlink_to("/nowhere")
    assert look().departs == {"demo/__init__.py": MISSING}


def test_a_folder_where_a_file_belongs_is_a_missing_file(look: Looking) -> None:
    (look.stage.site / "demo/data.bin").unlink()
    (look.stage.site / "demo/data.bin").mkdir()
    assert look().departs == {"demo/data.bin": MISSING}


def test_a_fifo_hangs_nothing(look: Looking) -> None:
    (look.stage.site / "demo/data.bin").unlink()
    os.mkfifo(look.stage.site / "demo/data.bin")
    assert look(deep=True).departs == {"demo/data.bin": MISSING}


def test_a_crlf_record_finds_nothing_modified(look: Looking) -> None:
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    unix = look(deep=True)
    record.write_bytes(record.read_bytes().replace(b"\n", b"\r\n"))
    assert look(deep=True).build == unix.build


def test_a_rewritten_record_is_another_identity(look: Looking) -> None:
    sound = look()
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    rows = [row for row in record.read_text().splitlines() if "er.py" not in row]
    record.write_text("\n".join(rows) + "\n")
    assert look().identity != sound.identity


def test_a_damaged_record_is_told_and_its_sound_rows_used(look: Looking) -> None:
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "half a row\n")
    found = look()
    assert found.identity is not None
    assert look.last is not None
    assert [problem.kind for problem in look.last.problems] == ["record-damaged"]


def test_a_missing_record_gives_no_build(look: Looking) -> None:
    (look.stage.site / "demo-1.0.dist-info/RECORD").unlink()
    assert (look().build, look().files) == (None, None)


def test_a_record_without_sha256_is_not_called_sound(look: Looking) -> None:
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    rows = [
        f"{row.split(',')[0]},md5=aaaa,{row.split(',')[2]}" if "data.bin" in row else row
        for row in record.read_text().splitlines()
    ]
    record.write_text("\n".join(rows) + "\n")
    look(deep=True)
    assert look.last is not None
    assert [item.what for item in look.last.unknown] == [str(look.stage.site / "demo/data.bin")]


def test_what_proves_nothing_is_looked_at_again_and_nothing_beside_it(look: Looking) -> None:
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    record.write_text(re.sub("(demo/data.bin),sha256=[^,]*", r"\1,md5=aaaa", record.read_text()))
    settle(look.stage.site)
    for trust in (False, False, True):
        seen = look(watch=("demo",), trust=trust)
        assert (seen.unread, seen.departs) == (("demo/data.bin",), {})
        assert look.last is not None
        assert [item.what for item in look.last.unknown] == [str(look.stage.site / "demo/data.bin")]
    assert look.hashed == []


def test_a_file_that_can_be_read_at_last_is_held_against_record(look: Looking) -> None:
    path = look.stage.site / "demo/data.bin"
    with unreadable(path), held_host() as host:
        found = read_distributions(host, locate(host, str(look.stage.python), "/")).found
        store = digest_store.load(look.state)
        assert read_contents(host, found, Policy(watch=("demo",)), store).of[found[0].directory].unread
        digest_store.save(look.state, store)
    assert look(watch=("demo",), trust=True).unread == ()
    assert look.hashed == ["demo/data.bin"]


@pytest.mark.parametrize("watch", [(), ("demo",)], ids=["stat", "watched"])
@pytest.mark.parametrize("damage", ["gone", "edited"])
def test_a_file_that_is_sound_again_is_not_called_damaged_where_records_are_trusted(
    look: Looking, watch: tuple[str, ...], damage: str
) -> None:
    path = look.stage.site / "demo/data.bin"
    sound = path.read_bytes()
    path.unlink()
    if damage == "edited":
        path.write_bytes(sound + b"edited")
    settle(look.stage.site)
    for _ in range(2):
        assert look(watch=watch, trust=True).departs.keys() == {"demo/data.bin"}
    path.write_bytes(sound)
    for _ in range(2):
        assert look(watch=watch, trust=True).departs == {}


def test_a_damaged_record_is_told_every_time(look: Looking) -> None:
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    sound = record.read_text()
    record.write_text(f"no row\n{sound}")
    settle(look.stage.site)
    told = []
    for deep, trust in ((False, False), (False, False), (True, False), (True, False), (False, True)):
        look(deep=deep, trust=trust)
        assert look.last is not None
        told.append([(problem.kind, problem.says) for problem in look.last.problems])
    assert told == [told[0]] * 5
    assert [kind for kind, _ in told[0]] == ["record-damaged"]
    record.write_text(sound)
    look()
    assert look.last is not None
    assert look.last.problems == ()


def test_the_damage_of_a_record_that_was_mended_within_a_tick_of_the_clock_is_not_told(look: Looking) -> None:
    """The stat of the sound one may be that of the damaged one, of which it was kept: older kernels' clocks tick."""
    (dist,) = read_distributions(LiveHost(), locate(LiveHost(), str(look.stage.python), "/")).found
    record = look.stage.site / "demo-1.0.dist-info/RECORD"
    sound = record.read_bytes()
    store = Digests()

    def told() -> list[str]:
        return [problem.kind for problem in read_contents(LiveHost(), [dist], Policy(), store).problems]

    record.write_bytes(sound.replace(b",sha256=", b" sha256=", 1))
    assert told() == ["record-damaged"]
    ((question, kept),) = store.memo.items()
    record.write_bytes(sound)
    now = record.stat()
    key = [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
    store.memo[question] = json.dumps([key, json.loads(kept)[1]])
    settle(look.stage.site)
    assert (told(), told()) == ([], [])


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "sha256"])
def test_each_row_is_held_to_its_own_algorithm(stage: Stage, algorithm: str) -> None:
    wheels.build_wheel(stage.wheels, "demo", "1.0", FILES, algorithm=algorithm)
    stage.install("demo", arguments=["--link-mode", "copy"])
    look = Looking(stage)
    assert look(deep=True).departs == {}
    assert look.last is not None
    assert look.last.unknown == ()
    (stage.site / "demo/data.bin").write_bytes(b"x" * len(FILES["demo/data.bin"]))
    assert look(deep=True).departs == {
        "demo/data.bin": record_hash(algorithm, hashlib.new(algorithm, b"x" * len(FILES["demo/data.bin"])).digest())
    }
    record = RecordingHost(LiveHost(), Record())
    found = read_distributions(record, locate(record, str(stage.python), "/")).found
    live = read_contents(record, found, Policy(deep=True), Digests())
    with (stage.tmp / "bundle").open("w+b") as stream:
        bundle.save(record.record, {}, stream)
        stream.seek(0)
        loaded, _ = bundle.load("it", stream)
    assert read_contents(BundleHost(loaded, "bundle"), found, Policy(deep=True), Digests()) == live


def test_an_unreadable_file_is_unknown_and_never_sound(look: Looking) -> None:
    path = look.stage.site / "demo/data.bin"
    with unreadable(path), held_host() as host:
        found = read_distributions(host, locate(host, str(look.stage.python), "/")).found
        seen = read_contents(host, found, Policy(deep=True), Digests())
    assert [item.what for item in seen.unknown] == [str(path)]
    assert seen.of[found[0].directory].unread == ("demo/data.bin",)


def test_the_store_survives_rubbish_and_an_older_form(look: Looking) -> None:
    look(watch=("demo",))
    file = digest_store.store_file(look.state)
    whole = file.read_bytes()
    for rubbish in (b"", whole[: len(whole) // 2], b"\xc1", b"\x80", whole.replace(b"packages", b"parcels!")):
        file.write_bytes(rubbish)
        assert look(watch=("demo",)).departs == {}
        assert len(look.hashed) == len(FILES) + 2


def test_a_file_that_is_no_text_is_kept_in_the_store(stage: Stage) -> None:
    odd = "demo/caf\udce9.py"
    wheels.build_wheel(stage.wheels, "demo", "1.0")
    stage.install("demo", arguments=["--link-mode", "copy"])
    (stage.site / os.fsdecode(b"demo/caf\xe9.py")).write_bytes(b"1\n")
    record = stage.site / "demo-1.0.dist-info/RECORD"
    digest = contents_module.hash_as(LiveHost(), str(stage.site / odd), "sha256=?")
    record.write_bytes(record.read_bytes() + os.fsencode(f"{odd},{digest},2\n"))
    settle(stage.site)
    look = Looking(stage)
    assert look(watch=("demo",)).departs == {}
    look(watch=("demo",))
    assert look.hashed == []


def test_a_bundle_answers_as_the_machine_did(look: Looking) -> None:
    (look.stage.site / "demo/deep/er.py").unlink()
    recording = RecordingHost(LiveHost(), Record())
    found = read_distributions(recording, locate(recording, str(look.stage.python), "/"))
    live = read_contents(recording, found.found, Policy(deep=True), Digests())
    told = BundleHost(recording.record, "bundle")
    again = read_distributions(told, locate(told, str(look.stage.python), "/"))
    assert read_contents(told, again.found, Policy(deep=True), Digests()) == live
    assert live.of[found.found[0].directory].departs == {"demo/deep/er.py": MISSING}


def test_what_was_derived_from_files_is_kept_under_its_mark(tmp_path: Path) -> None:
    store = Digests()
    store.memo["torch-key"] = "mark answer"
    store.memo["caf\udce9"] = "not text"
    digest_store.save(tmp_path, store)
    again = digest_store.load(tmp_path)
    assert dict(again.memo) == {"torch-key": "mark answer"}
    assert not again.changed
