"""REF: every form, every refusal, and which one is meant where none is given."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envguard import clock
from envguard.acquire.runs.own_records import read_journal
from envguard.acquire.runs.stamps import reference as checkpoint_reference
from envguard.acquire.seam.host import LiveHost
from envguard.errors import Error, InputError, UsageError
from envguard.fingerprint.places import Places
from envguard.fingerprint.reference import resolve, resolve_default, stamped, stamps_of_newest
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import sealed
from envguard.state import journal
from tests.counting import CountingHost
from tests.fingerprint.made import fingerprint, package

LIVE = fingerprint(package("transformers"))


def write(path: Path, taken: Fingerprint) -> None:
    path.write_bytes(msgspec.json.encode(taken))


def make(path: Path, seconds: int = 0, weights: bytes = b"weights") -> Path:
    """A checkpoint that was written `seconds` after some moment."""
    seconds += 1_700_000_000
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(weights)
    os.utime(path / "model.safetensors", (seconds, seconds))
    return path


def stamp(path: Path, **more: object) -> str:
    """Stamps a checkpoint by hand; returns the fingerprint's id."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    named = checkpoint_reference(LiveHost(), str(path))
    taken = fingerprint(
        package("its-own", build=digest), package("transformers"), **{"origin": "loaded", "checkpoint": named, **more}
    )
    write(path / "envguard.json", taken)
    return taken.id


@pytest.fixture
def places(tmp_path: Path) -> Places:
    roots = tuple(str(tmp_path / name) for name in ("checkpoints", "outputs", "runs"))
    state = tmp_path / ".envguard"
    return Places(LiveHost(), str(tmp_path), roots, str(state), lambda: LIVE, baseline=str(state / "baseline.json"))


def refused(text: str, places: Places, kind: type[Error] = InputError) -> tuple[str, str]:
    with pytest.raises(kind) as caught:
        resolve(text, places)
    assert caught.value.code == 2
    assert caught.value.hint
    return str(caught.value), caught.value.hint


def test_live(places: Places) -> None:
    found = resolve("live", places)
    assert (found.kind, found.fingerprint, found.label) == ("live", LIVE, "live")


def test_stamped_checkpoint_by_name_and_by_path(places: Places, tmp_path: Path) -> None:
    path = make(tmp_path / "runs" / "a" / "step_690")
    identity = stamp(path)
    for text in ("step_690", "690", "step-690", "a/step_690", "runs/a/step_690", "runs/a/step_690/", str(path),
                 "runs/a/step_690/envguard.json"):  # fmt: skip
        found = resolve(text, places)
        assert found.kind == "checkpoint"
        assert found.checkpoint is not None
        assert found.checkpoint.path == str(path)
        assert found.fingerprint is not None
        assert (found.fingerprint.id, found.no_stamp) == (identity, None)


def test_stamp_beside_a_file(places: Places, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "step_690.safetensors"
    path.write_bytes(b"weights")
    named = checkpoint_reference(LiveHost(), str(path))
    write(Path(f"{path}.envguard.json"), fingerprint(origin="loaded", checkpoint=named))
    for text in ("step_690", "step_690.safetensors", "runs/step_690.safetensors", f"{path}.envguard.json"):
        found = resolve(text, places)
        assert found.checkpoint is not None
        assert (found.checkpoint.path, found.no_stamp) == (str(path), None)


def test_unstamped_checkpoint(places: Places, tmp_path: Path) -> None:
    make(tmp_path / "checkpoints" / "step_690")
    found = resolve("step_690", places)
    assert (found.kind, found.fingerprint, found.no_stamp) == ("checkpoint", None, "it has no stamp")


def test_retrospective_and_foreign_stamps_count_as_none(places: Places, tmp_path: Path) -> None:
    late = make(tmp_path / "checkpoints" / "step_690")
    stamp(late, origin="retrospective")
    found = resolve("step_690", places)
    assert found.fingerprint is None
    assert found.no_stamp is not None
    assert f"made afterwards ({clock.local(LIVE.taken_at)}) and says" in found.no_stamp
    copied = make(tmp_path / "checkpoints" / "step_700", weights=b"others!")
    stamp(late)
    (copied / "envguard.json").write_bytes((late / "envguard.json").read_bytes())
    found = resolve("step_700", places)
    assert found.fingerprint is None
    assert found.no_stamp == "the stamp is of step 690 (step_690) and was copied here"
    (copied / "envguard.json").write_text("{")
    assert "cannot be read" in (resolve("step_700", places).no_stamp or "")


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"transformers"', b'"transformer"'))


def test_what_was_edited_after_it_was_written_is_not_believed(places: Places, tmp_path: Path) -> None:
    """A stamp counts as none and is not passed over; what stands alone is refused."""
    for step in (1, 2):
        stamp(make(tmp_path / "checkpoints" / f"step_{step}"))
    alter(tmp_path / "checkpoints" / "step_2" / "envguard.json")
    found = resolve("step_2", places)
    assert (found.fingerprint, found.altered) == (None, True)
    assert (found.no_stamp or "").startswith("the stamp cannot be believed: its id is eg1-")
    assert resolve_default(places).label == "step_2", "an older one that matches would hide it"
    unseen: list[Unknown] = []
    assert list(stamps_of_newest(places, unseen)) == ["stamp of step_1"]
    assert [item.what for item in unseen] == ["stamp of step_2"]
    write(tmp_path / "taken.json", LIVE)
    journal.append_snapshot(Path(places.state), LIVE, None)
    alter(tmp_path / "taken.json")
    (kept,) = Path(places.state).glob("journal-*.jsonl")
    alter(kept)
    for text in ("taken.json", "@1"):
        said = refused(text, places)[0]
        assert said.startswith(f"{text} cannot be believed: its id is {LIVE.id} and its content gives eg1-")
    own: list[Unknown] = []
    (entry,) = read_journal(places.host, places.state, own) or ()
    assert (entry.fingerprint, "fingerprint" in entry.fields, "id" in entry.fields) == (None, False, False)
    assert "edited or damaged" in own[0].why


def test_name_in_several_run_directories(places: Places, tmp_path: Path) -> None:
    for run in ("a", "b"):
        make(tmp_path / "runs" / run / "step_690")
    message, hint = refused("step_690", places, UsageError)
    assert f"{tmp_path}/runs/a/step_690" in message
    assert f"{tmp_path}/runs/b/step_690" in message
    assert "in 2 run directories" in message
    assert hint == "name one by its path"
    assert resolve("b/step_690", places).checkpoint is not None


def test_name_that_is_not_there_lists_the_nearest(places: Places, tmp_path: Path) -> None:
    for step in (600, 680, 700):
        make(tmp_path / "checkpoints" / f"step_{step}")
    message, hint = refused("step_690", places)
    assert message == "no checkpoint is called 'step_690' (looked in checkpoints, outputs, runs)"
    assert hint == "the nearest: step_680, step_700, step_600"


def test_nothing_to_look_in(places: Places) -> None:
    _, hint = refused("step_690", places)
    assert "--checkpoints DIR" in hint
    refused("", places)


def test_a_first_start_that_nobody_recorded(places: Places) -> None:
    with pytest.raises(InputError, match="no first start is recorded") as caught:
        resolve("baseline", places)
    assert "envguard launch --baseline" in (caught.value.hint or "")


def test_fingerprint_file(places: Places, tmp_path: Path) -> None:
    write(tmp_path / "before.json", LIVE)
    found = resolve("before.json", places)
    assert (found.kind, found.label) == ("fingerprint", "before.json")
    assert found.fingerprint == LIVE


@pytest.mark.parametrize(
    ("name", "data"),
    [("x.json", b""), ("x.json", b"[]"), ("x.json", b'{"schema": "envguard.diff", "version": 1}'),
     ("x.json", b"\xff"),
     ("x.json", b"[" * 100_000), ("notes", b"plain words"), ("x.bundle", b"\0" * 100)],
)  # fmt: skip
def test_files_that_are_no_reference(places: Places, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    message, _ = refused(name, places)
    assert name in message


def test_missing_files(places: Places) -> None:
    assert refused("gone.json", places)[0] == "there is no gone.json"
    assert refused("some/where", places)[0] == "there is no some/where"


def test_directories_that_are_no_checkpoint(places: Places, tmp_path: Path) -> None:
    make(tmp_path / "runs" / "a" / "step_690")
    message, hint = refused("runs/a", places, UsageError)
    assert "directory of checkpoints" in message
    assert "step_690" in hint
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    assert "--python venv" in refused("venv", places, UsageError)[1]
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in refused("empty", places)[0]
    final = make(tmp_path / "final")
    assert resolve("final", places).path == str(final)


def test_lock_and_bundle(places: Places, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.11.0\n")
    found = resolve("requirements.txt", places)
    assert found.kind == "lock"
    assert found.lock is not None
    assert found.lock.packages[0].name == "torch"
    (tmp_path / "machine.tgz").write_bytes(b"\x1f\x8b rest")
    assert resolve("machine.tgz", places).kind == "bundle"


def test_journal(places: Places) -> None:
    state = Path(places.state)
    ids = {}
    for number in (1, 2, 3):
        taken = fingerprint(package("numbered", f"{number}.0"))
        ids[number] = taken.id
        journal.append_snapshot(state, taken, None)
        journal.append(state, "stamp", {"id": "x"})
    first = resolve("@1", places).fingerprint
    third = resolve("@3", places).fingerprint
    assert first is not None
    assert third is not None
    assert (first.id, third.id) == (ids[3], ids[1])
    assert refused("@4", places)[0] == "there is no @4: the journal holds 3 snapshots"
    refused("@0", places, UsageError)


def test_a_fingerprint_by_its_id(places: Places, tmp_path: Path) -> None:
    identity = stamp(make(tmp_path / "checkpoints" / "step_1"))
    found = resolve(identity, places)
    assert (found.label, found.kind) == ("step_1", "checkpoint")
    journal.append_snapshot(Path(places.state), LIVE, None)
    found = resolve(LIVE.id, places)
    assert (found.label, found.kind, found.fingerprint) == (LIVE.id, "journal", sealed(LIVE))
    assert places.baseline is not None
    first = fingerprint(package("first"))
    write(Path(places.baseline), first)
    assert resolve(first.id, places).kind == "baseline"
    gone = "eg1-" + "0" * 20
    assert refused(gone, places)[0] == f"no snapshot and no stamp has the id {gone}"


def test_torn_journal(places: Places) -> None:
    state = Path(places.state)
    journal.append_snapshot(state, LIVE, None)
    with journal.journal_file(state).open("ab") as stream:
        stream.write(b'{"time": "2026-05-18T20:41:00+00:00", "kind": "snapshot", "finger')
    assert resolve("@1", places).fingerprint == sealed(LIVE)


def test_default_is_the_highest_stamped_step_of_the_newest_run(places: Places, tmp_path: Path) -> None:
    old = make(tmp_path / "runs" / "old" / "step_900", 100)
    stamp(old)
    wanted = stamp(make(tmp_path / "runs" / "new" / "step_9", 200))
    higher = make(tmp_path / "runs" / "new" / "step_10", 150)
    make(tmp_path / "runs" / "new" / "step_11", 300)
    default = resolve_default(places)
    assert default.notes[0] == "taken because 2 later checkpoints do not count (step_11: it has no stamp)"
    found = default.fingerprint
    assert found is not None
    assert found.id == wanted, "step_10 and step_11 have no stamp, step_900 lies in an older run"
    wanted = stamp(higher)
    found = resolve_default(places).fingerprint
    assert found is not None
    assert found.id == wanted, "order is the step, not the time"
    assert list(stamps_of_newest(places, [])) == ["stamp of step_10"]


BROKEN = {
    "no JSON": b"{",
    "empty": b"",
    "another version": b'{"schema": "envguard.fingerprint", "version": 99, "checkpoint": {}}',
    "no fingerprint": b"[]",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_newest_stamp_that_cannot_be_read_lets_no_older_decide(places: Places, tmp_path: Path, how: str) -> None:
    stamp(make(tmp_path / "runs" / "a" / "step_1"))
    newest = make(tmp_path / "runs" / "a" / "step_2", 10)
    (newest / "envguard.json").write_bytes(BROKEN[how])
    found = resolve_default(places)
    assert (found.label, found.fingerprint, found.unread) == ("step_2", None, True)
    unseen: list[Unknown] = []
    assert list(stamps_of_newest(places, unseen)) == ["stamp of step_1"]
    assert [item.what for item in unseen] == ["stamp of step_2"]


class Locked(LiveHost):
    """A machine that refuses to list one folder; root is never refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation in ("listing", "walk", "stats") and arguments[0] == self.folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.folder)
        return super().call(operation, *arguments)


def test_a_later_checkpoint_that_cannot_be_seen_leaves_the_default_undecided(places: Places, tmp_path: Path) -> None:
    stamp(make(tmp_path / "runs" / "a" / "step_1"))
    make(tmp_path / "runs" / "a" / "step_2")
    locked = replace(places, host=Locked(tmp_path / "runs" / "a" / "step_2"))
    found = resolve_default(locked)
    assert found.label == "step_1"
    assert [(item.what, item.decides) for item in found.undecided] == [(f"checkpoint {tmp_path}/runs/a/step_2", True)]
    make(tmp_path / "runs" / "other" / "step_1", -50)
    other = replace(places, host=Locked(tmp_path / "runs" / "other"))
    assert resolve_default(other).undecided == ()


ELSEWHERE = ("lightning_logs/version_0/checkpoints/step=40.ckpt", "trainer_output/checkpoint-20", "my/own/place/best")


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("by", ["stamp", "snapshot"])
def test_the_journal_knows_where_a_stamp_lies(places: Places, tmp_path: Path, where: str, by: str) -> None:
    path = tmp_path / where
    if path.suffix:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights")
        named = checkpoint_reference(LiveHost(), str(path))
        write(Path(f"{path}.envguard.json"), fingerprint(origin="loaded", checkpoint=named))
    else:
        stamp(make(path))
    state = Path(places.state)
    if by == "stamp":
        journal.append(state, "stamp", {"id": "x", "path": str(path), "origin": "loaded"})
    else:
        journal.append_snapshot(state, LIVE, str(path))
    journal.append(state, "stamp", {"id": "x", "path": str(tmp_path / "gone/step_3"), "origin": "loaded"})
    assert resolve_default(places).path == str(path)
    assert resolve(path.name, places).path == str(path)
    assert resolve(path.stem, places).path == str(path)
    assert [item.path for item in stamped(places)] == [str(path)]
    later = path.parent / "step_90"
    make(later, 600)
    assert resolve_default(places).notes[0].startswith("taken because the later step_90 does not count")
    assert places.checkpoints().unknown == ()


def test_the_error_names_the_stamps_that_there_are(places: Places, tmp_path: Path) -> None:
    stamp(make(tmp_path / "runs" / "a" / "step_10"))
    make(tmp_path / "runs" / "b" / "step_5", 2_000_000_000 - 1_700_000_000)
    with pytest.raises(UsageError, match="the newest run, runs/b, has no stamped checkpoint") as caught:
        resolve_default(places)
    assert "step_10" in (caught.value.hint or "")


def test_the_newest_run_is_the_newest_by_its_stamps(places: Places, tmp_path: Path) -> None:
    """A run that was copied without its times is no newer one."""
    taken = clock.seconds("2026-05-18T18:41:00.000+00:00")
    for run, moment in (("old", 0), ("new", 600)):
        stamp(make(tmp_path / "runs" / run / "step_1"), taken_at=clock.iso(taken + moment))
    now = int(taken + 90_000)
    os.utime(tmp_path / "runs" / "old" / "step_1" / "model.safetensors", (now, now))
    os.utime(tmp_path / "runs" / "new" / "step_1" / "model.safetensors", (now - 60, now - 60))
    assert resolve_default(places).label == "new/step_1"


def test_a_default_whose_name_two_runs_have_is_named_so_that_it_is_found(places: Places, tmp_path: Path) -> None:
    for run, seconds in (("old", 100), ("new", 200)):
        stamp(make(tmp_path / "runs" / run / "step_9", seconds))
    found = resolve_default(places)
    assert found.label == "new/step_9"
    assert resolve(found.label, places).path == found.path
    stamp(make(tmp_path / "runs" / "new" / "step_10", 300))
    assert resolve_default(places).label == "step_10"


def test_default_order(places: Places, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_default(places)
    assert "`envguard launch --baseline -- COMMAND`" in (caught.value.hint or "")
    (tmp_path / "requirements.txt").write_text("torch==2.11.0\n")
    with_lock = Places(places.host, places.start, places.roots, places.state, places.live, places.baseline,
                       str(tmp_path / "requirements.txt"))  # fmt: skip
    assert resolve_default(with_lock).kind == "lock"
    Path(places.state).mkdir()
    write(Path(places.state) / "baseline.json", LIVE)
    assert resolve_default(with_lock).kind == "baseline"
    assert resolve("baseline", places).kind == "baseline", "what the default is called can be asked for"
    path = make(tmp_path / "checkpoints" / "step_690")
    unstamped = resolve_default(with_lock)
    assert unstamped.kind == "baseline", "an unstamped checkpoint is no reference"
    assert unstamped.notes == ("taken because the later step_690 does not count: it has no stamp",)
    stamp(path, origin="retrospective")
    assert resolve_default(with_lock).kind == "baseline", "nor is one that was stamped afterwards"
    stamp(path)
    assert resolve_default(with_lock).kind == "checkpoint"


def test_a_lock_that_is_configured_and_not_there(places: Places, tmp_path: Path) -> None:
    gone = Places(places.host, places.start, places.roots, places.state, places.live, None, str(tmp_path / "uv.lock"))
    with pytest.raises(InputError, match=r"uv\.lock"):
        resolve_default(gone)


def test_places_that_have_looked_do_not_look_again(places: Places, tmp_path: Path) -> None:
    """The gate of `launch` asks three times, and 3,000 sharded checkpoints are hundreds of thousands of files."""
    for step in range(30):
        make(tmp_path / "checkpoints" / f"step_{step}")
    stamp(tmp_path / "checkpoints" / "step_29")
    host = CountingHost()
    looked = replace(places, host=host).looked()
    walked = host.asked["stats"]
    assert walked == 30
    assert resolve_default(looked).label == "step_29"
    assert [item.label for item in stamped(looked)] == ["step_29"]
    assert len(looked.checkpoints().found) == 30
    assert host.asked["stats"] - walked == 3, "only what is taken is looked at again, its content by the first alone"
