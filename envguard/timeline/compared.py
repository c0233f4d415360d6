"""The comparison of `diff`, as `timeline` takes it: a checkpoint's stamp against the environment of now.

Events are read from traces that a change leaves, and a change need leave none: a time can be put back, a variable has
no time at all. What the stamp has and the environment has otherwise changed all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.stamps import Stamp
from envguard.acquire.survey import Survey
from envguard.config import PolicyRule
from envguard.fingerprint.diff import compare
from envguard.fingerprint.machine_changes import facet_of_unknown
from envguard.fingerprint.rules import PTH_LEAVES, STARTUP_CODE
from envguard.model.drift import DiffReport, Drift
from envguard.model.event import Difference
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import Fingerprint
from envguard.timeline.packages.records import taken_ns


@dataclass(frozen=True)
class Compared:
    """Stamp and environment, and what `diff` answers of the two."""

    stamp: Stamp
    then: Fingerprint
    live: Fingerprint
    report: DiffReport

    @property
    def taken_ns(self) -> int:
        """When the stamp was taken: what differs changed after that."""
        return taken_ns(self.stamp)

    @property
    def objections(self) -> tuple[Drift, ...]:
        """Every drift for which `diff` exits 1."""
        return tuple(drift for drift in self.report.drifts if drift.severity != "info")

    @property
    def startup(self) -> dict[str, str]:
        """Path of a file that has a say in every start → what `diff` calls it."""
        found = (*self.then.problems, *self.live.problems)
        return {item.path: item.subject for item in found if item.kind in (*STARTUP_CODE, PTH_LEAVES) and item.path}

    def equal(self, about: Iterable[Difference]) -> bool:
        """Whether the two sides were compared in all of this, and are equal; a file is named by its path."""
        doubted = {facet_of_unknown(item.what) for item in self.report.unknown}
        differ = {(drift.facet, drift.subject) for drift in self.report.drifts}
        startup = self.startup
        for item in about:
            subject = startup.get(item.subject) if item.subject.startswith("/") and item.facet == "packages" else None
            named = subject or item.subject
            if (item.facet, named) in differ or item.facet in doubted:
                return False
            if item.facet == "packages" and subject is None:
                return False  # neither side knows the file
        return True

    def proof(self, field: str, value: str | None) -> Evidence:
        """The stamp's own word."""
        return Evidence(witness="stamp", path=self.stamp.path, field=field, value=value or "none")


def stamp_of(survey: Survey, checkpoint: Checkpoint) -> Stamp | None:
    """The checkpoint's own stamp, whether it counts or not; None where it has none."""
    return next((stamp for stamp in survey.stamps if stamp.checkpoint.path == checkpoint.path), None)


def compare_with_stamp(
    survey: Survey,
    checkpoint: Checkpoint,
    live: Callable[[Fingerprint], Fingerprint],
    policy: Sequence[PolicyRule] = (),
) -> Compared | None:
    """What `diff CHECKPOINT` answers; None for a checkpoint without a stamp that counts, and for one that was made in
    another environment of this machine, where nothing that differs need have happened.

    `live` takes the fingerprint of now, and looks for compile caches where the given one had its own. Raises
    `UsageError` for a policy that names no facet.
    """
    stamp = stamp_of(survey, checkpoint)
    if stamp is None or not stamp.counts or stamp.fingerprint is None or stamp.path in survey.elsewhere:
        return None
    now = live(stamp.fingerprint)
    return Compared(stamp, stamp.fingerprint, now, compare(stamp.fingerprint, now, policy, checkpoint.name, "live"))
