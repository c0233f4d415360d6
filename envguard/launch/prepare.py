"""From a command line to a decision: the live environment, the reference, the comparison, the pre-flight checks."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.machine.headroom import Headroom, read_headroom, visible
from envguard.acquire.machine.zone import read_zone
from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.elsewhere import said_of_another
from envguard.acquire.runs.own_records import read_run_records
from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.torch.cache_places import INDUCTOR_CACHE, launch_place
from envguard.errors import UsageError
from envguard.fingerprint import snapshot
from envguard.fingerprint.checkpoint_reference import of_checkpoint
from envguard.fingerprint.comparison import Knowledge, compare_references
from envguard.fingerprint.diff import compare
from envguard.fingerprint.places import Places, Reference
from envguard.fingerprint.reference import newest_run, resolve, resolve_default
from envguard.launch import child, seed, start, waivers
from envguard.launch.bundled import Bundled, are_options, bundled_command, require_checkout
from envguard.launch.claims import Claims, claim
from envguard.launch.earlier import says, without_end
from envguard.launch.expect import expect
from envguard.launch.guard import Guard, Meter, baseline_of
from envguard.launch.nodes import exchange, together, told
from envguard.launch.observer import Sight
from envguard.launch.preflight import Expected, check_all
from envguard.launch.rendezvous import Rendezvous, find_rendezvous
from envguard.launch.resuming import resumed
from envguard.launch.session import FIRST_START, Gate, Warn, weigh
from envguard.launch.start import AskedOnce
from envguard.launch.starting import Start
from envguard.launch.supervise import Plan
from envguard.launch.targets import watched_of
from envguard.launch.whose import in_environment
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
    chosen: bool
    """`python` was chosen, by an option or the configuration."""
    started: Start
    """What COMMAND starts, as far as its words determine it."""
    deep: bool
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
    meet: Rendezvous | None
    environ: Mapping[str, str]
    places: Callable[[Live], Places]
    knowledge: Callable[[Live], Knowledge]


def prepare(request: Request, warn: Warn) -> tuple[Gate, Plan]:
    """Everything up to the decision. Raises `UsageError`, `InputError`, and `CannotExecute`."""
    environ = request.started.environ
    host = AskedOnce(start.ForChild(LiveHost(), environ))
    given = waivers.parse_waivers(request.waive, request.because, request.until, waivers.author(), clock.now())
    on_drift = _on_drift(request)
    env = locate(host, request.python, str(request.start))
    own = () if are_options(request.command) else request.command
    if not own:
        require_checkout(request.project.root)
    else:
        child.find_command(own, request.environ)
    doubts, unsure = in_environment(host, env, request.started, chosen=request.chosen)
    private = launch_place(host, environ, env.site, env.abi or "")
    cache = Path(private) if private is not None else None
    filled = cache is not None and seed.is_filled(cache)
    # The reference first: where it had its compile caches is where the live side looks, too.
    places = request.places(functools.cache(lambda: take_for_child(host, request, env, None, (), warn))).looked()
    reference, missing = _reference(request, places)
    live = take_for_child(host, request, env, cache if filled else None, _witnesses(reference), warn)
    bundled = None if own else _bundled(host, request, env, reference)
    command = own or (bundled.command if bundled is not None else ())
    child.find_command(command, request.environ)
    diff = _compared(request, reference, live)
    diff = msgspec.structs.replace(diff, unknown=(*diff.unknown, *unsure), match=diff.match and not unsure)
    earlier = _earlier(host, request, warn)
    newest = next(iter(reversed(newest_run(places))), None)
    room = read_headroom(host, _folders(request, newest))
    known = reference.fingerprint if reference is not None else None
    expected = expect(host, environ, known, live, earlier, newest)
    claims, claimed = _claims(host, request, room, live, expected)
    checks = (*check_all(room, live, expected), *claimed)
    named = _as_ref(reference) if reference is not None else None
    inferred = reference is not None and reference.kind == "checkpoint" and reference.fingerprint is None
    gated = weigh(request.project, live, diff, named, checks, given, warn, inferred=inferred)
    at = request.meet or find_rendezvous(command, environ)
    if at is not None:
        word = told(gated.verdict, live, (*given, *gated.standing), diff.a.id if reference is not None else None)
        council = exchange(env.executable, at, word)
        gated = together(gated, council, request.project.config.policy, request.project.config.refuse)
    ended = without_end(host, earlier, host.machine().host)
    of_reference = _notes_of(host, env, reference) if reference is not None else ()
    notes = (*missing, *of_reference, *doubts, *gated.notes, *(says(record) for record in ended))
    gated = replace(gated, notes=notes)
    plan = Plan(
        command=command,
        bundled=bundled,
        environ=request.environ,
        compile_cache=cache,
        seed=None if filled else seed.seed_of(live, known),
        on_drift=on_drift,
        stdout_to_stderr=request.json,
        records_baseline=reference is None,
        without_end=ended,
        claims=claims,
        memory_before={gpu.index: used for gpu in room.gpus.all or () if (used := gpu.get("used")) is not None},
        sight=_sight(host, request, env, cache, reference, live, warn),
    )
    return gated, plan


def _notes_of(host: Host, env: Environment, reference: Reference) -> Iterator[str]:
    another = said_of_another(host, reference.label, reference.fingerprint, env.prefix, env.how)
    if another is not None:
        yield another
    yield from (f"{reference.label}: {note}" for note in reference.notes)


def _on_drift(request: Request) -> Literal["warn", "stop"]:
    asked = request.on_drift or request.project.config.on_drift
    if asked == "warn":
        return "warn"
    if asked == "stop":
        return "stop"
    raise UsageError(
        f"--on-drift {asked!r} is neither warn nor stop", "warn says what changed under the run, stop ends it"
    )


def take_for_child(
    host: Host,
    request: Request,
    env: Environment,
    cache: Path | None,
    witnesses: tuple[Fingerprint, ...],
    warn: Warn,
) -> Fingerprint:
    """The environment as the command will find it: with the compile cache that it will be given, and those that the
    witnesses name."""
    variables = {**request.started.environ, INDUCTOR_CACHE: str(cache)}
    for_child = start.ForChild(host, variables) if cache is not None else host
    root = request.project.root
    asked = snapshot.Request(
        start=str(request.start),
        python=env.prefix,
        root=str(root) if root is not None else None,
        config=request.project.config,
        deep=request.deep,
        path0=request.started.path0,
        own_pids=frozenset({os.getpid(), os.getppid()}),
        witnesses=witnesses,
    )
    digests = digest_store.load(request.project.state)
    live = snapshot.take(for_child, asked, digests)
    if not request.dry_run:
        snapshot.keep_digests(request.project.state, digests, warn)
    return live


def _bundled(host: Host, request: Request, env: Environment, reference: Reference | None) -> Bundled:
    checkpoint = reference.checkpoint if reference is not None else None
    root, state = request.project.root, request.project.state
    return bundled_command(host, root, state, env.executable, checkpoint, request.command)


def _compared(request: Request, reference: Reference | None, live: Fingerprint) -> DiffReport:
    """The comparison; where nothing is there to compare with, what could not be determined here still counts."""
    if reference is None:
        return compare(live, live, (), FIRST_START, "live")
    here = Reference("live", "live", fingerprint=live)
    knowledge = request.knowledge(lambda: live)
    diff = compare_references((reference, here), knowledge, request.project.config.policy)
    if request.baseline and diff.exit_code() != 0:
        raise UsageError(
            f"--baseline: there is a reference already, {reference.label}, and this environment does not match it",
            f"`envguard diff {_as_ref(reference)}` says how they differ; without --baseline the gate decides",
        )
    return diff


def _witnesses(reference: Reference | None) -> tuple[Fingerprint, ...]:
    """What tells where compile caches were: the reference, where it has a fingerprint."""
    return () if reference is None or reference.fingerprint is None else (reference.fingerprint,)


def _as_ref(reference: Reference) -> str:
    """What a user types to name it: a recorded baseline has no name but its file's."""
    return reference.path or reference.label if reference.kind == "baseline" else reference.label


def _earlier(host: Host, request: Request, warn: Warn) -> tuple[RunRecord, ...]:
    unseen: list[Unknown] = []
    records = read_run_records(host, str(request.project.state), unseen)
    for item in unseen:
        warn(f"{item.what} cannot be read: {item.why}")
    return tuple(record for _, record in records)


def _folders(request: Request, newest: Checkpoint | None) -> list[str]:
    """Where checkpoints will be written."""
    return [newest.run_directory] if newest is not None else [str(root) for root in request.checkpoint_roots[:1]]


def _claims(
    host: Host, request: Request, room: Headroom, live: Fingerprint, expected: Expected
) -> tuple[Claims, tuple[Check, ...]]:
    """Claims the GPUs that the run will see; one that another launch holds is a passing state."""
    chosen = visible(room.gpus.all or (), expected.visible_devices) if live.gpus else ()
    if not chosen:
        return Claims(), ()
    claims = claim(
        host, (gpu.uuid_digest or f"{platform.node()}-{gpu.index}" for gpu in chosen), request.started.environ
    )
    if not claims.taken:
        return claims, (Check(check="gpu claims", ok=True, detail="no other launch holds these GPUs", facet="gpu"),)
    claims.release()
    holders = ", ".join(f"PID {pid}" for pid in dict.fromkeys(claims.taken.values()))
    says = f"{len(claims.taken)} of these GPUs are held by another envguard launch ({holders})"
    return claims, (Check(check="gpu claims", ok=False, detail=says, passing=True, facet="gpu"),)


def _sight(
    host: Host,
    request: Request,
    env: Environment,
    cache: Path | None,
    reference: Reference | None,
    live: Fingerprint,
    warn: Warn,
) -> Sight:
    """What stands ready beside the run; nothing of it is read before the gate has opened."""
    config, project = request.project.config, request.project
    logs = [str(project.path(name)) for name in config.logs]
    places = list(dict.fromkeys([*(str(root) for root in request.checkpoint_roots), str(request.start)]))

    def guard() -> Guard:
        zone = read_zone(host, host.machine())
        checkpoint = reference.checkpoint if reference is not None else None
        beside = [checkpoint.run_directory] if checkpoint is not None else []
        step = checkpoint.step if checkpoint is not None else None
        rate = baseline_of(host, beside, logs, config.log_fields, zone, step) if beside else None
        meter = Meter(config.throughput, rate, reference.label if reference is not None else "", time.time())
        return Guard(host, places, logs, config.log_fields, zone, meter)

    def regrade() -> DiffReport:
        now = take_for_child(host, request, env, cache, _witnesses(reference), warn)
        return compare(live, now, config.policy, "the start", "now")

    return Sight(host, lambda: watched_of(host, project, env, live, cache), guard, regrade, config.refuse)


def _reference(request: Request, places: Places) -> tuple[Reference | None, tuple[str, ...]]:
    """What to match, None for a first start, where `--baseline` found nothing to match; and in words what of it is
    worth a note. The checkpoint that the command goes on from is never exchanged for another."""
    started = request.started
    if request.against is not None:
        return _as_asked(resolve(request.against, places), started), ()
    of_command = resumed(request.command, replace(places, start=started.folder), started.environ)
    if of_command is not None and of_command.checkpoint is not None:
        # What the command calls it is a REF only where both start from one folder.
        label = of_command.label if started.folder == places.start else of_command.checkpoint.path
        return of_checkpoint(of_command.checkpoint, places.host, label), ()
    if of_command is not None and not request.baseline:
        why = f"which checkpoint the command goes on from is not known: {of_command.why}"
        return Reference(of_command.label, "checkpoint", no_stamp=why), ()
    doubt = (f"{of_command.label}: {of_command.why}",) if of_command is not None else ()
    try:
        return _as_asked(resolve_default(places), started), doubt
    except UsageError:
        if request.baseline:
            return None, doubt
        raise


def _as_asked(reference: Reference, started: Start) -> Reference:
    """A lock, with the extras and groups that the command asks for."""
    if reference.lock is None or started.asked is None:
        return reference
    return replace(reference, lock=reference.lock.asking(started.asked))
