"""Only what differs between two runs may be the cause of what differs in their rates; order needs two moments."""

from __future__ import annotations

import json
import os
import shutil
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.acquire.runs.train_log import TrainLog
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import Driver, Fingerprint
from envguard.model.run import RunRecord
from envguard.timeline.events.happening import make_event
from envguard.timeline.events.logs import throughput_events
from envguard.timeline.packages.inferred import inferred_swaps
from envguard.timeline.packages.package_events import Packages
from envguard.timeline.packages.previous import Sighting, by_name
from envguard.timeline.packages.records import Named, Record
from envguard.timeline.packages.transactions import Version
from envguard.timeline.rates.causes import candidates
from envguard.timeline.rates.states import States
from envguard.timeline.rates.throughput import read_throughput
from tests.fingerprint.made import fingerprint, package, replace, tree

S = 1_000_000_000
START = 1_779_000_000 * S
GOOD, BAD = (START, START + 100 * S), (START + 1000 * S, START + 1100 * S)
NEWER = Driver(version="590.1", kernel_module="590.1", cuda="13.1", agrees=True)
A, B, C = "2.11.0+cu128", "2.11.0+cu130", "2.12.0+cu130"


def proof(witness: str = "stamp", path: str = "/c/envguard.json") -> tuple[Evidence, ...]:
    return (Evidence(witness=witness, path=path, field="packages", value="eg1-"),)


def sighting(version: str, at_s: float, source: str = "stamp", build: str | None = "", **more: Any) -> Sighting:
    """`build` is that of the version unless another is given; None where the source names none."""
    path = f"/{source}/{at_s}"
    return Sighting("torch", Version(version, version), START + int(at_s * S), source, proof(source, path),
                    build=f"{version}{build}" if build is not None else None, **more)  # fmt: skip


def record(taken: Fingerprint, at_s: float) -> Record:
    packages = {item.name: item for item in taken.packages}
    return Record(START + int(at_s * S), taken, proof()[0], True, Named(packages, dict.fromkeys(packages, "/site")))


def event(kind: EventKind, subject: str, at_s: float, **more: Any) -> Event:
    return make_event(kind, subject, START + int(at_s * S), None, f"{subject} changed", proof("dist-info", subject),
                      **more)  # fmt: skip


def installed(version: str, end_s: float, build: str = "") -> Install:
    return Install(
        name="torch", version=version, installer="uv", directory="/d", location="/site", requires=(), editable=False,
        requested=False, start_ns=START, end_ns=START + int(end_s * S), doubt=None, survived=None, survived_ns=None,
        payload=None, build=f"{version}{build}", full_version=version, evidence=(),
    )  # fmt: skip


def states(
    seen: Iterable[Sighting] = (),
    records: Iterable[Record] = (),
    installs: Iterable[Install] = (),
    events: Iterable[Event] = (),
    runs: Iterable[RunRecord] = (),
) -> States:
    return States(by_name(seen), [*records], [*runs], [*installs], [*events], START + 2000 * S)


SWAP = event("package.replaced", "torch", 300, from_=A, to=B)
BACK = event("package.replaced", "torch", 600, from_=B, to=A)
ON = event("package.replaced", "torch", 600, from_=B, to=C)
REBUILT = event("package.replaced", "torch", 600, from_=A, to=A)


@pytest.mark.parametrize(
    ("seen", "installs", "events", "same"),
    [
        ((sighting(A, 50), sighting(A, 1050)), (), (SWAP, BACK), True),
        ((sighting(A, 50, "train-log", None), sighting(A, 1050, "train-log", None)), (), (SWAP, BACK), True),
        ((sighting(A, -5, "wandb", None), sighting(A, 990, "journal")), (), (SWAP, BACK), True),
        ((sighting(A, 150), sighting(A, 1200)), (), (SWAP, BACK), True),
        ((sighting(A, 50),), (installed(A, 600),), (SWAP, BACK), True),
        # A → B → C, and a swap that stays.
        ((sighting(A, 50), sighting(C, 1050)), (), (SWAP, ON), False),
        ((sighting(A, 50),), (installed(C, 600),), (SWAP, ON), False),
        ((sighting(A, 50), sighting(B, 1050)), (), (SWAP,), False),
        # Nobody saw one of the two, or something lies between what was seen and the run.
        ((), (installed(A, 600),), (SWAP, BACK), False),
        ((sighting(A, 400), sighting(A, 1050)), (), (SWAP, BACK), False),
        ((sighting(A, 50), sighting(A, 500)), (), (SWAP, BACK), False),
        # One version, two builds.
        ((sighting(A, 50, build="x"), sighting(A, 1050, build="y")), (), (REBUILT,), False),
        ((sighting(A, 50), sighting(A, 1050, "wandb", None)), (), (REBUILT,), False),
        ((sighting(A, 50), sighting(A, 1050)), (), (REBUILT,), True),
        # What another environment had is no word on this one.
        ((sighting(A, 50, prefix="/other"), sighting(A, 1050)), (), (SWAP, BACK), False),
    ],
)  # fmt: skip
def test_whether_both_runs_had_the_same_torch(
    seen: tuple[Sighting, ...], installs: tuple[Install, ...], events: tuple[Event, ...], same: bool
) -> None:
    known = states(seen, installs=installs, events=events)
    assert [known.same(item, GOOD, BAD) for item in events] == [same] * len(events)


def test_a_package_that_went_and_came_back_was_not_missing() -> None:
    """By whole lists: those of both runs have it."""
    gone = event("package.removed", "transformers", 300, from_="5.6.0")
    with_it, without = fingerprint(), fingerprint(package("torch", A))
    both = states(records=(record(with_it, 50), record(without, 400), record(with_it, 1050)), events=(gone,))
    assert both.same(gone, GOOD, BAD)
    since = states(records=(record(with_it, 50), record(without, 1050)), events=(gone,))
    assert not since.same(gone, GOOD, BAD)


@pytest.mark.parametrize(
    ("kind", "subject", "other"),
    [
        ("code.changed", "/srv/project", {"code": (tree(commit="b" * 40),)}),
        ("code.changed", "/srv/project", {"code": (tree(dirty=True, diff_digest="d" * 64),)}),
        ("system.driver", "nvidia-driver-580", {"driver": NEWER}),
        ("package.replaced", "python", {"python": replace(fingerprint().python, version="3.11.10")}),
        ("data.changed", "/srv/project/data/train.jsonl",
         {"data": (replace((fingerprint().data or ())[0], digest="f" * 64),)}),
    ],
)  # fmt: skip
def test_what_else_was_undone(kind: EventKind, subject: str, other: dict[str, Any]) -> None:
    change = event(kind, subject, 300)
    one, two = fingerprint(), fingerprint(**other)
    assert states(records=(record(one, 50), record(two, 400), record(one, 1050)), events=(change,)).same(
        change, GOOD, BAD
    )
    assert not states(records=(record(one, 50), record(two, 1050)), events=(change,)).same(change, GOOD, BAD)
    assert not states(records=(record(one, 50),), events=(change,)).same(change, GOOD, BAD)


def launched(identity: str, start_s: float, end_s: float | None, fingerprint_id: str = "eg1-1") -> RunRecord:
    return RunRecord(
        id=identity, host="box", user="ada", supervisor=1, pid=2, command=("python",), cwd="/", prefix="/venv",
        started=clock.iso_ns(START + int(start_s * S)),
        ended=clock.iso_ns(START + int(end_s * S)) if end_s is not None else None,
        code=0, reference="step_1", fingerprint=fingerprint_id, fingerprint_file=None,
    )  # fmt: skip


def log(times: Iterable[float], rates: Iterable[float]) -> TrainLog:
    moments = array("q", (START + int(at * S) for at in times))
    count = len(moments)
    return TrainLog(
        path="train.jsonl", fields={"tok_s": "tok_s"}, step=array("q", range(count)), time_ns=moments,
        rate=array("d", rates), line=array("q", range(1, count + 1)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "anew", "one"),
    [
        ((launched("a", -1, 45), launched("b", 48, None)), True, False),
        ((launched("a", -1, None),), False, True),
        # An evaluation beside the training, which goes on.
        ((launched("a", -1, None), launched("eval", 47, 60)), False, True),
        # Two evaluations, and nobody launched the training.
        ((launched("eval", 10, 12), launched("eval2", 48, 60)), False, False),
        ((), False, False),
    ],
)
def test_a_run_was_started_anew_where_the_records_of_launch_say_so(
    runs: tuple[RunRecord, ...], anew: bool, one: bool
) -> None:
    times = [*range(45), *(at + 5 for at in range(45, 90))]
    _, (change,) = throughput_events(read_throughput(log(times, [21_500.0] * 45 + [4_300.0] * 45), runs))
    assert (change.restarted, change.one_process) == (anew, one)


def test_what_was_undone_is_no_cause_and_is_said() -> None:
    times = [*range(45), *(at + 1000 for at in range(45, 90))]
    _, (change,) = throughput_events(read_throughput(log(times, [21_500.0] * 45 + [4_300.0] * 45)))
    assert change.restarted
    known = states((sighting(A, 20), sighting(A, 1060)), events=(SWAP, BACK))
    cleared = event("compile_cache.cleared", "/cache", 500)
    among = candidates(change, (SWAP, BACK, cleared), known)
    assert ([cause.event for cause in among.found], among.undone) == ([cleared], [SWAP, BACK])


def test_the_id_with_which_a_run_was_launched_names_what_it_had() -> None:
    taken = fingerprint()
    runs = (launched("a", -1, 101, taken.id), launched("b", 990, None, taken.id))
    known = states(records=(record(taken, 2),), events=(SWAP, BACK), runs=runs)
    assert known.same(SWAP, GOOD, BAD)
    other = states(
        records=(record(taken, 2),), events=(SWAP, BACK), runs=(runs[0], launched("b", 990, None, "eg1-x"))
    )
    assert not other.same(SWAP, GOOD, BAD)


def swaps(*seen: Sighting) -> tuple[list[tuple[str | None, str | None]], list[str]]:
    found = inferred_swaps(by_name(seen), Packages((), (), ()))
    return [(item.from_, item.to) for item in found.swaps], [item.what for item in found.contradictions]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ((sighting(A, 0), sighting(B, 9)), [(A, B)]),
        ((sighting(B, 9), sighting(A, 0)), [(A, B)]),
        ((sighting(A, 0), sighting(B, 9), sighting(C, 20)), [(A, B), (B, C)]),
        ((sighting(C, 0), sighting(A, 9), sighting(C, 20)), [(C, A), (A, C)]),
        # A process that still runs the old build stamps it after the install.
        ((sighting(A, 0), sighting(B, 9, "journal"), sighting(A, 20, loaded=True)), [(A, B)]),
        ((sighting(A, 0), sighting(B, 9, prefix="/other")), []),
    ],
)
def test_a_swap_has_the_direction_of_its_moments(
    seen: tuple[Sighting, ...], told: list[tuple[str | None, str | None]]
) -> None:
    assert swaps(*seen) == (told, [])


@pytest.mark.parametrize(
    "seen",
    [
        (sighting(A, 5), msgspec.structs.replace(sighting(B, 5), evidence=proof(path="/other"))),
        (sighting(A, 5.2, "wandb", None), sighting(B, 5.9)),
        (
            sighting(A, 5, build="x"),
            msgspec.structs.replace(sighting(A, 5, build="y"), evidence=proof(path="/other")),
        ),
    ],
)
def test_two_of_one_moment_that_disagree_are_a_contradiction(seen: tuple[Sighting, ...]) -> None:
    moment = clock.iso_ns(min(item.time_ns or 0 for item in seen))
    assert swaps(*seen) == ([], [f"which torch was here at {moment}"])
    assert swaps(*reversed(seen))[0] == []


def stamp(stage: Stage, name: str) -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(name.encode())
    assert stage.envguard("snapshot", "--into", name).returncode == 0
    time.sleep(0.05)
    return folder


def timeline(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("how", ["files written anew", "times turned round", "another folder"])
def test_stamps_of_copied_checkpoints_count_at_their_own_times(torch_stage: Stage, how: str) -> None:
    """Two stamps whose files were put there in the wrong order told a swap back."""
    stamp(torch_stage, "step_1")
    torch_stage.install("torch==2.11.0+cu130")
    stamp(torch_stage, "step_2")
    shutil.rmtree(torch_stage.project / ".envguard", ignore_errors=True)
    shutil.rmtree(torch_stage.home / ".local", ignore_errors=True)
    for name in ("step_2", "step_1"):
        folder = torch_stage.checkpoints / name
        if how == "another folder":
            shutil.copytree(folder, torch_stage.project / "outputs" / name, copy_function=shutil.copyfile)
            shutil.rmtree(folder)
        else:
            for file in (*folder.iterdir(), folder):
                at = time.time() if how == "files written anew" else 1_700_000_000 - int(name[-1])
                os.utime(file, (at, at))
        time.sleep(0.05)
    torch_stage.install("torch==2.11.0+cu128", arguments=("--reinstall", "--link-mode", "copy"))
    _, answer = timeline(torch_stage)
    told = [(item["from"], item["to"]) for item in answer["events"] if item["kind"] == "package.replaced"]
    assert (A, B) in told
    assert told.count((B, A)) == 1  # the install that lies there now


def test_a_swap_that_was_put_back_says_what_the_checkpoint_was_made_with(torch_stage: Stage) -> None:
    """It was said to be made with the build in between, which `restore` would then have brought back."""
    stamp(torch_stage, "step_1")
    for version in (B, A):
        torch_stage.install(f"torch=={version}")
        time.sleep(0.05)
    code, answer = timeline(torch_stage, "--since-checkpoint", "step_1")
    (finding,) = answer["findings"]
    assert (code, finding["title"]) == (1, "torch was replaced and put back after step_1")
    assert f"step_1 was made with {A}, by its stamp" in finding["says"]
    assert torch_stage.envguard("diff", "step_1").returncode == 0


def test_of_two_swaps_the_way_back_is_to_the_build_of_the_stamp(torch_stage: Stage) -> None:
    build_wheel(torch_stage.wheels, "plain", "1.0")
    build_wheel(torch_stage.wheels, "plain", "2.0")
    build_wheel(torch_stage.wheels, "plain", "3.0")
    torch_stage.install("plain==1.0")
    stamp(torch_stage, "step_1")
    torch_stage.install("plain==2.0")
    time.sleep(0.6)
    torch_stage.install("plain==3.0")
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_1")
    (finding,) = [item for item in answer["findings"] if item["title"].startswith("plain replaced")]
    assert "made with the old build" not in finding["says"]
    assert "step_1 was made with 1.0, by its stamp: plain was replaced more than once since." in finding["says"]
    (change,) = [item for run in answer["transactions"] for item in run["packages"] if item["name"] == "plain"]
    archives = {item["version"]: item["restorable"] for item in change["previous"]}
    assert archives["1.0"] in finding["says"]
    assert archives["2.0"] not in finding["says"]


@pytest.mark.parametrize("last", [A, "2.12.0"])
def test_without_a_stamp_the_build_in_between_is_not_the_checkpoints(torch_stage: Stage, last: str) -> None:
    """A → B → A, and A → B → C: `diff` and `restore` took B for what the checkpoint was made with."""
    if last != A:
        build_wheel(torch_stage.wheels, "torch", last)
    folder = torch_stage.checkpoints / "step_1"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    time.sleep(0.05)
    for version in (B, last):
        torch_stage.install(f"torch=={version}")
        time.sleep(3.1 if version == B else 0)
    _, answer = timeline(torch_stage, "--since-checkpoint", "step_1")
    (finding,) = [item for item in answer["findings"] if item["title"].startswith("torch replaced")]
    assert "made with the old build" not in finding["says"]
    assert f"No witness has {B} before step_1 was saved: what that was made with is not known." in finding["says"]
    assert "envguard restore" not in finding["says"]
    code = torch_stage.envguard("diff", "step_1", "--json")
    assert code.returncode == 3, code.stdout
    plan = torch_stage.envguard("restore", "step_1", "--dry-run", "--json")
    assert [item for item in json.loads(plan.stdout)["plan"] if item["to"] == B] == []
