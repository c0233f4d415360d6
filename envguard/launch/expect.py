"""What the run is expected to need, from the reference, earlier runs and the last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.seam.host import Host
from envguard.launch.preflight import Expected
from envguard.model.fingerprint import Fingerprint, Gpu
from envguard.model.run import RunRecord

# A run that was cold: nothing in its cache was of its build.
_COLD = ("EMPTY", "FOREIGN")
_EARLIER = 10


def expect(
    host: Host,
    environ: Mapping[str, str],
    reference: Fingerprint | None,
    live: Fingerprint,
    earlier: Sequence[RunRecord],
    newest: Checkpoint | None,
) -> Expected:
    """`earlier` are the runs of this state folder, oldest first."""
    return Expected(
        gpus=reference.gpus if reference is not None else None,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        peak_memory=peak_memory(earlier, live.gpus),
        checkpoint_bytes=_bytes(host, newest) if newest is not None else None,
        cold_start_s=cold_start(earlier, live),
    )


def peak_memory(earlier: Sequence[RunRecord], gpus: tuple[Gpu, ...] | None) -> dict[int, int]:
    """The most memory that each GPU was seen to give to the last few runs on the same GPUs, in bytes."""
    names = tuple(gpu.name or "unknown" for gpu in gpus or ())
    peaks: dict[int, int] = {}
    for record in [record for record in earlier if record.gpus == names][-_EARLIER:]:
        for index, count in record.peak_memory.items():
            peaks[int(index)] = max(peaks.get(int(index), 0), count)
    return peaks


def cold_start(earlier: Sequence[RunRecord], live: Fingerprint) -> float | None:
    """Seconds to the first step of the last cold run, of this build where there was one, else of any."""
    version = live.torch.version if live.torch is not None else None
    cold = [
        (record.torch == version, record.throughput.first_step_s)
        for record in earlier
        if record.compile_cache_verdict in _COLD
        and record.throughput is not None
        and record.throughput.first_step_s is not None
    ]
    same = [seconds for fits, seconds in cold if fits]
    return same[-1] if same else cold[-1][1] if cold else None


def _bytes(host: Host, checkpoint: Checkpoint) -> int | None:
    try:
        if checkpoint.kind == "file":
            return host.stat_target(checkpoint.path).size
        return sum(stat.size for _, stat in host.walk(checkpoint.path).entries if stat.is_file)
    except OSError:
        return None  # it is being rotated away; the least that is asked for still is
