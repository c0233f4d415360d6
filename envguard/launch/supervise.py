"""The second half of a launch: start the command, stay beside it to its end, keep its record."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envguard import clock
from envguard.acquire.seam.collector.redaction import redact_argv
from envguard.acquire.torch.cache_places import INDUCTOR_CACHE
from envguard.errors import InputError
from envguard.launch import bundled, child, earlier, seed, start, waivers
from envguard.launch.bundled import Bundled
from envguard.launch.child import Child, Ended
from envguard.launch.claims import Claims
from envguard.launch.gpu_memory import PeakMemory
from envguard.launch.ledger import Ledger
from envguard.launch.observer import Observer, Sight
from envguard.launch.ranks import Ranks
from envguard.launch.session import Gate, Warn
from envguard.model.action import LaunchReport
from envguard.model.run import RunRecord
from envguard.project import Project
from envguard.state import runs


@dataclass(frozen=True)
class Plan:
    """What is to be run once the gate says go."""

    command: tuple[str, ...]
    bundled: Bundled | None
    """Set where the command is the bundled trainer: the folder it starts in, and its configuration file."""
    environ: Mapping[str, str]
    compile_cache: Path | None
    """The private compile cache that the command is given; None where the user set one, or nothing compiles."""
    seed: Path | None
    """A warm cache of this build to take along into the private one."""
    on_drift: Literal["warn", "stop"]
    stdout_to_stderr: bool
    records_baseline: bool
    without_end: tuple[RunRecord, ...]
    """Earlier runs that nobody watches any more, to be marked as such."""
    claims: Claims
    memory_before: Mapping[int, int]
    """GPU index → bytes in use before the start."""
    sight: Sight


def run(project: Project, gated: Gate, plan: Plan, say: Warn, warn: Warn) -> tuple[LaunchReport, int]:
    """Starts the command, stays with it to its end, and returns the answer and the code to exit with."""
    identity = runs.new_run_id()
    kept = _keep(project.state, identity, gated, plan.without_end, warn)
    if plan.records_baseline:
        _record_baseline(project.state, gated, say)
    cache = _private_cache(plan, warn)
    environ = start.child_environment(plan.environ, identity, kept, cache)
    ledger = Ledger(project.state, _record(gated, plan, identity, kept, cache), warn)
    ledger.change(started=clock.now())
    folder = _folder(plan)
    mask = child.block_signals()
    try:
        process = child.start(plan.command, environ, mask, plan.stdout_to_stderr, folder)
    except child.CannotExecute as error:
        ledger.change(ended=clock.now(), code=error.code, note=str(error))
        raise
    ledger.change(pid=process.pid)
    ledger.note("run.started", run=identity, pid=process.pid, id=gated.live.id, reference=gated.diff.a.label)
    ended = _accompany(process, plan, ledger, warn)
    return gated.report(ledger.run()), ended.code


def _folder(plan: Plan) -> Path | None:
    """Where the command starts: here; the checkout's root for its own trainer, whose settings are written first."""
    if plan.bundled is None:
        return None
    try:
        bundled.write_config(plan.bundled)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(
            f"the trainer's settings cannot be written to {plan.bundled.config_file}: {why}",
            "make its folder writable, or name another command after `--`",
        ) from error
    return plan.bundled.folder


def _accompany(process: Child, plan: Plan, ledger: Ledger, warn: Warn) -> Ended:
    ranks = Ranks(ledger, process.pid, warn)
    memory = PeakMemory(plan.memory_before, lambda peak: ledger.change(peak_memory=peak))
    observer = _observer(process, plan, ledger, warn, ranks)
    memory.start()
    try:
        ended = process.wait(ranks)
        moment = clock.now()  # before the watch is closed, which may have an install to tell of
    finally:
        memory.close()
        if observer is not None:
            observer.close()
        plan.claims.release()
    _close(ledger, ended, moment)
    ranks.after(ended)
    return ended


def _observer(process: Child, plan: Plan, ledger: Ledger, warn: Warn, ranks: Ranks) -> Observer | None:
    """The command runs already: whatever keeps it from being watched is said, and ends nothing."""
    try:
        observer = Observer(plan.sight, process, ledger, plan.on_drift, warn, ranks.look, ranks.before)
        observer.start()
    except Exception as error:
        warn(f"the run is not watched: {type(error).__name__}: {error}")
        ledger.change(note=f"not watched: {error}")
        return None
    return observer


def _close(ledger: Ledger, ended: Ended, moment: str) -> None:
    ledger.change(ended=moment, code=ended.code, signal=ended.signal)
    record = ledger.record
    stopped = record.stopped.says if record.stopped is not None else None
    ledger.note(
        "run.ended", run=record.id, code=ended.code, signal=ended.signal, changed=len(record.changed), stopped=stopped
    )


def _record(gated: Gate, plan: Plan, identity: str, kept: Path | None, cache: Path | None) -> RunRecord:
    live = gated.live
    caches = live.compile_cache or ()
    return RunRecord(
        id=identity,
        host=platform.node(),
        user=waivers.author(),
        supervisor=os.getpid(),
        pid=None,
        command=tuple(redact_argv(plan.command)),
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
        compile_cache=str(cache) if cache is not None else plan.environ.get(INDUCTOR_CACHE),
        compile_cache_verdict=next((item.verdict for item in caches if item.kind == "inductor"), None),
        drifts=gated.diff.drifts,
        unknown=gated.diff.unknown,
        waived=gated.verdict.waived,
        preflight=gated.checks,
    )


def _keep(state: Path, identity: str, gated: Gate, without_end: tuple[RunRecord, ...], warn: Warn) -> Path | None:
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
        raise InputError(
            f"the baseline cannot be recorded in {path}: {error.strerror or error}",
            "make it writable, or name another folder with `state = ` in envguard.toml",
        ) from error
    say(f"envguard: recorded {gated.live.id} as the baseline")


def _private_cache(plan: Plan, warn: Warn) -> Path | None:
    """Makes the private compile cache, warm where it can be; inductor's own place where that fails."""
    if plan.compile_cache is None:
        return None
    try:
        start.make_private(plan.compile_cache)
        if plan.seed is not None:
            seed.take_along(plan.seed, plan.compile_cache)
    except OSError as error:
        warn(f"no private compile cache, inductor's default is used: {error}")
        return None
    return plan.compile_cache
