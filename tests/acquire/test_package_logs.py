"""apt's history and dpkg's log as they are found: rotated, packed, failed, transitional, in local time."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from envguard.acquire.machine.package_logs import parse_apt, parse_dpkg, read_apt, read_dpkg
from envguard.acquire.machine.zone import Zone
from envguard.acquire.seam.recorded import BundleHost
from envguard.clock import NS
from envguard.model.evidence import Unknown
from envguard.timeline.events.system import package_events
from tests.incidents.paper_machine import PaperMachine

BERLIN = Zone(ZoneInfo("Europe/Berlin"), "test")
UTC_ZONE = Zone(UTC, "test")

UPGRADE = (
    "Upgrade: nvidia-driver-595-server:amd64 (595.71.05-0ubuntu1, 595.84-0ubuntu1), "
    "tzdata:amd64 (2026a-1, 2026b-1), docker-ce:amd64 (5:28.1.0-1, 5:28.2.0-1)"
)
HISTORY = f"""
Start-Date: 2026-05-19  06:12:31
Commandline: /usr/bin/unattended-upgrade
{UPGRADE}
End-Date: 2026-05-19  06:14:02

Start-Date: 2026-05-20  10:00:00
Commandline: apt-get install -y linux-image-6.8.0-61-generic
Requested-By: me (1000)
Install: linux-image-6.8.0-61-generic:amd64 (6.8.0-61.63, automatic)
Error: Sub-process /usr/bin/dpkg returned an error code (1)
End-Date: 2026-05-20  10:00:40

Start-Date: not a date
Upgrade: cuda:amd64 (1, 2)
"""
DPKG = """2026-05-19 06:12:31 startup packages configure
2026-05-19 06:12:33 upgrade nvidia-driver-595-server:amd64 595.71.05-0ubuntu1 595.84-0ubuntu1
2026-05-19 06:12:33 status half-configured nvidia-driver-595-server:amd64 595.71.05-0ubuntu1
2026-05-19 06:12:40 status installed nvidia-driver-595-server:amd64 595.84-0ubuntu1
2026-05-21 09:00:00 install nvidia-driver-495:amd64 <none> 510.73.05-0ubuntu0.22.04.1
2026-05-21 09:00:01 status half-installed nvidia-driver-495:amd64 510.73.05-0ubuntu0.22.04.1
2026-05-21 09:00:02 upgrade tzdata:all 2026a-1 2026b-1
torn li"""


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def test_a_stanza_with_two_part_and_epoch_versions() -> None:
    run = next(iter(parse_apt("history.log", HISTORY, BERLIN)))
    assert run.start.start_ns == seconds("2026-05-19T06:12:31+02:00") * NS
    assert [(step.name, step.old, step.new) for step in run.steps] == [
        ("nvidia-driver-595-server", "595.71.05-0ubuntu1", "595.84-0ubuntu1"),
        ("tzdata", "2026a-1", "2026b-1"),
        ("docker-ce", "5:28.1.0-1", "5:28.2.0-1"),
    ]


def test_a_failed_run_is_told_as_failed_and_one_without_a_date_is_left_out() -> None:
    runs = tuple(parse_apt("history.log", HISTORY, UTC_ZONE))
    assert [run.error for run in runs] == [None, "Sub-process /usr/bin/dpkg returned an error code (1)"]
    events = list(package_events(runs, ()))
    assert "it FAILED: Sub-process" in events[1].summary


def test_five_lines_of_dpkg_are_one_change_with_the_version_of_the_version_field() -> None:
    changes = tuple(parse_dpkg("dpkg.log", DPKG, UTC_ZONE))
    assert [(change.step.name, change.step.old, change.step.new) for change in changes] == [
        ("nvidia-driver-595-server", "595.71.05-0ubuntu1", "595.84-0ubuntu1"),
        ("nvidia-driver-495", None, "510.73.05-0ubuntu0.22.04.1"),
    ]


def test_apt_and_dpkg_tell_one_event_of_one_run() -> None:
    runs, changes = tuple(parse_apt("h", HISTORY, UTC_ZONE)), tuple(parse_dpkg("d", DPKG, UTC_ZONE))
    events = list(package_events(runs, changes))
    drivers = [event for event in events if event.kind == "system.driver"]
    assert [(event.subject, event.from_, event.to) for event in drivers] == [
        ("nvidia-driver-595-server", "595.71.05-0ubuntu1", "595.84-0ubuntu1"),
        ("nvidia-driver-495", None, "510.73.05-0ubuntu0.22.04.1"),
    ]
    # apt and dpkg are two logs of one package manager, and no second writer.
    assert drivers[0].confidence == "strong"
    assert {item.witness for item in drivers[0].evidence} == {"apt", "dpkg"}


def test_rotated_and_packed_logs_are_read_and_a_broken_one_is_said() -> None:
    machine = PaperMachine(
        host="h", now="2026-06-01T00:00:00+00:00", boot="2026-05-01T00:00:00+00:00", offset_s=0, cwd="/root"
    )
    machine.file("/var/log/apt/history.log.1.gz", gzip.compress(HISTORY.encode()))
    machine.file("/var/log/apt/history.log.2.gz", b"\x1f\x8b torn")
    machine.file("/var/log/dpkg.log.1", DPKG)
    unknown: list[Unknown] = []
    host = BundleHost(machine.record(), "paper")
    assert len(read_apt(host, UTC_ZONE, unknown) or ()) == 2
    assert len(read_dpkg(host, UTC_ZONE, unknown) or ()) == 2
    assert [item.what for item in unknown] == ["/var/log/apt/history.log.2.gz"]


def test_no_history_is_told_apart_from_an_empty_one() -> None:
    machine = PaperMachine(
        host="h", now="2026-06-01T00:00:00+00:00", boot="2026-05-01T00:00:00+00:00", offset_s=0, cwd="/root"
    )
    machine.folder("/var/log")
    assert read_apt(BundleHost(machine.record(), "paper"), UTC_ZONE, []) is None


def _run(start: str, end: str | None, package: str = "libnvidia-compute-580") -> str:
    ended = f"End-Date: {end}\n" if end else ""
    return f"\nStart-Date: {start}\nCommandline: apt upgrade\nUpgrade: {package}:amd64 (1, 2)\n{ended}"


@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        # The clocks go back at 03:00 to 02:00, so that 02:00 to 03:00 comes twice.
        ("2026-10-25 02:14:59", "2026-10-25 02:15:03", ["2026-10-25 02:15:01"],
         ["2026-10-25 02:31:00", "2026-10-25 02:45:01", "2026-10-25 02:05:00", "2026-10-25 03:15:01"]),
        ("2026-10-25 01:59:50", "2026-10-25 02:10:00", ["2026-10-25 01:59:55", "2026-10-25 02:05:00"],
         ["2026-10-25 02:31:00"]),
        ("2026-10-25 02:58:00", "2026-10-25 02:03:00", ["2026-10-25 02:59:00", "2026-10-25 02:01:00"],
         ["2026-10-25 02:31:00"]),
        ("2026-10-25 02:50:00", "2026-10-25 03:01:00", ["2026-10-25 03:00:30"], ["2026-10-25 03:15:00"]),
        ("2026-10-25 02:14:59", None, ["2026-10-25 02:15:01"], ["2026-10-25 02:45:01"]),
        # The hour that is skipped, and one of the other days.
        ("2026-03-29 02:14:59", "2026-03-29 02:15:03", ["2026-03-29 02:15:01"], ["2026-03-29 02:45:00"]),
        ("2026-06-01 02:14:59", "2026-06-01 02:15:03", ["2026-06-01 02:15:01"], ["2026-06-01 02:31:00"]),
    ],
)  # fmt: skip
def test_a_run_in_the_hour_that_comes_twice_is_no_hour_wide(
    start: str, end: str | None, inside: list[str], outside: list[str]
) -> None:
    (run,) = parse_apt("history.log", _run(start, end), BERLIN)
    lines = [f"{time} upgrade nvidia-dkms-580:amd64 {at} 2" for at, time in enumerate((*inside, *outside))]
    changes = tuple(parse_dpkg("dpkg.log", "\n".join(lines), BERLIN))
    apart = [str(event.from_) for event in package_events((run,), changes) if event.subject == "nvidia-dkms-580"]
    assert sorted(apart) == [str(at) for at in range(len(inside), len(inside) + len(outside))]
