"""Events of the machine: boots, driver and system packages, compile caches, envguard's own records, commands."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from envguard import clock
from envguard.acquire.machine.boots import Boots
from envguard.acquire.machine.package_logs import WATCHED, AptRun, DpkgChange, PackageStep
from envguard.acquire.project.shell_history import Command
from envguard.acquire.runs.own_records import Entry
from envguard.acquire.torch.cache_stamp import CacheStamp, stamp_of
from envguard.acquire.torch.compile_times import CacheTimes
from envguard.model.event import Event, EventKind
from envguard.model.evidence import Evidence
from envguard.model.fingerprint import Driver
from envguard.model.run import RunRecord
from envguard.timeline.events.happening import make_event

SAME_BOOT_NS = 120 * clock.NS
SAME_RUN_NS = 600 * clock.NS


def boot_events(boots: Boots) -> Iterable[Event]:
    """Boots; the kernel's word and wtmp's on one boot are one event."""
    told: list[int] = []
    for boot in boots.boots:
        if any(abs(boot.time_ns - other) <= SAME_BOOT_NS for other in told):
            continue
        told.append(boot.time_ns)
        same = [item for item in boots.boots if abs(item.time_ns - boot.time_ns) <= SAME_BOOT_NS]
        evidence = [
            Evidence(witness="boot" if item.source == "/proc/stat" else "wtmp", path=item.source,
                     field="btime" if item.source == "/proc/stat" else "boot record",
                     value=clock.iso(item.time_ns // clock.NS, 0))
            for item in same
        ]  # fmt: skip
        kernel = f", kernel {boot.kernel}" if boot.kernel else ""
        yield make_event(
            "system.boot", "boot", boot.time_ns, None, f"the machine booted{kernel}", evidence, precision_s=1.0
        )


def package_events(apt: tuple[AptRun, ...], dpkg: tuple[DpkgChange, ...]) -> Iterable[Event]:
    """System packages that matter to a GPU run: an event a run of apt, and dpkg's where apt has no history of it."""
    for run in apt:
        watched = [step for step in run.steps if WATCHED.search(step.name)]
        if watched or run.error is not None:
            yield _apt_event(run, watched or list(run.steps), [change for change in dpkg if _belongs(change, run)])
    for change in dpkg:
        if not any(_belongs(change, run) for run in apt):
            yield _dpkg_event(change)


def _apt_event(run: AptRun, steps: list[PackageStep], echoes: list[DpkgChange]) -> Event:
    shown = ", ".join(_step_text(step) for step in steps[:3]) + (
        f" and {len(steps) - 3} more" if len(steps) > 3 else ""
    )
    command = run.command or "apt"
    by = "unattended upgrade" if "unattended" in command else (command if len(command) <= 50 else f"{command[:47]}…")
    failed = f"; it FAILED: {run.error}" if run.error else ""
    first = steps[0] if steps else None
    started = clock.iso(run.start.start_ns // clock.NS, 0)
    evidence = [
        Evidence(witness="apt", path=run.path, field="Start-Date", value=started),
        *map(_dpkg_proof, echoes[:2]),
    ]
    return make_event(
        "system.driver" if any(_is_driver(step.name) for step in steps) else "system.packages",
        first.name if first else "apt",
        run.start.start_ns,
        run.end.end_ns if run.end is not None else (run.start.end_ns if run.start.doubt else None),
        f"{by}: {shown}{failed}",
        evidence,
        precision_s=1.0,
        best="weak" if run.start.doubt else "strong",
        # apt and dpkg are one writer's two logs: they agree by construction.
        from_=first.old if first else None,
        to=first.new if first else None,
    )


def _dpkg_event(change: DpkgChange) -> Event:
    step, time = change.step, change.time
    return make_event(
        "system.driver" if _is_driver(step.name) else "system.packages",
        step.name,
        time.start_ns,
        time.end_ns if time.doubt else None,
        _step_text(step),
        [_dpkg_proof(change)],
        precision_s=1.0,
        best="weak" if time.doubt else "strong",
        from_=step.old,
        to=step.new,
    )


def _dpkg_proof(change: DpkgChange) -> Evidence:
    value = f"{change.step.old or '<none>'} {change.step.new or '<none>'}"
    return Evidence(witness="dpkg", path=change.path, field=change.step.name, value=value)


def _step_text(step: PackageStep) -> str:
    return f"{step.name} {step.old or 'new'} → {step.new or 'removed'}"


def _belongs(change: DpkgChange, run: AptRun) -> bool:
    """Whether dpkg made the change within the run, under one reading of both times."""
    return any(
        start - clock.NS <= moment <= (start + SAME_RUN_NS if end is None else end) + clock.NS
        for start, end in run.intervals
        for moment in change.time.readings
    )


def _is_driver(name: str) -> bool:
    return name.startswith(("nvidia-driver", "nvidia-kernel", "nvidia-dkms", "libnvidia-compute", "nvidia-open",
                            "cuda-drivers", "linux-modules-nvidia"))  # fmt: skip


def driver_mismatch(driver: Driver | None) -> str | None:
    """One sentence where the loaded kernel module and the installed library are two versions."""
    if driver is None or driver.agrees is not False:
        return None
    loaded, installed = driver.kernel_module, driver.version
    return f"the kernel runs driver module {loaded}, the installed library is {installed}: reboot needed"


def cache_events(caches: Iterable[CacheTimes]) -> Iterable[Event]:
    """A compile cache's making and last writing, from stats alone, and its filling by a restore, from its stamp."""
    for cache in caches:
        if not cache.exists:
            continue
        size = f"{cache.bytes / 1e6:.0f} MB in {cache.files} files"
        stamp = cache.stamp
        if stamp is not None:
            yield _restored(cache.path, stamp)
        # A folder that holds nothing is no cache: that it was emptied is an event of its own.
        if cache.files and cache.born_ns is not None and not (stamp is not None and _made_by(stamp, cache.born_ns)):
            evidence = [
                Evidence(witness="compile-cache", path=cache.path, field="btime", value=clock.iso_ns(cache.born_ns))
            ]
            text = f"{_name(cache.path)} was created (the directory's birth time); it now holds {size}"
            yield make_event("compile_cache.created", cache.path, cache.born_ns, None, text, evidence, to=size)
        if cache.newest_ns is not None:
            evidence = [
                Evidence(
                    witness="compile-cache",
                    path=cache.path,
                    field="newest mtime",
                    value=clock.iso_ns(cache.newest_ns),
                )
            ]
            writers = f", by {len(cache.tags)} builds" if len(cache.tags) > 1 else ""
            text = f"{_name(cache.path)} last written ({size}{writers})"
            yield make_event("compile_cache.written", cache.path, cache.newest_ns, None, text, evidence, to=size)


def _made_by(stamp: CacheStamp, born_ns: int) -> bool:
    """Whether the folder was born while the restore filled it: then nothing was compiled anew. File systems tell
    times by a clock of their own, some to the second."""
    return clock.seconds(stamp.began) - 1 <= born_ns / clock.NS <= clock.seconds(stamp.restored_at) + 1


def _restored(path: str, stamp: CacheStamp) -> Event:
    evidence = [Evidence(witness="stamp", path=stamp_of(path), field="restored_at", value=stamp.restored_at)]
    text = f"{_name(path)} was filled by `envguard restore` from {stamp.source}: {stamp.files} files, no cold start"
    times = [clock.nanoseconds(time) for time in (stamp.began, stamp.restored_at)]
    size = f"{stamp.bytes / 1e6:.0f} MB in {stamp.files} files"
    return make_event("compile_cache.written", path, times[0], times[1], text, evidence, to=size)


def _end_of(run: RunRecord) -> str:
    """How a run ended: stopped by `launch` for a change, by a signal, or with a code of its own."""
    why = f", stopped by `envguard launch --on-drift stop`: {run.stopped.says}" if run.stopped is not None else ""
    left = f"; {len(run.left)} of its processes outlived the command" if run.left else ""
    return f"run {run.id} ended with {run.signal or run.code}{why}{left}"


JOURNAL_KINDS: dict[str, EventKind] = {"snapshot": "snapshot.taken", "stamp": "snapshot.taken"}


def own_events(journal: Iterable[Entry], runs: Iterable[tuple[str, RunRecord]]) -> Iterable[Event]:
    """envguard's snapshots and the runs that it started."""
    for entry in journal:
        kind = JOURNAL_KINDS.get(entry.kind)
        if kind is None:
            continue
        try:
            time = clock.nanoseconds(entry.time)
        except ValueError:
            continue
        identity = str(entry.fields.get("id", ""))
        evidence = [
            Evidence(witness="journal", path=entry.path, field=f"line {entry.line}", value=f"{entry.kind} {identity}")
        ]
        yield make_event(
            kind, identity or entry.kind, time, None, f"{entry.kind} {identity}".strip(), evidence, precision_s=0.1
        )
    for path, run in runs:
        told: tuple[tuple[EventKind, str | None, str], ...] = (
            ("run.started", run.started, f"`envguard launch` started {' '.join(run.command)[:60]} (run {run.id})"),
            ("run.ended", run.ended, _end_of(run)),
        )
        for happened, moment, text in told:
            if moment is None:
                continue
            time = clock.nanoseconds(moment)
            evidence = [Evidence(witness="run-record", path=path, field=happened.partition(".")[2], value=moment)]
            yield make_event(happened, run.id, time, None, text, evidence, precision_s=0.1)


def command_events(commands: Iterable[Command], caches: Iterable[CacheTimes]) -> Iterable[Event]:
    """Of a history that the user opted into: removals of a compile cache, and prunings of uv's."""
    names = {_name(cache.path) for cache in caches} | {"torchinductor", ".triton"}
    for command in commands:
        if command.time_ns is None:
            continue
        evidence = [
            Evidence(
                witness="shell-history", path=command.path, field=f"line {command.line}", value=command.text[:200]
            )
        ]
        removes = command.text.lstrip().startswith(("rm ", "sudo rm "))
        target = next((name for name in sorted(names, key=len, reverse=True) if name in command.text), None)
        if removes and target is not None:
            text = f"`{command.text[:90]}` typed"
            yield make_event("compile_cache.cleared", target, command.time_ns, None, text, evidence, precision_s=1.0)
        elif "uv cache prune" in command.text or "uv cache clean" in command.text:
            yield make_event(
                "cache.pruned",
                "uv cache",
                command.time_ns,
                None,
                f"`{command.text[:90]}` typed",
                evidence,
                precision_s=1.0,
            )


def _name(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))
