"""From a command line to a decision: the live environment, the reference, the comparison, the pre-flight checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from envguard import clock
from envguard.acquire.checkpoints import match_name
from envguard.acquire.environment import Environment, locate
from envguard.acquire.headroom import read_headroom
from envguard.acquire.host import Host, LiveHost
from envguard.acquire.own_records import read_run_records
from envguard.errors import UsageError
from envguard.fingerprint import snapshot
from envguard.fingerprint.comparison import Knowledge, compare_references
from envguard.fingerprint.diff import compare
from envguard.fingerprint.reference import Places, Reference, resolve, resolve_default
from envguard.launch import child, start, waivers
from envguard.launch.earlier import says, without_end
from envguard.launch.expect import expect
from envguard.launch.preflight import check_all
from envguard.launch.session import Gate, Plan, Warn, weigh
from envguard.launch.start import AskedOnce
from envguard.model.action import Check
from envguard.model.drift import DiffReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.model.run import RunRecord
from envguard.project import Project
from envguard.state import digests as digest_store

Live = Callable[[], Fingerprint]


@dataclass(frozen=True)
class Request:
    """The command line of `launch`, and where it was given.

    `places` and `knowledge` are asked for with the live fingerprint, which is taken as the command will find things.
    """

    project: Project
    start: Path
    python: str | None
    checkpoint_roots: tuple[Path, ...]
    command: tuple[str, ...]
    against: str | None
    baseline: bool
    waive: tuple[str, ...]
    because: str | None
    until: str | None
    on_drift: str | None
    dry_run: bool
    json: bool
    environ: Mapping[str, str]
    places: Callable[[Live], Places]
    knowledge: Callable[[Live], Knowledge]


def prepare(request: Request, warn: Warn) -> tuple[Gate, Plan]:
    """Everything up to the decision. Raises `UsageError`, `InputError`, and `CannotExecute`."""
    host = AskedOnce(LiveHost())
    given = waivers.parse_waivers(request.waive, request.because, request.until, waivers.author(), clock.now())
    on_drift = _on_drift(request)
    env = locate(host, request.python, str(request.start))
    command = request.command or tuple(start.trainer_command(request.project.root, env.executable or "python3", None))
    child.find_command(command, request.environ)
    cache = start.compile_cache_directory(host, request.environ, env.site, env.abi or "")
    live = take_for_child(host, request, env, cache, warn)
    places = request.places(lambda: live)
    reference = _reference(request, places, command)
    diff = _compared(request, reference, live)
    earlier = _earlier(host, request, warn)
    checks = _preflight(host, request, reference, places, live, earlier)
    gated = weigh(request.project, live, diff, _restorable(reference), checks, given, warn)
    ended = without_end(host, earlier, host.machine().host)
    gated = replace(gated, notes=(*gated.notes, *(says(record) for record in ended)))
    return gated, Plan(command, request.environ, cache, on_drift, request.json, reference is None, ended)


def _on_drift(request: Request) -> Literal["warn", "stop"]:
    asked = request.on_drift or request.project.config.on_drift
    if asked == "warn":
        return "warn"
    if asked == "stop":
        return "stop"
    raise UsageError(f"--on-drift {asked!r} is neither warn nor stop")


def take_for_child(host: Host, request: Request, env: Environment, cache: Path | None, warn: Warn) -> Fingerprint:
    """The environment as the command will find it: with the compile cache that it will be given."""
    for_child = start.ForChild(host, {start.INDUCTOR_CACHE: str(cache)}) if cache is not None else host
    root = request.project.root
    asked = snapshot.Request(
        start=str(request.start),
        python=env.prefix,
        root=str(root) if root is not None else None,
        config=request.project.config,
        own_pids=frozenset({os.getpid(), os.getppid()}),
    )
    digests = digest_store.load(request.project.state)
    live = snapshot.take(for_child, asked, digests)
    if not request.dry_run:
        snapshot.keep_digests(request.project.state, digests, warn)
    return live


def _compared(request: Request, reference: Reference | None, live: Fingerprint) -> DiffReport:
    """The comparison; where nothing is there to compare with, what could not be determined here still counts."""
    if reference is None:
        return compare(live, live, (), "the first start", "live")
    here = Reference("live", "live", fingerprint=live)
    knowledge = request.knowledge(lambda: live)
    diff = compare_references((reference, here), knowledge, request.project.config.policy)
    if request.baseline and diff.exit_code() != 0:
        raise UsageError(
            f"--baseline: there is a reference already, {reference.label}, and this environment does not match it",
            f"`envguard diff {reference.label}` says how they differ; without --baseline it is the gate's to decide",
        )
    return diff


def _restorable(reference: Reference | None) -> str | None:
    """The REF as `restore` takes it."""
    if reference is None:
        return None
    return reference.path if reference.kind == "baseline" else reference.label


def _earlier(host: Host, request: Request, warn: Warn) -> tuple[RunRecord, ...]:
    unseen: list[Unknown] = []
    records = read_run_records(host, str(request.project.state), unseen)
    for item in unseen:
        warn(f"{item.what} cannot be read: {item.why}")
    return tuple(record for _, record in records)


def _preflight(
    host: Host,
    request: Request,
    reference: Reference | None,
    places: Places,
    live: Fingerprint,
    earlier: Sequence[RunRecord],
) -> tuple[Check, ...]:
    newest = places.checkpoints().newest_run()
    expected = expect(
        host,
        request.environ,
        reference.fingerprint if reference is not None else None,
        live,
        earlier,
        newest[-1] if newest else None,
    )
    folders = [newest[-1].run_directory] if newest else [str(root) for root in request.checkpoint_roots[:1]]
    return check_all(read_headroom(host, folders), live, expected)


def _reference(request: Request, places: Places, command: tuple[str, ...]) -> Reference | None:
    """What to match; None for a first start, where `--baseline` found nothing to match."""
    if request.against is not None:
        return resolve(request.against, places)
    found = places.checkpoints().found

    def is_checkpoint(word: str) -> bool:
        path = places.path(word)
        return any(path == item.path for item in found) or bool(match_name(found, word))

    resuming = start.named_checkpoint(command, is_checkpoint)
    try:
        return resolve_default(places, resuming)
    except UsageError:
        if request.baseline and resuming is None:
            return None
        raise
