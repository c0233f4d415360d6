"""The gate: what stands against a start, what is waived, and which of the contract's codes says so. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envguard.fingerprint.machine_changes import facet_of_unknown
from envguard.launch.waivers import Waiver
from envguard.model.action import Check, Waived
from envguard.model.drift import Drift
from envguard.model.evidence import Unknown

GO = 0
UNDETERMINED = 3
TRY_AGAIN = 75  # sysexits' EX_TEMPFAIL
REFUSED = 78  # sysexits' EX_CONFIG


@dataclass(frozen=True)
class Verdict:
    """What was decided and why; `drifts`, `unknown` and `checks` are those that stand against the start."""

    code: int
    drifts: tuple[Drift, ...]
    unknown: tuple[Unknown, ...]
    checks: tuple[Check, ...]
    waived: tuple[Waived, ...]
    unused: tuple[Waiver, ...]
    expired: tuple[Waiver, ...]

    @property
    def decision(self) -> Literal["go", "refuse", "retry"]:
        if self.code == GO:
            return "go"
        return "retry" if self.code == TRY_AGAIN else "refuse"


def decide(
    drifts: Sequence[Drift],
    unknown: Sequence[Unknown],
    checks: Sequence[Check],
    waivers: Sequence[Waiver],
    refuse: Literal["warn", "block"],
    now: str,
    *,
    inferred: bool = False,
) -> Verdict:
    """Weighs a comparison and the pre-flight checks against the waivers.

    A drift stands from `refuse` upwards; a check that failed or could not be made stands; what is undetermined
    stands. Only `--waive unknown` covers what is undetermined: waiving a known drift of the same facet says nothing
    about one that nobody has seen. `inferred`: nothing recorded the reference's environment, and drifts are what
    other witnesses know of it; the start is then undetermined, unless that was waived.
    """
    used: dict[Waiver, list[str]] = {}
    in_force = [waiver for waiver in waivers if not waiver.expired(now)]

    def stands(facet: str, subject: str) -> bool:
        for waiver in in_force:
            if waiver.covers(facet, subject):
                used.setdefault(waiver, []).append(f"{facet}:{subject}")
                return False
        return True

    grades = ("block",) if refuse == "block" else ("block", "warn")
    follows = _follows_from_passing(checks)
    against = tuple(
        d for d in drifts if d.severity in grades and d.facet not in follows and stands(d.facet, d.subject)
    )
    unseen = tuple(u for u in unknown if facet_of_unknown(u.what) not in follows and stands("unknown", u.what))
    failed = tuple(c for c in checks if c.ok is False and stands(c.facet, c.check))
    unmade = tuple(c for c in checks if c.ok is None and c.facet not in follows and stands("unknown", c.check))
    return Verdict(
        code=_code(() if inferred and unseen else against, failed, bool(unseen or unmade)),
        drifts=against,
        unknown=unseen,
        checks=(*failed, *unmade),
        waived=tuple(_waived(waiver, covered) for waiver, covered in used.items()),
        unused=tuple(waiver for waiver in in_force if waiver not in used),
        expired=tuple(waiver for waiver in waivers if waiver.expired(now)),
    )


def _follows_from_passing(checks: Sequence[Check]) -> frozenset[str]:
    """Facets whose drift says nothing yet: while a driver is being upgraded, driver and GPUs read as changed or gone.

    After the reboot they are compared anew.
    """
    upgrading = any(check.facet == "driver" and check.passing and check.ok is False for check in checks)
    return frozenset({"driver", "gpu"}) if upgrading else frozenset()


def _code(drifts: Sequence[Drift], failed: Sequence[Check], undetermined: bool) -> int:
    if drifts or any(not check.passing for check in failed):
        return REFUSED
    if undetermined:
        return UNDETERMINED
    return TRY_AGAIN if failed else GO


def _waived(waiver: Waiver, covered: Sequence[str]) -> Waived:
    return Waived(
        facet=waiver.facet,
        subject=waiver.subject,
        because=waiver.because,
        author=waiver.author,
        until=waiver.until,
        covers=tuple(covered),
    )
