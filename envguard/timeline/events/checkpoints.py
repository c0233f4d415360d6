"""Events from one witness each: checkpoints, and processes that still run what was replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.processes.live_processes import EnvironmentProcess
from envguard.acquire.runs.checkpoint_names import short_names
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.model.event import CheckpointView, Event
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import make_event, moment
from envguard.timeline.packages.package_events import Swap

COPIED_NS = 2_000_000_000


def checkpoint_events(checkpoints: Sequence[Checkpoint]) -> Iterable[Event]:
    """One event a checkpoint whose time is known: from the first to the last mtime of its core files, or at its
    stamp's own time."""
    names = short_names(checkpoints)
    for checkpoint in checkpoints:
        if not checkpoint.dated:
            continue
        copied = is_copy(checkpoint)
        value = clock.iso_ns(checkpoint.saved_ns)
        if checkpoint.by_stamp and checkpoint.stamp_path is not None:
            evidence = [Evidence(witness="stamp", path=checkpoint.stamp_path, field="taken_at", value=value)]
            # The checkpoint's own path is what tells this event from that of another one of the name.
            evidence.append(Evidence(witness="checkpoint", path=checkpoint.path, field="stamp", value=value))
        else:
            evidence = [Evidence(witness="checkpoint", path=checkpoint.path, field="mtime", value=value)]
        summary = f"{names[checkpoint.path]} saved"
        if checkpoint.incomplete is not None:
            summary += f", and not complete: {checkpoint.incomplete}"
        if copied and checkpoint.btime_ns is not None:
            born = clock.iso_ns(checkpoint.btime_ns)
            evidence.append(Evidence(witness="checkpoint", path=checkpoint.path, field="btime", value=born))
            summary += " (copied here later: its birth is after its last writing)"
        long = checkpoint.saved_ns - checkpoint.first_ns >= clock.NS
        yield make_event(
            "checkpoint.saved",
            checkpoint.name,
            checkpoint.first_ns if long else checkpoint.saved_ns,
            checkpoint.saved_ns if long else None,
            summary,
            evidence,
            best="weak" if copied and not checkpoint.by_stamp else "strong",
        )


def is_copy(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint lies here as a copy that kept its times."""
    born = checkpoint.btime_ns
    return checkpoint.dated and born is not None and born > checkpoint.saved_ns + COPIED_NS


def checkpoint_view(checkpoint: Checkpoint, stamped: bool) -> CheckpointView:
    """The checkpoint that the answer is about; no time where none is known."""
    return CheckpointView(
        name=checkpoint.name,
        path=checkpoint.path,
        step=checkpoint.step,
        time=moment(checkpoint.saved_ns, 0.01) if checkpoint.dated else None,
        stamped=stamped,
    )


def stale_events(
    processes: Iterable[EnvironmentProcess], swaps: Iterable[Swap], site: tuple[str, ...], now: float
) -> Iterable[Event]:
    """Processes that map files which were replaced underneath: from the swap to now.

    The swap that a stale file belongs to is the last one of the package whose folder holds it; where that is not
    known, all that is known is that the file was gone by now.
    """
    by_folder: dict[str, Swap] = {}
    for swap in swaps:
        by_folder[swap.change.name.replace("-", "_")] = swap
    for process in processes:
        if not process.stale:
            continue
        stale = [(file, _swap_of(file.path, site, by_folder, process.started)) for file in process.stale]
        causes = {swap.change.name: swap for _, swap in stale if swap is not None}
        since = min((swap.group.start_ns for swap in causes.values()), default=None)
        what = ", ".join(
            sorted(f"{name} {swap.change.from_ or '(the build before)'}" for name, swap in causes.items())
        )
        evidence = [
            Evidence(
                witness="process",
                path=f"/proc/{process.pid}/maps",
                field=file.path,
                value=f"inode {file.inode} (deleted)"
                if file.deleted
                else f"inode {file.inode}, not the one there now",
            )
            for file, _ in stale[:8]
        ]
        evidence.append(
            Evidence(
                witness="process",
                path=f"/proc/{process.pid}/stat",
                field="starttime",
                value=clock.iso(process.started, 0),
            )
        )
        evidence += [item for swap in causes.values() for item in swap.event.evidence if item.witness == "dist-info"]
        shown = process.command if len(process.command) <= 60 else process.command[:57] + "…"
        yield make_event(
            "process.stale",
            str(process.pid),
            since,
            int(now * clock.NS),
            f"process {process.pid} ({shown}) still runs {what or 'files that were replaced underneath it'}",
            evidence,
            open_end=True,
        )


def _swap_of(path: str, site: tuple[str, ...], by_folder: dict[str, Swap], started: float) -> Swap | None:
    for folder in site:
        if path.startswith(f"{folder}/"):
            swap = by_folder.get(path[len(folder) + 1 :].partition("/")[0])
            # A file that was replaced before the process began cannot be what the process still maps.
            return swap if swap is not None and swap.group.end_ns > started * clock.NS else None
    return None
