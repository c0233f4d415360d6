"""Pre-flight checks: what the machine has to offer at this moment against what the run needs.

Pure: facts in, checks out. A check that fails refuses like a drift does (78), or says "try again" (75) where the
state passes by itself; one that could not be made refuses too (3). Hardware that is not there is determined: a run
without GPUs is not asked for any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envguard.acquire.machine.headroom import Disk, GpuNow, Headroom, visible
from envguard.fingerprint.cache_changes import subjects
from envguard.fingerprint.units import size
from envguard.model.action import Check
from envguard.model.drift import Facet
from envguard.model.fingerprint import Driver, Fingerprint, Gpu

NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED: this board has no such thing, which is an answer
# The reasons among NVML's that slow a GPU down against the will of its owner, by their bit.
THROTTLES = {0x8: "hardware slowdown", 0x20: "too hot", 0x40: "far too hot", 0x80: "power brake"}
# The least that multi-process loading and NCCL get along with; a container starts with 64 MiB.
SHARED_MEMORY_LEAST = 1 << 30
OPEN_FILES_LEAST = {True: 1024, False: 256}
DISK_LEAST = 1 << 30
# An idle GPU still holds a few hundred MiB for the driver; what is below this is no one's.
IDLE_MEMORY = 1 << 30


@dataclass(frozen=True)
class Expected:
    """What the run needs: from the reference, from earlier runs, from the configuration."""

    gpus: tuple[Gpu, ...] | None
    visible_devices: str | None
    peak_memory: Mapping[int, int]
    """GPU index → the most memory (bytes) that an earlier run of this reference took there."""
    checkpoint_bytes: int | None
    """Size of the newest checkpoint."""
    cold_start_s: float | None
    """How long the last cold start took to its first step."""


def check_all(headroom: Headroom, live: Fingerprint, expected: Expected) -> tuple[Check, ...]:
    """Every check, in the order in which a person would look."""
    checks = [*_driver(live.driver)]
    chosen, seen = _chosen(headroom, live, expected)
    checks.append(seen)
    if chosen:
        checks += _each_gpu(chosen, headroom, live, expected)
    checks.append(_shared_memory(headroom.shared_memory, bool(chosen)))
    checks += [_disk(disk, expected.checkpoint_bytes) for disk in headroom.disks]
    checks.append(_open_files(headroom.open_files, bool(chosen)))
    checks += _compile_cache(live, expected.cold_start_s)
    checks += _data(live)
    return tuple(checks)


def _chosen(headroom: Headroom, live: Fingerprint, expected: Expected) -> tuple[tuple[GpuNow, ...], Check]:
    """The GPUs that the run will see, and the check that they are those recorded.

    Whether there are any is the fingerprint's to say: NVML refuses alike where there is no GPU and where one is lost.
    """
    if live.gpus == ():
        return (), _gpus((), expected)
    gpus = headroom.gpus.all
    if live.gpus is None or gpus is None:
        return (), _check("gpus", None, headroom.gpus.why or "it could not be told whether there are any", "gpu")
    seen = visible(gpus, expected.visible_devices)
    if seen is None:
        why = f"CUDA_VISIBLE_DEVICES={expected.visible_devices} names a GPU that NVML does not"
        return (), _check("gpus", None, why, "gpu")
    return seen, _gpus(seen, expected)


def _check(name: str, ok: bool | None, detail: str, facet: Facet = "system", passing: bool = False) -> Check:
    return Check(check=name, ok=ok, detail=detail, passing=passing, facet=facet)


def _driver(driver: Driver | None) -> Iterator[Check]:
    if driver is None:
        return
    if driver.agrees is False:
        says = (
            f"the kernel runs module {driver.kernel_module}, the library is {driver.version}: the driver "
            "was upgraded; it works again after a reboot"
        )
        yield _check("driver", False, says, "driver", passing=True)
    else:
        yield _check("driver", True, f"library {driver.version}, kernel module {driver.kernel_module or 'not seen'}")


def _gpus(chosen: Sequence[GpuNow], expected: Expected) -> Check:
    wanted = expected.gpus or ()
    if not chosen and not wanted:
        return _check("gpus", True, "none here, and none recorded")
    have = _names(gpu.name for gpu in chosen)
    if expected.gpus is None or not wanted:
        return _check("gpus", True, have, "gpu")
    needed = _names(gpu.name for gpu in wanted)
    by_setting = f" (CUDA_VISIBLE_DEVICES={expected.visible_devices})" if expected.visible_devices is not None else ""
    if have != needed:
        return _check("gpus", False, f"{have} visible{by_setting}, the reference ran on {needed}", "gpu")
    return _check("gpus", True, have, "gpu")


def _names(names: Iterator[str | None] | Sequence[str | None]) -> str:
    counted: dict[str, int] = {}
    for name in names:
        counted[name or "GPU of unknown model"] = counted.get(name or "GPU of unknown model", 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in sorted(counted.items())) or "no GPU"


def _each_gpu(chosen: Sequence[GpuNow], headroom: Headroom, live: Fingerprint, expected: Expected) -> Iterator[Check]:
    yield _merged("gpu processes", [_processes(gpu, headroom.commands) for gpu in chosen], passing=True)
    yield _merged("gpu memory", [_memory(gpu, live, expected) for gpu in chosen], "memory", passing=True)
    yield _merged("gpu errors", [_errors(gpu) for gpu in chosen])
    yield _merged("gpu clocks", [_throttle(gpu) for gpu in chosen], passing=True)
    yield _merged("gpu mig", [_mig(gpu) for gpu in chosen])
    yield _merged("gpu links", [_links(gpu.index, live.gpus, expected.gpus) for gpu in chosen])


Said = tuple[bool | None, str]


def _merged(name: str, said: Sequence[Said], facet: Facet = "gpu", passing: bool = False) -> Check:
    """One check of all GPUs: the worst decides, and only those that are not right are named."""
    bad = [text for ok, text in said if ok is False]
    unseen = [text for ok, text in said if ok is None]
    if bad or unseen:
        return _check(name, False if bad else None, "; ".join(bad or unseen), facet, passing=passing and bool(bad))
    details = list(dict.fromkeys(text for _, text in said))
    return _check(name, True, details[0] if len(details) == 1 else f"{len(said)} GPUs", facet)


def _asked(gpu: GpuNow, *fields: str) -> str | None:
    """Why one of `fields` is not known, where it matters; None where all are, or the board has no such thing."""
    for field in fields:
        refusal = gpu.refusal(field)
        if refusal is not None and refusal[0] != NOT_SUPPORTED:
            return f"GPU {gpu.index}: {field}: {refusal[1]} (error {refusal[0]})"
    return None


def _processes(gpu: GpuNow, commands: Mapping[int, str]) -> Said:
    if why := _asked(gpu, "processes"):
        return None, why
    found = gpu.get("processes") or ()
    if not found:
        # In a container NVML shows no process of another one, but their memory is seen to be taken.
        used = gpu.get("used")
        if used is not None and used > IDLE_MEMORY:
            return False, f"GPU {gpu.index}: {size(used)} are taken by processes that cannot be seen from here"
        return True, "no other process"
    each = [f"PID {pid}" + (f" ({commands[pid]})" if pid in commands else "") for pid, _ in found[:3]]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return False, f"GPU {gpu.index} is used by {', '.join(each)}{more}"


def _memory(gpu: GpuNow, live: Fingerprint, expected: Expected) -> Said:
    if why := _asked(gpu, "memory", "used"):
        return None, why
    total, used = gpu.get("memory"), gpu.get("used")
    if total is None or used is None:
        return None, f"GPU {gpu.index}: its memory is not told"
    free = total - used
    peak = expected.peak_memory.get(gpu.index)
    if peak is None:
        return True, f"{size(free)} free, no earlier run to hold it against"
    more = _context_change(gpu.index, live.gpus, expected.gpus)
    needed = peak + more
    extra = f" and {size(more)} more for the CUDA context" if more else ""
    if free < needed:
        return False, f"GPU {gpu.index}: {size(free)} free, an earlier run took {size(peak)}{extra}"
    return True, f"{size(free)} free, an earlier run took {size(peak)}{extra}"


def _context_change(index: int, now: tuple[Gpu, ...] | None, then: tuple[Gpu, ...] | None) -> int:
    """How much more memory an idle CUDA context takes than it did; 0 where either side did not measure (--probe)."""
    after = next((gpu.context_bytes for gpu in now or () if gpu.index == index), None)
    before = next((gpu.context_bytes for gpu in then or () if gpu.index == index), None)
    return max(0, after - before) if after is not None and before is not None else 0


def _errors(gpu: GpuNow) -> Said:
    if why := _asked(gpu, "uncorrected", "remapped", "retirement_pending"):
        return None, why
    uncorrected, remapped, pending = (gpu.get(field) for field in ("uncorrected", "remapped", "retirement_pending"))
    wrong = []
    if uncorrected:
        wrong.append(f"{uncorrected} uncorrected memory errors since the driver was loaded")
    if pending:
        wrong.append("memory pages wait for their retirement (reset the GPU)")
    if remapped is not None:
        _, _, waiting, failed = remapped
        if waiting:
            wrong.append("memory rows wait to be remapped (reset the GPU)")
        if failed:
            wrong.append("remapping memory rows has failed (replace the board)")
    if wrong:
        return False, f"GPU {gpu.index}: {', '.join(wrong)}"
    known = [uncorrected, remapped, pending] != [None, None, None]
    return True, "no uncorrected errors, nothing pending" if known else "this board counts none"


def _throttle(gpu: GpuNow) -> Said:
    if why := _asked(gpu, "throttle"):
        return None, why
    bits = gpu.get("throttle") or 0
    reasons = [text for bit, text in THROTTLES.items() if bits & bit]
    return (False, f"GPU {gpu.index} is slowed: {', '.join(reasons)}") if reasons else (True, "not slowed")


def _mig(gpu: GpuNow) -> Said:
    if why := _asked(gpu, "mig"):
        return None, why
    mode = gpu.get("mig")
    if mode is None or not mode[0]:
        return True, "MIG is off"
    instances = gpu.get("mig_instances") or ()
    if not instances:
        return False, f"GPU {gpu.index} is in MIG mode and has no instance: CUDA sees no device"
    return True, f"MIG: {', '.join(instances)}"


def _links(index: int, now: tuple[Gpu, ...] | None, then: tuple[Gpu, ...] | None) -> Said:
    here = next((gpu.p2p for gpu in now or () if gpu.index == index), {})
    there = next((gpu.p2p for gpu in then or () if gpu.index == index), None)
    if there is not None and here != there:
        changed = sorted(other for other in {*here, *there} if here.get(other) != there.get(other))
        other = changed[0]
        swap = f"{there.get(other, 'nothing')} → {here.get(other, 'nothing')}"
        return False, f"GPU {index} reaches GPU {other} by another path: {swap}"
    shown = ", ".join(sorted(set(here.values()))) or "no other GPU"
    return True, shown if there is None else f"{shown}, as recorded"


def _shared_memory(disk: Disk, with_gpus: bool) -> Check:
    if disk.space is None:
        return _check("shared memory", None if with_gpus else True, f"{disk.path}: {disk.why}")
    says = f"{size(disk.space.free)} of {size(disk.space.bytes)} free in {disk.path}"
    if with_gpus and disk.space.free < SHARED_MEMORY_LEAST:
        return _check("shared memory", False, f"{says}: loaders and NCCL fail for lack of it (docker: --shm-size)")
    return _check("shared memory", True, says)


def _disk(disk: Disk, checkpoint: int | None) -> Check:
    if disk.space is None:
        return _check("disk", None, f"{disk.path}: {disk.why}")
    # A trainer writes the new checkpoint beside the old one before it renames.
    needed = max(DISK_LEAST, 2 * checkpoint) if checkpoint is not None else DISK_LEAST
    says = f"{size(disk.space.free)} free under {disk.path}"
    if disk.space.files_free == 0:
        return _check("disk", False, f"no more files can be made under {disk.path}")
    if disk.space.free < needed:
        whose = f"two checkpoints of {size(checkpoint)}" if checkpoint else "a checkpoint"
        return _check("disk", False, f"{says}: too little for {whose}")
    return _check("disk", True, says)


def _open_files(limits: tuple[int | None, int | None] | None, with_gpus: bool) -> Check:
    if limits is None:
        return _check("open files", None, "the limit of open files cannot be read")
    soft, hard = limits
    least = OPEN_FILES_LEAST[with_gpus]
    says = f"at most {soft if soft is not None else 'any number'}"
    if soft is not None and soft < least:
        can = f"`ulimit -n {hard or least}` raises it" if hard is None or hard > soft else "root can raise it"
        return _check("open files", False, f"{says}, loaders need {least}: {can}")
    return _check("open files", True, says)


def _compile_cache(live: Fingerprint, cold_start_s: float | None) -> Iterator[Check]:
    took = f"the last cold start took {cold_start_s:.0f} s" if cold_start_s is not None else "no cold start on record"
    caches = live.compile_cache or ()
    for subject, cache in zip(subjects(caches), caches, strict=True):
        name = f"compile cache {subject}"
        where = f"{cache.path}: {cache.entries or 0} entries, {size(cache.bytes) or 'nothing'}"
        if cache.verdict == "UNSAFE":
            yield _check(name, False, cache.why or f"{cache.path} is open to others", "compile_cache")
        elif cache.verdict == "UNKNOWN":
            yield _check(name, None, cache.why or f"{cache.path} cannot be judged", "compile_cache")
        elif cache.verdict in ("VALID", "MIXED"):
            yield _check(name, True, f"{where} of this build", "compile_cache")
        else:
            why = "empty" if cache.verdict == "EMPTY" else "of another build"
            yield _check(name, True, f"{where}, {why}: a cold start; {took}", "compile_cache")


def _data(live: Fingerprint) -> Iterator[Check]:
    for facet, sets in (("data", live.data), ("config", live.config)):
        for item in sets or ():
            what: Facet = "data" if facet == "data" else "config"
            if item.digest is None:
                gone = any(
                    (problem.kind, problem.subject) == (f"{facet}-missing", item.path) for problem in live.problems
                )
                why = "it is configured and is not there" if gone else "it could not be digested"
                yield _check(f"{facet} {item.path}", None, why, what)
            else:
                yield _check(f"{facet} {item.path}", True, f"{size(item.bytes)}, digest {item.digest[:12]}", what)
