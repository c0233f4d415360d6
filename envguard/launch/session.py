"""What the gate saw, what it weighed, what it decided: the middle of a launch, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.launch import gate, waivers
from envguard.launch.waivers import Waiver
from envguard.model.action import Check, LaunchReport, Run
from envguard.model.drift import DiffReport
from envguard.model.fingerprint import Fingerprint
from envguard.project import Project

# Stands where the name of a reference does, when there is none yet.
FIRST_START = "the first start"
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Gate:
    """What the gate saw and decided, before anything is started or written.

    `reference` is the REF as `restore` takes it, None where there is none that it could.
    """

    live: Fingerprint
    reference: str | None
    diff: DiffReport
    checks: tuple[Check, ...]
    given: tuple[Waiver, ...]
    standing: tuple[Waiver, ...]
    """Waivers in force from earlier launches."""
    verdict: gate.Verdict
    notes: tuple[str, ...]

    def report(self, run: Run | None = None) -> LaunchReport:
        """The answer of `launch`, with the run where there is one."""
        return LaunchReport(
            reference=self.diff.a.label,
            fingerprint=self.live.id,
            decision=self.verdict.decision,
            drifts=self.diff.drifts,
            unknown=self.diff.unknown,
            waived=self.verdict.waived,
            preflight=self.checks,
            run=run,
            notes=self.notes,
        )


def weigh(
    project: Project,
    live: Fingerprint,
    diff: DiffReport,
    reference: str | None,
    checks: Sequence[Check],
    given: Sequence[Waiver],
    warn: Warn,
    *,
    inferred: bool = False,
) -> Gate:
    """Decides, with the waivers of this command line and those in force from earlier ones; `inferred`: the reference
    is a checkpoint without a stamp."""
    now = clock.now()
    try:
        standing, over = waivers.standing(waivers.read_waivers(project.state), now)
    except (OSError, ValueError) as error:
        warn(f"earlier waivers cannot be read and count as none: {waivers.waiver_file(project.state)}: {error}")
        standing, over = (), ()
    waiving = (*given, *standing)
    verdict = gate.decide(diff.drifts, diff.unknown, checks, waiving, project.config.refuse, now, inferred=inferred)
    notes = [_expired_note(waiver) for waiver in (*verdict.expired, *over)]
    notes += [f"waiver {waiver} was not needed" for waiver in verdict.unused if waiver in given]
    return Gate(live, reference, diff, tuple(checks), tuple(given), tuple(standing), verdict, tuple(notes))


def _expired_note(waiver: Waiver) -> str:
    assert waiver.until is not None
    return f"waiver {waiver} of {waiver.author} ended at {clock.local(waiver.until)} and counts as none"
