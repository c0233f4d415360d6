"""Carrying a plan out: stage, save, install, verify; and on any failure, put everything back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.seam.host import Host, LiveHost
from envguard.errors import RestoreError, RollbackError
from envguard.model.action import CacheItem, Obstacle
from envguard.restore import check, foreseen, listing, looking, point, transaction, uv
from envguard.restore.archive import RecordUnusable
from envguard.restore.candidate import Candidate
from envguard.restore.copying import copy_file
from envguard.restore.locks import exclusive, remove_unused
from envguard.restore.plan import Plan
from envguard.restore.progress import Progress
from envguard.restore.staging import Staged, Staging, stage
from envguard.restore.transaction import Transaction
from envguard.restore.wanted import Target
from envguard.state import digests as digest_store
from envguard.state.digests import Digests

# How long a uv that a killed restore left behind is waited for.
PATIENCE_S = 120.0


@dataclass
class Outcome:
    """How far it came. `failure` is why it did not come further; `rolled_back` says that everything was put back."""

    chosen: dict[str, Candidate] = field(default_factory=dict)
    poisoned: list[Obstacle] = field(default_factory=list)
    missing: list[Obstacle] = field(default_factory=list)
    refused: list[Obstacle] = field(default_factory=list)
    """Why the environment does not allow it, though every source is sound."""
    applied: bool = False
    verified: bool = False
    rolled_back: bool = False
    differs: tuple[str, ...] = ()
    """Paths of the environment that changed while the restore ran, and that it had no part in."""
    notes: list[str] = field(default_factory=list)
    failure: str | None = None
    hint: str | None = None
    transaction: Path | None = None
    caches: tuple[CacheItem, ...] = ()
    """Compile caches that were, or would be, filled."""
    plan: Plan | None = None
    """The plan that was attempted last, where sources had to be sought again."""


class _Failed(Exception):
    """Something went wrong after the environment was touched."""


Judge = Callable[[Digests], list[str]]
"""What the reference wants and the environment does not have, in words; what is hashed goes into the digests."""


def carry_out(
    host: Host,
    env: Environment,
    state: Path,
    target: Target,
    plan: Plan,
    judge: Judge,
    progress: Progress,
    link_mode: str = "copy",
) -> Outcome:
    """Does what the plan says, or leaves everything as it was. Raises `RollbackError` where neither worked.

    A plan that lacks something is not begun. What decides at the end is `judge`, which looks at the reference and
    not at the plan: between the two a source can vanish and an installed file can change.
    """
    outcome = Outcome(missing=list(plan.missing))
    if plan.missing:
        outcome.failure = f"{plan.missing[0].package}: {plan.missing[0].why}"
        return outcome
    if link_mode == "symlink":
        outcome.notes.append(
            'link_mode = "symlink": copied instead, since links would lead into a cache that goes with the restore'
        )
    uv.find_uv()  # a restore that could not install must not begin
    about = {"reference": target.reference, "packages": [step.name for step in plan.steps]}
    with (
        exclusive(env.prefix) as locks,
        transaction.begin(state, env.prefix, {**about, "made": locks.made}) as work,
    ):
        hold = (*locks.files, *([work.lock] if work.lock is not None else ()))
        outcome.transaction = work.folder
        try:
            staging = _prepare(host, env, target, plan, work, progress, outcome, link_mode)
        except BaseException as error:
            discard(work)
            return _stopped(outcome, error)
        try:
            _install(env, plan, staging, work, hold, progress)
            work.write("installed")
            outcome.applied = True
            outcome.differs = _sweep(staging)
            _verify(host, env, state, plan, staging, judge, progress)
            work.write("verified")
            outcome.verified = True
            # A restore that cannot be written down as done would be undone by the next command.
            marks = {f"{env.site[0]}/{item.incoming.dist_info}/RECORD" for item in staging.staged}
            gone = [step.name for step in plan.steps if step.wanted is None]
            work.write("done", marks={path: transaction.mark_of(path) for path in sorted(marks)}, gone=gone)
        except BaseException as error:
            outcome.applied = outcome.verified = False
            outcome.differs = roll_back(work, progress)
            outcome.rolled_back = True
            return _stopped(outcome, error)
        transaction.note_done(work)
        work.clear_work()
        transaction.forget_older(state, keep=work)
    return outcome


def _stopped(outcome: Outcome, error: BaseException) -> Outcome:
    """Says why it went no further; a fault of ours is raised again, now that the environment is as it was."""
    expected = isinstance(error, KeyboardInterrupt | OSError | _Failed | RestoreError | RecordUnusable)
    if not expected:
        raise error
    outcome.failure = _says(error)
    outcome.hint = error.hint if isinstance(error, RestoreError) else None
    return outcome


def _says(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _prepare(
    host: Host,
    env: Environment,
    target: Target,
    plan: Plan,
    work: Transaction,
    progress: Progress,
    outcome: Outcome,
    link_mode: str,
) -> Staging:
    """Everything that can be done without touching the environment."""
    staging = stage(plan, work.work, progress, link_mode=link_mode)
    outcome.chosen, outcome.poisoned, outcome.missing = staging.proved, staging.poisoned, staging.failed
    if staging.failed:
        lacking = staging.failed[0]
        raise RestoreError(
            f"{lacking.package}: {lacking.why}",
            "everything is as it was before; `--fetch` downloads what a witness names by hash",
        )
    work.write("staged")
    names = {step.name for step in plan.steps}
    staging.tree = listing.list_tree(listing.roots_of(env))
    outcome.refused = foreseen.foresee(host, env, target, plan, staging)
    outcome.notes += staging.owners.notes
    room = foreseen.no_room(env, staging, work.folder)
    outcome.refused += [room] if room is not None else []
    if outcome.refused:
        raise RestoreError(str(outcome.refused[0]))
    assert staging.print is not None
    copies = point.to_copy(staging.print.touched, staging.print.leaving, work.folder)
    size = sum(copies.values())
    progress.begin("save", size)
    staging.saved = work.save(staging.print.touched, copies, staging.tree, progress)
    progress.end()
    work.write("saved", files=len(staging.saved), bytes=size, builds=_builds(host, env, names))
    return staging


def _builds(host: Host, env: Environment, names: Collection[str]) -> dict[str, str | None]:
    """The packages by the content of each file, edits included: what a roll-back has to come to."""
    packages, _ = looking.packages_now(host, env, names, Digests())
    return {package.name: package.build for package in packages if package.name in names}


def _install(
    env: Environment,
    plan: Plan,
    staging: Staging,
    work: Transaction,
    hold: tuple[int, ...],
    progress: Progress,
) -> None:
    work.write("installing")
    progress.begin("install", 0)
    assert staging.print is not None
    point.take_away(staging.saved, staging.print.leaving, _staying(env), work.point)
    python = ["--python", env.executable or env.prefix]
    if staging.owners.first:
        # uv installs in no order: whose file comes over the other's is decided by two runs.
        _demand_wheels(plan, staging, progress)
    if staging.by_lock() and not _install_by_lock(python, staging, hold):
        # Another uv's pointer, most likely: the same sources again as wheels, which any uv takes. What the first
        # attempt left goes before: uv would take files of a `.data` folder for the wheel's.
        assert staging.tree is not None
        listing.remove_litter(staging.tree, staging.saved)
        _demand_wheels(plan, staging, progress)
    # A hard link into a cache that is removed right after shares its inode with nobody, and saves a copy.
    options = [
        "--no-index",
        "--no-deps",
        "--reinstall",
        "--link-mode",
        "hardlink",
        "--find-links",
        str(staging.links),
    ]
    for first in (True, False):
        layer = [item.candidate for item in staging.by_wheel() if (item.step.name in staging.owners.first) is first]
        names = [f"{candidate.name}=={candidate.version}" for candidate in layer]
        if names:
            _run(["pip", "install", *python, *options, *names], staging.cache, hold)
    _keep(staging, work)
    progress.end()


def _demand_wheels(plan: Plan, staging: Staging, progress: Progress) -> None:
    by_wheel = stage(plan, staging.folder, progress, by_lock=False)
    if by_wheel.failed:
        raise _Failed(f"{by_wheel.failed[0].package}: its source changed while it was being installed")
    staging.staged = by_wheel.staged


def _keep(staging: Staging, work: Transaction) -> None:
    """Brings back the files that a package which stays has at the reference, and that a new one came over."""
    saved = {entry.path: entry for entry in staging.saved}
    for path in staging.owners.kept:
        temporary = f"{path}.envguard-{work.folder.name}.tmp"
        copy_file(str(work.point / "files" / str(saved[path].stored)), temporary)
        os.rename(temporary, path)


def _staying(env: Environment) -> set[str]:
    """Folders that every environment has, empty or not."""
    staying = {f"{env.prefix}/bin", f"{env.prefix}/lib"}
    for site in env.site:
        while site.startswith(env.prefix):
            staying.add(site)
            site = os.path.dirname(site)
    return staying


def _install_by_lock(python: list[str], staging: Staging, hold: tuple[int, ...]) -> bool:
    options = ["--no-deps", "--reinstall", "--link-mode", staging.link_mode, "--preview-features", "pylock"]
    ran = uv.run(["pip", "install", *python, *options, "-r", str(staging.lock)], staging.linked_cache, hold)
    return ran.code == 0


def _run(arguments: list[str], cache: Path, hold: tuple[int, ...]) -> None:
    ran = uv.run(arguments, cache, hold)
    if ran.code != 0:
        raise _Failed(f"uv: {ran.reason}")


def _accepted(item: Staged, staging: Staging) -> tuple[str, ...]:
    """The builds that an installed package may be of: the source's; where another package has one of its files, also
    what the reference saw then."""
    edited = item.step.wanted.edited if item.step.wanted is not None else None
    shares = item.step.name in staging.owners.first or staging.owners.kept
    return (item.candidate.build, edited) if edited is not None and shares else (item.candidate.build,)


def _sweep(staging: Staging) -> tuple[str, ...]:
    """Removes what a uv that was killed has left, though another attempt went through; returns what changed in the
    environment beside what the plan touches."""
    assert staging.tree is not None
    assert staging.print is not None
    listing.remove_litter(staging.tree, staging.saved)
    now = listing.list_tree(staging.tree.roots)
    return listing.changed_meanwhile(staging.tree, now, staging.print.touched)


def _verify(
    host: Host, env: Environment, state: Path, plan: Plan, staging: Staging, judge: Judge, progress: Progress
) -> None:
    """Every file of what was installed, then everything that the reference names; what was read of them is kept, so
    that the next snapshot need not."""
    progress.begin("verify installed", sum(item.candidate.bytes or 0 for item in staging.staged))
    dists = read_distributions(host, env)
    digests = digest_store.load(state)
    wrong = [
        says for step in plan.steps if step.wanted is None for says in check.check_removed(env, dists, step.name)
    ]
    builds = {item.step.name: _accepted(item, staging) for item in staging.staged}
    wrong += check.check_installed(host, env, dists, builds, digests, progress)
    wrong += judge(digests) if not wrong else ()
    progress.end()
    with contextlib.suppress(OSError):  # a full disk costs the next snapshot its speed, and nothing else
        digest_store.save(state, digests)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise _Failed(f"after the install: {wrong[0]}{more}")


def roll_back_found(found: Transaction, progress: Progress, force: bool) -> tuple[str, ...]:
    """Undoes a killed restore, or the last one that was done; returns what is not as it was before, since others
    changed it. Raises `RestoreError` and `RollbackError`."""
    if not found.touched:
        with transaction.reopen(found):
            with contextlib.suppress(RestoreError), exclusive(found.prefix):
                remove_unused(found.about.get("made"))  # where an installer holds it, it is in use
            discard(found)
        return ()
    patience_s = 0.0 if found.writer_lives() else PATIENCE_S
    with exclusive(found.prefix, patience_s), transaction.reopen(found):
        if found.step == "done" and not force:
            _demand_unchanged(found)
        return roll_back(found, progress)


def _demand_unchanged(found: Transaction) -> None:
    """What somebody installed after the restore would be lost by undoing it."""
    changed = [path for path, mark in found.marks().items() if transaction.mark_of(path) != mark]
    if found.gone:
        host = LiveHost()
        env = locate(host, found.prefix, "/")
        dists = read_distributions(host, env)
        changed += [says for name in found.gone for says in check.check_removed(env, dists, name)]
    if changed:
        raise RestoreError(
            f"{len(changed)} of the restored packages changed after the restore: {changed[0]}",
            "`--force` puts back what was before the restore all the same",
        )


def roll_back(work: Transaction, progress: Progress) -> tuple[str, ...]:
    """Puts everything back; returns the paths that others changed meanwhile. Raises `RollbackError`, which says what
    is where.

    A disk that is full is no obstacle: what uv had begun goes first, kept files are moved and not copied, and the
    journal can do without these two lines, since a transaction that was not finished is rolled back again.
    """
    with contextlib.suppress(OSError):
        work.write("rolling-back")
    work.clear_work()
    differs: tuple[str, ...] = ()
    if (work.point / point.MANIFEST).exists():
        progress.begin("roll back", sum(saved.size for saved in point.load(work.point)))
        failures, differs = _put_back(work, progress)
        progress.end()
        if failures:
            listed = "; ".join(failures[:5]) + (f"; and {len(failures) - 5} more" if len(failures) > 5 else "")
            raise RollbackError(
                f"the roll-back could not finish: {listed}",
                f"the files as they were are in {work.point}; mend the cause, then `envguard restore --rollback -y`",
            )
    with contextlib.suppress(OSError):
        work.write("rolled-back")
    remove_unused(work.about.get("made"))
    discard(work)
    return differs


def _put_back(work: Transaction, progress: Progress) -> tuple[list[str], tuple[str, ...]]:
    """Puts back, then looks at the whole tree and at every file of what had been replaced: what is not as it was, in
    words, and which paths others changed."""
    before, saved = listing.load(work.point), point.load(work.point)
    failures = []
    if before is not None:
        try:
            listing.remove_litter(before, saved)
        except OSError as error:
            failures.append(_says(error))
    failures += work.put_back(progress)
    if failures or before is None:
        return failures, ()
    now = listing.list_tree(before.roots)
    failures = listing.not_put_back(before, now, saved)
    return failures or _other_builds(work), listing.changed_meanwhile(before, now, {entry.path for entry in saved})


def _other_builds(work: Transaction) -> list[str]:
    """Packages whose files are not, by content, what they were when the restore point was made."""
    builds = next((each.about["builds"] for each in work.entries if "builds" in each.about), None)
    if not builds:
        return []
    host = LiveHost()
    now = _builds(host, locate(host, work.prefix, "/"), builds)
    return [f"{name} is not by content what it was" for name, build in builds.items() if now.get(name) != build]


def discard(work: Transaction) -> None:
    """Drops a transaction that changed nothing, or nothing any more; the register was written into the prefix for it,
    which gets its time back."""
    work.discard()
    before = work.about.get("mtime_ns")
    if isinstance(before, int) and os.path.isdir(work.prefix):
        with contextlib.suppress(OSError):
            os.utime(work.prefix, ns=(before, before))
