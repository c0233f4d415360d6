"""Local time with its doubtful hours, boots, and clocks that were set."""

from __future__ import annotations

import struct
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from envguard import clock
from envguard.acquire.machine.boots import ClockStep, parse_wtmp
from envguard.acquire.machine.zone import Zone, epoch_ns, parse_moment
from envguard.clock import NS
from envguard.errors import UsageError
from envguard.model.evidence import Evidence
from envguard.timeline.asked import parse_kinds, parse_time
from envguard.timeline.events.clock import weigh
from envguard.timeline.events.happening import make_event

BERLIN = Zone(ZoneInfo("Europe/Berlin"), "test")


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * NS


def test_an_ordinary_local_time_is_one_moment() -> None:
    span = parse_moment("2026-05-18 20:41:07", BERLIN)
    assert span is not None
    assert (span.start_ns, span.end_ns, span.doubt) == (ns("2026-05-18T20:41:07+02:00"),) * 2 + (None,)


def test_the_hour_that_comes_twice_is_an_interval_and_says_why() -> None:
    span = parse_moment("2026-10-25 02:30:00", BERLIN)
    assert span is not None
    assert (span.start_ns, span.end_ns) == (ns("2026-10-25T02:30:00+02:00"), ns("2026-10-25T02:30:00+01:00"))
    assert "came twice" in (span.doubt or "")


def test_the_hour_that_is_skipped_says_so() -> None:
    span = parse_moment("2026-03-29 02:30:00", BERLIN)
    assert span is not None
    assert "skipped" in (span.doubt or "")


@pytest.mark.parametrize("text", ["2026-10-25T02:30:00+01:00", "2026-10-25 01:30:00Z"])
def test_a_time_with_its_offset_is_never_doubtful(text: str) -> None:
    span = parse_moment(text, BERLIN)
    assert span is not None
    assert (span.start_ns, span.doubt) == (ns("2026-10-25T01:30:00+00:00"), None)


def test_numbers_are_told_by_their_size() -> None:
    second = 1_779_129_667
    assert {epoch_ns(second * scale) for scale in (1, 1000, 10**6, 10**9)} == {second * NS}
    assert epoch_ns(12.5) is None


def record(kind: int, seconds: int, host: bytes = b"") -> bytes:
    return struct.pack(
        "<hxxi32s4s32s256shhiii4i20x", kind, 0, b"~", b"~~", b"reboot", host, 0, 0, 0, seconds, 0, 0, 0, 0, 0
    )


def test_wtmp_gives_boots_and_clock_steps_and_passes_over_what_is_torn() -> None:
    data = record(2, 1_778_000_000, b"6.8.0-60") + record(7, 1_778_000_100) + record(2, 12)
    data += record(4, 1_778_001_000) + record(3, 1_778_005_000) + record(2, 1_778_100_000)[:100]
    boots, steps = parse_wtmp(data)
    assert [(boot.time_ns // NS, boot.kernel) for boot in boots] == [(1_778_000_000, "6.8.0-60")]
    assert steps == [ClockStep(1_778_001_000 * NS, 1_778_005_000 * NS)]


def event_at(seconds: int) -> list[str]:
    evidence = [Evidence(witness="dist-info", path="/x", field="mtime", value="")]
    event = make_event("package.installed", "x", seconds * NS, None, "x installed", evidence)
    (weighed,) = weigh([event], [ClockStep(1_778_001_000 * NS, 1_778_005_000 * NS)], 1_779_000_000.0)
    return [weighed.confidence, weighed.summary]


def test_an_event_where_the_clock_was_set_is_weak_and_one_elsewhere_is_not() -> None:
    assert event_at(1_778_000_500) == ["strong", "x installed"]
    assert event_at(1_778_002_000)[0] == "weak"
    assert "the clock was set forward by 1 h 06 min" in event_at(1_778_002_000)[1]


def test_an_event_in_the_future_is_weak() -> None:
    assert event_at(1_779_500_000) == ["weak", "x installed (its time lies in the future: a clock was wrong)"]


NOW = datetime.fromisoformat("2026-05-20T09:30:00+02:00").timestamp()


@pytest.mark.parametrize(
    ("text", "latest", "expected"),
    [
        ("2026-05-18T20:41:07+02:00", False, "2026-05-18T20:41:07+02:00"),
        ("2026-05-18 20:41", False, "2026-05-18T20:41:00+02:00"),
        ("2026-05-18", False, "2026-05-18T00:00:00+02:00"),
        ("2026-05-18", True, "2026-05-18T23:59:59+02:00"),
        ("8:05", False, "2026-05-20T08:05:00+02:00"),
        ("3h", False, "2026-05-20T06:30:00+02:00"),
        ("2 days ago", False, "2026-05-18T09:30:00+02:00"),
        ("2026-10-25 02:30", True, "2026-10-25T02:30:00+01:00"),
    ],
)
def test_times_that_a_person_writes(text: str, latest: bool, expected: str) -> None:
    assert parse_time(text, BERLIN, NOW, latest) == datetime.fromisoformat(expected).timestamp()


def test_what_is_no_time_and_no_kind_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_time("yesterday-ish", BERLIN, NOW)
    with pytest.raises(UsageError) as caught:
        parse_kinds(["pakage"])
    assert caught.value.hint == "did you mean `package`?"
    assert parse_kinds(["package"]) == {"package.installed", "package.replaced", "package.removed"}


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59", "1970-01-01T00:00:00Z", "2100-01-01"])
def test_a_placeholder_is_no_time(text: str) -> None:
    assert parse_moment(text, BERLIN) is None


def test_times_of_a_file_that_no_calendar_has_are_told_as_the_bound() -> None:
    assert clock.iso_ns(1 << 62).startswith("2116")
    assert clock.iso_ns(10**30)[:4] == clock.iso(1e30)[:4] == "9987"
    assert clock.iso_ns(-(10**30))[:4] == clock.iso(-1e30)[:4] == "1019"
    for text in (clock.iso_ns(10**30), clock.iso_ns(-(10**30))):
        assert clock.local(text, 14 * 3600)[:4] == text[:4]
