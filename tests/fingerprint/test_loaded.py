"""What a process runs, where that need not be what lies on disk: the decisions, on made-up values."""

from __future__ import annotations

import pytest

from envguard import clock
from envguard.acquire.processes.own_process import Held
from envguard.fingerprint.loaded import Before, Process, reconcile
from envguard.model.fingerprint import Package

STARTED_NS = 1_800_000_000 * clock.NS


def installed(after_start_s: float) -> Package:
    return Package(
        name="late", version="1", build="b", installer="uv", location="/site",
        installed_at=clock.iso_ns(STARTED_NS + int(after_start_s * clock.NS)),
    )  # fmt: skip


@pytest.mark.parametrize(("after_start_s", "there"), [(-5.0, True), (-0.001, True), (0.009, True), (1.0, False)])
def test_what_was_installed_in_the_tick_of_the_start_is_no_later_arrival(after_start_s: float, there: bool) -> None:
    package = installed(after_start_s)
    process = Process(
        STARTED_NS,
        frozenset(),
        held=lambda name: Held(imported=False),
        recover=lambda name, held: None,
    )
    outcome = reconcile({"late": package}, None, Before(({"late": package},)), process)
    assert ("late" in outcome.packages) == there
    assert bool(outcome.diverged) != there
