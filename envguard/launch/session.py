"""One launch from end to end: take, compare, decide, start, watch, record."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envguard import clock
from envguard.acquire.collector import redact_argv
from envguard.errors import InputError
from envguard.launch import child, earlier, gate, start, waivers
from envguard.launch.child import Ended
from envguard.launch.ledger import Ledger
from envguard.launch.waivers import Waiver
from envguard.model.action import Check, LaunchReport, Run
from envguard.model.drift import DiffReport
from envguard.model.fingerprint import Fingerprint
from envguard.model.run import RunRecord
from envguard.project import Project
from envguard.state import runs

Warn = Callable[[str], None]
_redact: Callable[[Sequence[str]], list[str]] = redact_argv


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
) -> Gate:
    """Decides, with the waivers of this command line and those in force from earlier ones."""
    now = clock.now()
    try:
        standing, over = waivers.standing(waivers.read_waivers(project.state), now)
    except (OSError, ValueError) as error:
        warn(f"earlier waivers cannot be read and count as none: {waivers.waiver_file(project.state)}: {error}")
        standing, over = (), ()
    verdict = gate.decide(diff.drifts, diff.unknown, checks, (*given, *standing), project.config.refuse, now)
    notes = [_expired_note(waiver) for waiver in (*verdict.expired, *over)]
    notes += [f"waiver {waiver} was not needed" for waiver in verdict.unused if waiver in given]
    return Gate(live, reference, diff, tuple(checks), tuple(given), verdict, tuple(notes))


def _expired_note(waiver: Waiver) -> str:
    assert waiver.until is not None
    return f"waiver {waiver} of {waiver.author} ended at {clock.local(waiver.until)} and counts as none"


@dataclass(frozen=True)
class Plan:
    """What is to be run once the gate says go."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    compile_cache: Path | None
    on_drift: Literal["warn", "stop"]
    stdout_to_stderr: bool
    records_baseline: bool
    without_end: tuple[RunRecord, ...]
    """Earlier runs that nobody watches any more, to be marked as such."""


def run(project: Project, gated: Gate, plan: Plan, say: Warn, warn: Warn) -> tuple[LaunchReport, int]:
    """Starts the command, stays with it to its end, and returns the answer and the code to exit with."""
    identity = runs.new_run_id()
    kept = _keep_fingerprint(project.state, identity, gated, plan.without_end, warn)
    if plan.records_baseline:
        _record_baseline(project.state, gated, say)
    cache = _private_cache(plan.compile_cache, warn)
    environ = start.child_environment(plan.environ, identity, kept, cache)
    ledger = Ledger(project.state, _record(gated, plan, identity, kept, cache), warn)
    ledger.change(started=clock.now())
    mask = child.block_signals()
    try:
        process = child.start(plan.command, environ, mask, plan.stdout_to_stderr)
    except child.CannotExecute as error:
        ledger.change(ended=clock.now(), code=error.code, note=str(error))
        raise
    ledger.change(pid=process.pid)
    ledger.note("run.started", run=identity, pid=process.pid, id=gated.live.id, reference=gated.diff.a.label)
    ended = process.wait()
    _close(ledger, ended)
    return gated.report(ledger.run()), ended.code


def _close(ledger: Ledger, ended: Ended) -> None:
    ledger.change(ended=clock.now(), code=ended.code, signal=ended.signal)
    record = ledger.record
    ledger.note("run.ended", run=record.id, code=ended.code, signal=ended.signal, changed=len(record.changed))


def _record(gated: Gate, plan: Plan, identity: str, kept: Path | None, cache: Path | None) -> RunRecord:
    live = gated.live
    caches = live.compile_cache or ()
    return RunRecord(
        id=identity,
        host=platform.node(),
        user=waivers.author(),
        supervisor=os.getpid(),
        pid=None,
        command=tuple(_redact(plan.command)),
        cwd=os.getcwd(),
        prefix=live.python.prefix,
        started=None,
        ended=None,
        code=None,
        reference=gated.diff.a.label,
        fingerprint=live.id,
        fingerprint_file=str(kept) if kept is not None else None,
        torch=live.torch.version if live.torch is not None else None,
        gpus=tuple(gpu.name or "unknown" for gpu in live.gpus or ()),
        compile_cache=str(cache) if cache is not None else plan.environ.get(start.INDUCTOR_CACHE),
        compile_cache_verdict=caches[0].verdict if caches else None,
        drifts=gated.diff.drifts,
        unknown=gated.diff.unknown,
        waived=gated.verdict.waived,
        preflight=gated.checks,
    )


def _keep_fingerprint(
    state: Path, identity: str, gated: Gate, without_end: tuple[RunRecord, ...], warn: Warn
) -> Path | None:
    """The environment as it is now, for `envguard.stamp` in the command: None, and said, where it can't be kept."""
    path = runs.fingerprint_file(state, identity)
    try:
        runs.write_fingerprint(path, gated.live)
        for record in without_end:
            runs.write_run(state, earlier.marked(record))
        if gated.given:
            waivers.store(state, gated.given, identity)
    except OSError as error:
        warn(f"the run cannot be recorded in {state}: {error.strerror or error}")
        return path if path.exists() else None
    return path


def _record_baseline(state: Path, gated: Gate, say: Warn) -> None:
    """The first start's fingerprint. Raises `InputError` where it can't be kept: a later gate would find nothing."""
    path = runs.baseline_file(state)
    try:
        runs.write_fingerprint(path, gated.live)
    except OSError as error:
        raise InputError(f"the baseline cannot be recorded in {path}: {error.strerror or error}") from error
    say(f"envguard: recorded {gated.live.id} as the baseline")


def _private_cache(folder: Path | None, warn: Warn) -> Path | None:
    if folder is None:
        return None
    try:
        start.make_private(folder)
    except OSError as error:
        warn(f"no private compile cache, inductor's default is used: {error}")
        return None
    return folder
