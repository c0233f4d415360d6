"""`restore` as one call: find, plan, and, where asked for, carry out; the answer is a `RestoreReport`."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging import tags

from envguard import clock
from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.installs import read_installs
from envguard.acquire.packages.uv_indexes import configured_indexes
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.acquire.torch.compile_cache import Build
from envguard.acquire.torch.torch_build import find_torch, read_torch
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key
from envguard.errors import NotDetermined, RestoreError, UsageError
from envguard.fingerprint.units import counted
from envguard.model.action import CacheItem, Obstacle, RestoreReport
from envguard.model.fingerprint import Fingerprint
from envguard.project import Project
from envguard.restore import apply, foreseen, looking, staging, uv
from envguard.restore.apply import Outcome
from envguard.restore.byhand import said_for_hand
from envguard.restore.cache_targets import Named
from envguard.restore.candidate import Candidate
from envguard.restore.compile_cache import Brought, bring_back, cold, nothing_to_judge
from envguard.restore.downloads import FOLDER, Downloads
from envguard.restore.fetching import FetchFailed, fetch, index_urls
from envguard.restore.finding import find_candidates
from envguard.restore.installed import said_of_hidden, said_of_leftovers
from envguard.restore.locks import occupants
from envguard.restore.plan import IS_BROKEN, WILL_BREAK, Plan, make_plan, plan_items
from envguard.restore.progress import Progress, Silent
from envguard.restore.staging import Staging
from envguard.restore.wanted import Target, Wanted
from envguard.state.digests import Digests

STOP_THEM = "stop them first; with `--force` they keep the files that they have mapped, and may fail to import more"


@dataclass(frozen=True)
class Request:
    """What is to be restored in which environment, and how far to go."""

    host: Host
    env: Environment
    project: Project
    target: Target
    live: Fingerprint
    only: tuple[str, ...] = ()
    exact: bool = False
    fetch: bool = False
    force: bool = False
    downloads: Downloads = dataclasses.field(default_factory=Downloads, compare=False)

    @property
    def state(self) -> Path:
        return self.project.state


def wheel_tags(env: Environment) -> frozenset[str]:
    """The tags of wheels that the environment's interpreter takes on this machine. Raises `RestoreError`."""
    try:
        parts = (env.version or "").split(".")
        version = (int(parts[0]), int(parts[1]))
    except (ValueError, IndexError) as error:
        raise RestoreError(f"{env.prefix}: its Python version is unknown, so no wheel can be told to fit") from error
    platforms = list(tags.platform_tags())
    free_threaded = "t" if (env.abi or "").rstrip("d").endswith("t") else ""
    interpreter = f"cp{version[0]}{version[1]}"
    found = {str(tag) for tag in tags.cpython_tags(version, [f"{interpreter}{free_threaded}"], platforms)}
    return frozenset(found | {str(tag) for tag in tags.compatible_tags(version, interpreter, platforms)})


def check_environment(env: Environment, host: Host) -> None:
    """Refuses an environment that is another manager's. Raises `RestoreError`."""
    if env.kind != "system":
        return
    for folder in sorted({entry.path for entry in env.sys_path if entry.origin == "stdlib"}):
        marker = f"{folder}/EXTERNALLY-MANAGED"
        if host.find(marker) is not None:
            raise RestoreError(
                f"{env.prefix} belongs to the distribution's package manager ({marker})",
                "nothing is installed over its files; name a venv with `--python`",
            )


def find_and_plan(request: Request, progress: Progress | None = None) -> Plan:
    """Looks through the caches and says what would be done; changes nothing. Raises `RestoreError`.

    pip's cache is read only where the nearer places lack something: its files have no names, and each is opened.
    With `fetch` what is still missing is downloaded, into the state folder.
    """
    check_environment(request.env, request.host)
    _check_interpreter(request)
    _check_names(request)
    plan = _plan(request, thorough=False)
    if plan.missing:
        plan = _plan(request, thorough=True)
    if plan.missing and request.fetch:
        plan = _fetch(request, plan.absent, progress or Silent())
    return plan


def look_closely(request: Request, progress: Progress | None = None) -> Request:
    """The request with every file of the packages in question read."""
    names = {wanted.name for wanted in request.target.packages if not request.only or wanted.name in request.only}
    live = looking.look_closely(request.host, request.env, request.state, request.live, names, progress or Silent())
    return dataclasses.replace(request, live=live)


def _plan(request: Request, thorough: bool, more: tuple[Candidate, ...] = ()) -> Plan:
    names = {wanted.name for wanted in request.target.packages if not request.only or wanted.name in request.only}
    found, unknown = find_candidates(
        request.host, request.env, request.project, request.target, frozenset(names), thorough
    )
    tags = wheel_tags(request.env)
    plan = make_plan(request.target, request.live, (*found, *more), tags, request.only, request.exact)
    dists = read_distributions(request.host, request.env)
    steps = {step.name for step in plan.steps}
    notes = (
        *plan.notes,
        *(f"not seen: {item.what}: {item.why}" for item in unknown),
        *said_of_leftovers(request.host, request.env, dists, steps),
        *said_of_hidden(request.env, dists, plan),
    )
    undetermined = (*looking.unseen(dists, request.target, plan), *plan.unknown)
    return msgspec.structs.replace(plan, notes=notes, unknown=undetermined)


def _fetch(request: Request, lacking: Iterable[Wanted], progress: Progress) -> Plan:
    """The plan with what could be downloaded; why the rest could not be is said in its notes."""
    folder = request.state / FOLDER
    found, failed = [], []
    configured = configured_indexes(request.host)
    try:
        folder = request.downloads.folder(request.state)
        for wanted in lacking:
            indexes = index_urls(wanted, os.environ, configured)
            try:
                found.append(fetch(wanted, indexes, wheel_tags(request.env), folder, request.host, progress))
            except FetchFailed as error:
                failed.append(f"{wanted.name} could not be fetched: {error}")
    except OSError as error:
        raise RestoreError(f"{folder}: {error.strerror or error}", "nothing was changed") from error
    plan = _plan(request, thorough=True, more=tuple(found))
    return msgspec.structs.replace(plan, notes=(*plan.notes, *failed))


def prove(request: Request, plan: Plan, progress: Progress | None = None) -> Outcome:
    """What a dry run can know without touching the environment: the sources read and held against their RECORD, and
    others sought, as the restore would."""
    progress = progress or Silent()

    def attempt(each: Plan) -> Outcome:
        proved = staging.stage(each, None, progress)
        outcome = Outcome(chosen=proved.proved, poisoned=proved.poisoned, missing=[*each.missing, *proved.failed])
        outcome.verified = already_there(each)
        if each.steps and not outcome.missing and not each.unknown:
            outcome.refused = _foreseen(request, each, proved)
            outcome.notes += proved.owners.notes
        return outcome

    return _with_other_sources(request, plan, attempt, progress)


def _foreseen(request: Request, plan: Plan, proved: Staging) -> list[Obstacle]:
    """Why `restore -y` would refuse this plan. Raises `RestoreError` where there is no uv that could install."""
    uv.find_uv()
    found = foreseen.foresee(request.host, request.env, request.target, plan, proved)
    folder = next(each for each in (request.state, *request.state.absolute().parents) if each.is_dir())
    living = None if request.force else foreseen.in_use(request.host, request.env)
    return [*found, *(each for each in (living, foreseen.no_room(request.env, proved, folder)) if each is not None)]


def already_there(plan: Plan) -> bool:
    """Whether every package is proved to be of the wanted build as it is: never true of a plan that says nothing."""
    return bool(plan.same) and not (plan.steps or plan.missing or plan.unknown or plan.unproved)


def _check_names(request: Request) -> None:
    known = {wanted.name for wanted in request.target.packages} | set(request.target.newer)
    if request.target.kind == "witnesses":
        known |= {package.name for package in request.live.packages}  # nobody saw them change; no slip of the finger
    unknown = [name for name in request.only if name not in known]
    if unknown:
        import difflib

        close = difflib.get_close_matches(unknown[0], known, n=3)
        some = ", ".join(sorted(known)[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {some or 'none'}"
        raise UsageError(f"{request.target.reference} has no package {', '.join(unknown)}", hint)


def _check_interpreter(request: Request) -> None:
    wanted, env = request.target.python, request.env
    if wanted is None or wanted.version is None or env.version is None:
        return
    ours, theirs = env.version.split(".")[:2], wanted.version.split(".")[:2]
    kind = (wanted.implementation or "cpython").lower()
    python = f"{'' if kind == 'cpython' else kind}{'.'.join(theirs)}"
    if ours != theirs or (wanted.implementation or "").lower() != (env.implementation or "").lower():
        raise RestoreError(
            f"{request.target.reference} was {wanted.implementation} {'.'.join(theirs)}, "
            f"and {env.prefix} is {env.implementation} {'.'.join(ours)}",
            f"make another environment for it: `uv venv --python {python} .venv-{python} && "
            f"envguard restore {shlex.quote(request.target.reference)} --python .venv-{python}`",
        )


def not_restored(request: Request, changed: Collection[str] = ()) -> list[str]:
    """What a stamp knows and no restore brings back, each with the command that a person may run."""
    stamped = request.target.fingerprint
    return said_for_hand(stamped, request.live, changed) if stamped is not None else []


def report_of(request: Request, plan: Plan, outcome: Outcome | None = None) -> RestoreReport:
    """The answer, before or after the plan was carried out."""
    outcome = outcome or Outcome()
    plan = outcome.plan or plan
    notes = [*plan.notes, *outcome.notes, *not_restored(request, {step.name for step in plan.steps})]
    if outcome.applied:
        notes = [note.replace(WILL_BREAK, IS_BROKEN, 1) if note.startswith(WILL_BREAK) else note for note in notes]
    if outcome.failure is not None and not outcome.missing and not outcome.refused:
        notes.append(outcome.failure)
    return RestoreReport(
        reference=request.target.reference,
        environment=request.env.prefix,
        plan=plan_items(plan, outcome.chosen),
        missing=tuple(dict.fromkeys((*plan.missing, *outcome.missing))),
        poisoned=tuple(outcome.poisoned),
        refused=tuple(outcome.refused),
        unknown=plan.unknown,
        notes=tuple(dict.fromkeys(notes)),
        caches=outcome.caches,
        applied=outcome.applied,
        verified=outcome.verified and not plan.unmet,
        unmet=plan.unmet,
        rolled_back=outcome.rolled_back,
        differs=outcome.differs,
    )


def carry_out(request: Request, plan: Plan, progress: Progress | None = None) -> Outcome:
    """Carries a plan out. Raises `RestoreError` where it may not begin, `RollbackError` where all went wrong."""
    progress = progress or Silent()
    check_environment(request.env, request.host)
    living = occupants(request.host, request.env)
    if living and not request.force:
        raise RestoreError(foreseen.says_in_use(request.env, living), STOP_THEM)
    if plan.missing:
        says = f"{counted(len(plan.missing), 'package')} cannot be had from this machine"
        raise RestoreError(f"{says}; nothing was changed")
    if plan.unknown:
        raise NotDetermined(f"{plan.unknown[0].what}: {plan.unknown[0].why}", "nothing was changed")
    outcome = _with_other_sources(request, plan, lambda each: _apply(request, each, progress), progress)
    outcome.notes += [f"PID {each.pid} still runs the files from before: {each.command[:80]}" for each in living]
    return outcome


def _with_other_sources(
    request: Request, plan: Plan, attempt: Callable[[Plan], Outcome], progress: Progress
) -> Outcome:
    """Attempts the plan, and where a source proves unsound or is gone, the plan with sources from further away: the
    order is one for a dry run and for the restore itself."""
    outcome = attempt(plan)
    for look in (_look_further, _download_instead):
        further = look(request, plan, outcome, progress) if outcome.missing else None
        if further is None:
            continue
        poisoned, notes = outcome.poisoned, [note for note in further.notes if note not in plan.notes]
        plan, outcome = further, attempt(further)
        outcome.poisoned = list(dict.fromkeys([*poisoned, *outcome.poisoned]))
        outcome.notes += notes
    outcome.plan = plan
    return outcome


def _look_further(request: Request, plan: Plan, outcome: Outcome, progress: Progress) -> Plan | None:
    further = _plan(request, thorough=True)
    return further if further != plan else None


def _download_instead(request: Request, plan: Plan, outcome: Outcome, progress: Progress) -> Plan | None:
    """What is near is no use, as after an edit in place that went through a hard link into uv's cache."""
    if not request.fetch:
        return None
    names = {item.package.partition(" ")[0] for item in outcome.missing}
    wanted = [*plan.absent, *(step.wanted for step in plan.steps if step.wanted is not None)]
    return _fetch(request, [each for each in wanted if each.name in names], progress)


def note_caches(outcome: Outcome, brought: tuple[Brought, ...]) -> None:
    """Puts what became of the compile caches into the outcome."""
    outcome.notes += [cache.says for cache in brought]
    outcome.caches = tuple(
        CacheItem(path=cache.path, source=cache.source, files=cache.files, bytes=cache.bytes)
        for cache in brought
        if cache.source is not None
    )


def bring_caches_back(
    request: Request, progress: Progress | None = None, dry_run: bool = False
) -> tuple[Brought, ...]:
    """The compile caches of the restored build, those that the stamp names and those in use, filled where a kept one
    fits; one that cannot be written is said.

    Before the restore (`dry_run`) only the stamp knows the tag that the restored torch will have.
    """
    reference = Named(request.target.reference, request.target.fingerprint, request.live.gpus)
    if dry_run:
        build = _build_to_come(request)
    elif nothing_to_judge(request.host, request.project, reference):
        # The tag costs a reading of torch's sources, and there is no cache that it could fit.
        build = Build(None, "no compile cache is here") if _has_torch(request) else None
    else:
        build = _build_now(request)
    if build is None:
        return ()
    try:
        return tuple(bring_back(request.host, request.project, build, reference, progress or Silent(), dry_run))
    except OSError as error:
        where = error.filename or "the compile cache"
        return (
            Brought(
                str(where), f"{where} could not be filled: {error.strerror or error}. So {cold(request.live.gpus)}"
            ),
        )


def _has_torch(request: Request) -> bool:
    return read_distributions(request.host, request.env).of("torch") is not None


def _build_to_come(request: Request) -> Build | None:
    stamped = request.target.fingerprint.torch if request.target.fingerprint else None
    if stamped is None:
        return None
    why = None if stamped.cache_tag else "the stamp does not hold its tag"
    return Build(stamped.cache_tag, why, stamped.triton, _gpu_names(request))


def _build_now(request: Request) -> Build | None:
    """What the torch that is installed now writes and reads; None where there is none."""
    host, env, notes = request.host, request.env, Notes()
    torch = read_torch(host, env, read_distributions(host, env)).value
    directory = find_torch(host, env, notes)
    if torch is None or directory is None or torch.version is None or env.version is None:
        return None
    try:
        key = read_torch_key(host, directory, torch.version, env.version)
    except OSError as error:
        return Build(None, f"{directory}: {error.strerror or error}", torch.triton, _gpu_names(request))
    return Build(cache_tag(key, env.version), None, torch.triton, _gpu_names(request))


def _gpu_names(request: Request) -> frozenset[str] | None:
    gpus = request.live.gpus
    return None if gpus is None else frozenset(gpu.name for gpu in gpus if gpu.name is not None)


def _apply(request: Request, plan: Plan, progress: Progress) -> Outcome:
    mode = request.project.config.link_mode
    judge = functools.partial(_not_as_wanted, request, plan)
    return apply.carry_out(request.host, request.env, request.state, request.target, plan, judge, progress, mode)


def _not_as_wanted(request: Request, carried_out: Plan, digests: Digests) -> list[str]:
    """What the reference wants and is not there now: a plan made anew, which has to be empty.

    The sources that were used tell whether what is installed came from a wheel that a lock names.
    """
    target = request.target
    names = {wanted.name for wanted in target.packages if not request.only or wanted.name in request.only}
    packages, unread = looking.packages_now(request.host, request.env, names, digests)
    now = msgspec.structs.replace(request.live, packages=packages)
    used = [candidate for step in carried_out.steps for candidate in step.candidates]
    left = make_plan(target, now, used, wheel_tags(request.env), request.only, request.exact)
    wrong = [f"{step.name} is not as {target.reference} has it" for step in left.steps]
    wrong += [f"{item.package} is not as {target.reference} has it" for item in left.missing]
    return wrong + [f"{item.what}: {item.why}" for item in (*left.unknown, *unread)]


def installed_since(request: Request, plan: Plan) -> dict[str, str]:
    """When what the plan replaces was installed (ISO), by package: asked before, for nothing tells it afterwards."""
    if not plan.steps:
        return {}
    names = {step.name for step in plan.steps}
    found = read_installs(request.host, read_distributions(request.host, request.env)).found
    dated = {item.name: item.end_ns for item in reversed(found) if item.name in names and item.doubt is None}
    return {name: clock.iso_ns(end) for name, end in dated.items() if end is not None}
