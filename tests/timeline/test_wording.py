"""What findings and goals say where little is known: no cause that the process could not feel, no `X → X`."""

from __future__ import annotations

import io
from array import array

import pytest
from rich.console import Console

from envguard import clock
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.train_log import TrainLog
from envguard.model.event import (
    Event,
    EventKind,
    Finding,
    PackageChange,
    PreviousBuild,
    Requirement,
    TimelineReport,
    Transaction,
)
from envguard.model.evidence import Evidence, Unknown
from envguard.report.timeline import render
from envguard.restore.witnesses import also_named, from_packages
from envguard.timeline.events.happening import make_event
from envguard.timeline.events.logs import RateChange
from envguard.timeline.findings.old_build import way_back
from envguard.timeline.findings.runs import fall_findings
from envguard.timeline.findings.swaps import why
from envguard.timeline.packages.inferred import inferred_swaps
from envguard.timeline.packages.package_events import Packages
from envguard.timeline.packages.previous import Previous, Sighting, by_name
from envguard.timeline.packages.transactions import Version
from envguard.timeline.rates.causes import LOADED
from envguard.timeline.rates.throughput import Segment
from tests.fingerprint.made import fingerprint, replace

S = 1_000_000_000
START = 1_779_000_000 * S
TOLD = (Evidence(witness="journal", path="journal.jsonl", field="torch", value="2.11.0"),)


def happened(kind: EventKind, subject: str, at_s: int) -> Event:
    time = START + at_s * S
    return make_event(kind, subject, time, time, f"{subject} changed", TOLD, from_="1", to="2")


def fall(restarted: bool) -> RateChange:
    log = TrainLog(path="train.jsonl", fields={}, step=array("q", range(100)))
    event = happened("run.throughput", "train.jsonl", 100)
    before, after = Segment(0, 49, 76.9, 50, 0), Segment(50, 99, 65.4, 50, 1 if restarted else 0)
    return RateChange(before, after, event, log, START, START + 100 * S, restarted)


@pytest.mark.parametrize("kind", LOADED)
def test_what_a_running_process_does_not_notice_is_never_its_likeliest_cause(kind: EventKind) -> None:
    swap = happened(kind, "torch", 50)
    (same,) = fall_findings([fall(restarted=False)], [swap])
    assert "Likeliest" not in same.says
    assert "nothing that a running process notices" in same.says
    assert any("keeps the packages and code it loaded" in caveat for caveat in same.caveats)
    (anew,) = fall_findings([fall(restarted=True)], [swap])
    assert "Likeliest cause" in anew.says


def test_what_it_does_notice_comes_first_however_light_it_weighs() -> None:
    swap, boot = happened("package.replaced", "torch", 50), happened("system.boot", "boot", 50)
    (finding,) = fall_findings([fall(restarted=False)], [swap, boot])
    assert "boot changed" in finding.says
    assert any(caveat.startswith("torch was replaced too") for caveat in finding.caveats)


def test_a_time_in_a_sentence_is_told_in_the_zone_of_the_rows() -> None:
    says = "had been there since 2026-05-18T18:41:07.123456+00:00, stamped 2026-05-18 20:41:07 +02:00; 2026-05-18."
    told = clock.told(says, lambda text: clock.local(text, 7200))
    assert told == "had been there since 2026-05-18 20:41:07 +02:00, stamped 2026-05-18 20:41:07 +02:00; 2026-05-18."
    finding = Finding(rank=1, title="t", says=says, because=(), caveats=("but 2026-05-18T18:41:07+00:00",))
    unknown = (Unknown("x", "since 2026-05-18T18:41:07.123+00:00"),)
    report = TimelineReport(checkpoint=None, events=(), transactions=(), findings=(finding,), unknown=unknown)
    out = io.StringIO()
    console = Console(file=out, width=200)
    render(report, title="", offset=lambda seconds: 7200, verbose=False, every=False)(console)
    shown = out.getvalue()
    assert (shown.count("20:41:07 +02:00"), "18:41" in shown) == (4, False)


def test_quiet_says_how_many_findings_there_are_and_a_line_of_each() -> None:
    findings = tuple(Finding(rank=n, title=f"title {n}", says="long", because=(), caveats=("but",)) for n in (1, 2))
    report = TimelineReport(checkpoint=None, events=(), transactions=(), findings=findings, unknown=())
    out = io.StringIO()
    console = Console(file=out, width=200)
    render(report, title="place", offset=None, verbose=False, every=False, quiet=True)(console)
    shown = out.getvalue()
    assert shown.splitlines() == ["2 findings", "1. title 1", "2. title 2"]


def test_what_stays_as_it_is_since_the_checkpoint_was_saved_is_told_in_local_time() -> None:
    saved = clock.nanoseconds("2026-05-18T18:41:07.400+00:00")
    checkpoint = Checkpoint("step_1", "/c/step_1", "directory", 1, "/c", saved, None, saved, None)
    notes = from_packages("step_1", checkpoint, (), "it has no stamp").notes
    local = clock.local("2026-05-18T18:41:07.400+00:00")
    assert f"packages that no witness saw change since {local} are left as they are" in notes


BUILD = PreviousBuild(
    version="2.11.0+cu128",
    build="b",
    cuda=None,
    git_version=None,
    restorable="/cache/a",
    witnesses=("stamp",),
    evidence=(),
)


def test_a_copy_that_can_be_restored_is_told_with_the_way() -> None:
    identity = fingerprint().id
    proofs = (Evidence(witness="wandb", path="r", field="line 1", value="torch==2.11.0"),)
    stamped = (*proofs, Evidence(witness="stamp", path="c/envguard.json", field="packages", value=identity))
    assert way_back(BUILD, "step 690") == "`envguard restore 'step 690'`"
    assert way_back(replace(BUILD, evidence=stamped), None) == f"`envguard restore {identity}`"
    assert "saved before this" in way_back(replace(BUILD, evidence=proofs), None)


def test_two_builds_of_one_version_are_told_apart() -> None:
    version = Version("2.11.0", "2.11.0")
    seen = [
        Sighting("torch", version, START + at * S, "journal", TOLD, build=build * 64)
        for at, build in ((0, "a"), (9, "b"))
    ]
    (event,) = inferred_swaps(by_name(seen), Packages((), (), ())).swaps
    assert event.summary == (
        "torch 2.11.0 (build aaaaaaaaaaaa) → 2.11.0 (build bbbbbbbbbbbb), some time between two records"
    )


def test_what_else_is_named_is_named_once_and_by_what_tells_it_apart() -> None:
    def candidate(full: str, build: str | None) -> Previous:
        version = Version(full, full)
        return Previous(version, (Sighting("torch", version, START, "journal", TOLD, build=build),))

    found = (
        candidate("2.11.0", "a" * 64),
        candidate("2.11.0", "b" * 64),
        candidate("2.11.0", "b" * 64),
        candidate("2.11.0", None),
        candidate("2.10.0", "c" * 64),
        candidate("2.10.0", "d" * 64),
    )
    assert also_named(found) == ["2.11.0 as build bbbbbbbbbbbb", "2.10.0"]
    assert also_named(found[:1]) == []


def test_what_was_asked_for_by_name_was_not_merely_permitted() -> None:
    """`pip install numpy==2.4.5`: that another package would take either version explains nothing."""
    allowed = (Requirement(package="pandas", version="3.1.1", requires="numpy>=2.0"),)
    change = PackageChange(name="numpy", from_="2.4.6", to="2.4.5", allowed_by=allowed)
    run = Transaction(
        id="t1",
        start="2026-01-01T00:00:00+00:00",
        end="2026-01-01T00:00:01+00:00",
        tool="pip",
        packages=(change,),
        roots=("numpy", "safetensors"),
    )
    assert why(change, run) == "Nothing required it: numpy was itself asked for."
    assert why(change, replace(run, roots=("pandas",))).startswith("Permitted, not forced: 2.4.6 meets pandas 3.1.1")
