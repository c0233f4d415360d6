"""Stamping: the fingerprint of an environment, stored with a checkpoint.

`stamp` is what a trainer calls: it stores the environment as this process loaded it, and apart from that what has
changed on disk since. `stamp_live` is `snapshot --into`: it stores what is on disk, and refuses for a checkpoint
that is older than what it would say about it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from envguard import clock
from envguard.acquire.packages.archive_of_library import FoundBuild, archive_of
from envguard.acquire.packages.contents import Contents, Policy, all_known, known_contents, read_contents
from envguard.acquire.packages.distributions import (
    Distribution,
    Distributions,
    Parsed,
    distribution_of,
    read_distributions,
)
from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.packages.metadata import parse_direct_url
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.processes import loading
from envguard.acquire.processes.elsewhere import imported_elsewhere
from envguard.acquire.processes.own_process import Held, OwnProcess, started_ns
from envguard.acquire.runs.checkpoint_at import NotOne, checkpoint_at
from envguard.acquire.runs.checkpoints import Checkpoint, read_checkpoint
from envguard.acquire.runs.stamps import (
    NoFingerprint,
    Stamp,
    describe_unreadable,
    parse_fingerprint,
    read_stamp,
    reference,
    stamp_path,
)
from envguard.acquire.seam.host import Host, LiveHost
from envguard.errors import InputError, UsageError
from envguard.fingerprint import loaded, snapshot
from envguard.fingerprint.packages import closely, cuda_of, package_of
from envguard.model import plain
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Divergence, Fingerprint, Package
from envguard.model.identity import fingerprint_id, sealed
from envguard.project import Project, open_project
from envguard.state import digests as digest_store
from envguard.state import journal
from envguard.state.digests import Digests
from envguard.state.files import locked, open_state, read_file, write_atomically
from envguard.state.runs import LAUNCH_FINGERPRINT

__all__ = ["Stamp", "loaded_fingerprint", "read_stamp", "stamp", "stamp_live", "to_stamp", "why_older", "write_stamp"]

FRESH_S = 60
logger = logging.getLogger("envguard")
# What holds one of these is a project or an environment: no trainer saves into it as into a checkpoint.
_PROJECT = frozenset({"envguard.toml", "pyproject.toml", ".git", ".envguard", "pyvenv.cfg"})
# A rank that writes on while another stamps makes it look again; a checkpoint that never rests is let go.
MOST_LOOKS = 5
# What this process has parsed of the metadata on its path: a run stamps often, and little of that ever changes.
_parsed: Parsed = {}


def write_stamp(checkpoint: str, fingerprint: Fingerprint, host: Host | None = None) -> Fingerprint:
    """Stores `fingerprint` with the checkpoint; returns it as stored. Raises OSError.

    Several ranks may do this at once: each looks again after its own rename, so that the last stamp to land names
    the files that the last rank to finish had written.
    """
    host = host or LiveHost()
    path = stamp_path(checkpoint, host.stat_target(checkpoint).is_directory)
    named = reference(host, checkpoint)
    for _ in range(MOST_LOOKS):
        fingerprint = sealed(msgspec.structs.replace(fingerprint, checkpoint=named))
        write_atomically(path, msgspec.json.format(plain.encode(fingerprint), indent=1) + b"\n")
        again = reference(host, checkpoint)
        if again == named:
            break
        named = again
    return fingerprint


def why_older(host: Host, checkpoint: str, fingerprint: Fingerprint, now: float | None = None) -> str | None:
    """Why what is on disk now need not be what the checkpoint was saved under; None where it is.

    Raises OSError where the checkpoint cannot be seen.
    """
    found = read_checkpoint(host, checkpoint)
    if found is None or not found.dated:
        return "its files bear no time that tells when it was saved"
    first, saved = found.first_ns / clock.NS, found.saved_ns / clock.NS
    age = (time.time() if now is None else now) - saved
    events = [(package.installed_at, package.name) for package in fingerprint.packages if package.installed_at]
    newest, name = max(events, default=(None, ""))
    if newest is not None and clock.seconds(newest) > first:
        return f"{name} was installed at {clock.local(newest)}, after it was saved ({clock.local(clock.iso(first))})"
    if age > FRESH_S:
        return f"it was saved {clock.span(age)} ago"
    if age < -FRESH_S:
        return f"its files bear a time {clock.span(age)} ahead of the clock"
    return None


def stamp_live(checkpoint: str, fingerprint: Fingerprint, retrospective: bool) -> Fingerprint:
    """Stores a snapshot with a checkpoint. Raises `UsageError` for an older one without `retrospective`."""
    host = LiveHost()
    try:
        older = why_older(host, checkpoint, fingerprint)
        if older is not None and not retrospective:
            raise UsageError(
                f"{checkpoint} is older than this snapshot: {older}",
                "`--retrospective` stores it all the same, marked as no evidence of the past",
            )
        origin = "retrospective" if older is not None else "live"
        marked = msgspec.structs.replace(fingerprint, origin=origin, diverged=())
        return write_stamp(checkpoint, marked, host)
    except OSError as error:
        folder = checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint) or "."
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise InputError(
                f"no stamp can be written into {folder}: {error.strerror or error}",
                "its owner can stamp it; `snapshot -o FILE` writes the fingerprint elsewhere",
            ) from error
        raise InputError(describe_unreadable(error, checkpoint)) from error


def stamp(checkpoint: str | os.PathLike[str], *, strict: bool = False) -> Fingerprint | None:
    """Stores the environment as this process loaded it with a checkpoint that was just saved.

    A directory gets `envguard.json`, a file X gets `X.envguard.json` beside it. Safe when every rank calls it. Needs
    the standard library, msgspec and packaging, and no more. A checkpoint that was saved before this process started
    is stamped as retrospective, which is no evidence of its past. A link stands for what it leads to, a file inside a
    checkpoint for the checkpoint.

    Raises `envguard.errors.InputError` where the path is no checkpoint. A stamp that fails in any other way, on a
    full disk or where nobody may write, ends no training: it is a warning of the logger `envguard` and an entry in
    the journal, and None is returned. With `strict` it raises.
    """
    path = to_stamp(LiveHost(), os.fspath(checkpoint))
    try:
        return _stamp(path)
    except Exception as error:  # whatever fails here, the checkpoint is saved and training goes on
        if strict:
            raise
        why = f"{type(error).__name__}: {error}"
        logger.warning("checkpoint %s is not stamped: %s", path, why)
        with contextlib.suppress(OSError, UsageError):
            state = open_project(Path.cwd(), os.environ, prefix=sys.prefix).state
            journal.append(state, "stamp.failed", {"path": path, "why": why})
        return None


def to_stamp(host: Host, checkpoint: str) -> str:
    """The absolute path of the checkpoint that a path stands for. Raises `InputError` where it stands for none."""
    after = "call `envguard.stamp` after the checkpoint was saved"
    if not checkpoint.strip():
        raise InputError("the path of the checkpoint is empty", "name the file or the directory that was saved")
    path = os.path.abspath(os.path.expanduser(checkpoint))
    try:
        found = checkpoint_at(host, path)
        if found is None:
            raise InputError(f"there is no checkpoint at {path}", after)
        if isinstance(found, Checkpoint):
            path = found.path
        names = {name for name, _ in host.listing(path)} if os.path.isdir(path) else set()
    except OSError as error:
        raise InputError(describe_unreadable(error, checkpoint)) from error
    marks = sorted(names & _PROJECT)
    if marks:
        raise InputError(f"{path} is no checkpoint: it holds {marks[0]}", "name the directory that was saved")
    if isinstance(found, NotOne) and found.kind == "run":
        last = found.inner[-1].path
        raise InputError(f"{path} is a directory of checkpoints, not one of them", f"the last one is {last}")
    return path


def _stamp(path: str) -> Fingerprint:
    project = open_project(Path.cwd(), os.environ, prefix=sys.prefix)
    taken = loaded_fingerprint(project)
    saved = read_checkpoint(LiveHost(), path)
    if saved is not None and saved.dated and saved.saved_ns < started_ns() - FRESH_S * clock.NS:
        # Saved by an earlier process: what this one loaded is no evidence of what that one had.
        taken = msgspec.structs.replace(taken, origin="retrospective")
    stamped = write_stamp(path, taken)
    note(project.state, stamped, path)
    return stamped


def note(state: Path, fingerprint: Fingerprint, checkpoint: str) -> None:
    """Notes a stamp in the journal; a state folder that cannot be written does not cost a checkpoint its stamp."""
    with contextlib.suppress(OSError):
        journal.append(state, "stamp", {"id": fingerprint.id, "path": checkpoint, "origin": fingerprint.origin})


def loaded_fingerprint(project: Project, host: Host | None = None) -> Fingerprint:
    """The environment as this process loaded it, and in `diverged` what lies on disk otherwise."""
    host = host or _TrainersHost()
    digests = digest_store.load(project.state)
    env = locate(host, own_python(), str(project.start), loading.AT_IMPORT.pythonpath)
    request = snapshot.Request(
        start=str(project.start),
        root=str(project.root) if project.root is not None else None,
        config=project.config,
        in_process=True,
        path0=loading.AT_IMPORT.first,
    )
    found = read_distributions(host, env, _parsed if isinstance(host, LiveHost) else None)
    policy = Policy(project.config.watch, closely=closely(found))
    own = OwnProcess(host, env.site, loading.AT_IMPORT, found.found)
    with _alone(project.state, host, found, policy, digests) as digests:
        contents = read_contents(host, found.found, policy, digests, trust_records=True, mapped=own.mapped)
        snapshot.keep_digests(project.state, digests, None)
    disk = snapshot.assemble(host, request, env, found, contents, digests)
    before = _before(host, env, own, found, {each.name: each for each in disk.packages}, contents.of, digests)
    snapshot.keep_digests(project.state, digests, None)
    taken = _as_loaded(host, project, disk, env, own, before, digests)
    return msgspec.structs.replace(taken, unknown=(*taken.unknown, *_elsewhere(host, env, found)))


def _elsewhere(host: Host, env: Environment, found: Distributions) -> Iterator[Unknown]:
    """What this process runs under a package's name and no metadata tells of."""
    for each in imported_elsewhere(host, env, found.found):
        module = "" if each.module == each.package else f" as {each.module}"
        why = f"what this process imported{module} lies at {each.path}, outside the package that is installed"
        yield Unknown(f"packages: {each.package}", why)


@contextlib.contextmanager
def _alone(state: Path, host: Host, found: Distributions, policy: Policy, digests: Digests) -> Iterator[Digests]:
    """The store to work with. Where gigabytes must be hashed first, one rank of this host does it, and the others
    wait and find them known; a state folder that takes no lock leaves each to itself."""
    if all_known(host, found.found, policy, digests):
        yield digests
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(locked(open_state(state) / "digests.lock"))
            digests = digest_store.load(state)
        yield digests


class _TrainersHost(LiveHost):
    """This machine, which asks NVML once in the life of a process: its driver and GPUs do not change under it, an
    answer costs a training step, and a GPU that fell off its bus lets each question wait for its time-out."""

    _answer: ClassVar[Any] = None

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation != "nvml":
            return super().call(operation, *arguments)
        if _TrainersHost._answer is None:
            try:
                _TrainersHost._answer = super().call(operation, *arguments)
            except OSError as error:
                _TrainersHost._answer = error
        if isinstance(_TrainersHost._answer, OSError):
            raise _TrainersHost._answer
        return _TrainersHost._answer


def own_python() -> str:
    """This process's environment as `--python` would name it."""
    return sys.prefix if os.path.exists(os.path.join(sys.prefix, "pyvenv.cfg")) else sys.executable


def _as_loaded(
    host: Host,
    project: Project,
    disk: Fingerprint,
    env: Environment,
    own: OwnProcess,
    before: loaded.Before,
    digests: Digests,
) -> Fingerprint:
    def recover(name: str, held: Held) -> FoundBuild | None:
        archive = archive_of(host, cache_directories(host, env, project.config), name, held.stale)
        if archive is not None or name != "torch" or own.torch is None:
            return archive
        below = "torch/lib/"
        libraries = {
            file.relative.removeprefix(below): file.build_id for file in held.stale if file.relative.startswith(below)
        }
        version, git = own.torch.version, own.torch.git_version
        build = snapshot.build_remembered(digests.memo, version, git, libraries)
        return FoundBuild("", version, build, "an earlier fingerprint", (), None) if build is not None else None

    process = loaded.Process(
        own.started_ns, own.suspects, own.held, recover, own.torch, lambda: own.libraries_below("torch/lib/")
    )
    outcome = loaded.reconcile({package.name: package for package in disk.packages}, disk.torch, before, process)
    packages = tuple(outcome.packages[name] for name in sorted(outcome.packages))
    torch = loaded.torch_as_loaded(
        disk.torch, before, process, outcome, lambda build: snapshot.remembered_torch(digests.memo, build)
    )
    python, diverged = disk.python, list(outcome.diverged)
    if python.version is not None and python.version != platform.python_version():
        what = Divergence(what="python", loaded=platform.python_version(), disk=python.version, path=python.base)
        diverged.append(what)
        python = msgspec.structs.replace(python, version=platform.python_version())
    return msgspec.structs.replace(
        disk,
        id=fingerprint_id(python, packages, torch, disk.driver, disk.gpus),
        python=python,
        packages=packages,
        torch=torch,
        cuda=cuda_of(torch, packages),
        unknown=tuple(dict.fromkeys((*disk.unknown, *outcome.unknown))),
        origin="loaded",
        diverged=tuple(diverged),
    )


def _before(
    host: Host,
    env: Environment,
    own: OwnProcess,
    found: Distributions,
    disk: Mapping[str, Package],
    now: Mapping[str, Contents],
    digests: Digests,
) -> loaded.Before:
    """What the packages were before: as launch recorded them, and as they lay when envguard was imported."""
    captured = _captured(host, env, own.capture, found, disk, now, digests)
    launch = _launch_fingerprint(env)
    if launch is None:
        return loaded.Before((captured,))
    return loaded.Before(({package.name: package for package in launch.packages}, captured), True, launch.torch)


def _captured(
    host: Host,
    env: Environment,
    capture: loading.Capture,
    found: Distributions,
    disk: Mapping[str, Package],
    now: Mapping[str, Contents],
    digests: Digests,
) -> dict[str, Package]:
    """Each package as it lay when envguard was imported: of several of one name the first on the path, as import has
    it. One of which nothing has moved since is the package that is on disk."""
    on_disk = {dist.directory: dist for dist in found.found}
    rank = {entry.path: number for number, entry in reversed(tuple(enumerate(env.sys_path)))}
    seen = [each for each in (*capture.distributions, *capture.failed) if os.path.dirname(each) in rank]
    claims: dict[str, list[tuple[bool, Distribution, Contents]]] = {}
    for directory in sorted(seen, key=lambda each: rank[os.path.dirname(each)]):
        each, dist = capture.distributions.get(directory), on_disk.get(directory)
        content = now.get(directory, Contents(None))
        # Of one that could not be read then nothing is known, and nothing may be said against it.
        unmoved = dist is not None and (each is None or _unmoved(host, each, dist, content))
        if not unmoved and each is not None:
            dist = _as_it_was(host, each)
            content = known_contents(digests, directory, each.key, each.record)
        if dist is not None:
            claims.setdefault(dist.name, []).append((unmoved, dist, content))
    number = Counter(dist.name for dist in found.found)
    captured = {}
    for name, those in claims.items():
        if name in disk and number[name] == len(those) and all(unmoved for unmoved, _, _ in those):
            captured[name] = disk[name]
        else:
            captured[name] = package_of(*those[0][1:])
    return captured


def _as_it_was(host: Host, each: loading.CapturedDistribution) -> Distribution:
    try:
        url = parse_direct_url(each.direct_url) if each.direct_url else None
    except (msgspec.MsgspecError, ValueError):
        url = None  # where it came from could not be read then either; what it was, its metadata says
    return distribution_of(host, *os.path.split(each.directory), each.metadata, each.installer, url)


def _unmoved(host: Host, each: loading.CapturedDistribution, dist: Distribution, content: Contents) -> bool:
    """Whether a distribution is as it was; one without RECORD is known by its version alone."""
    if each.key != loading.NO_RECORD:
        return content.record_key == each.key
    has_record = content.record_key is not None and content.record_key[0] >= 0
    return not has_record and _as_it_was(host, each).version == dist.version


def _launch_fingerprint(env: Environment) -> Fingerprint | None:
    """What `launch` recorded before it started this process, where it started it in this environment."""
    path = os.environ.get(LAUNCH_FINGERPRINT)
    if not path:
        return None
    try:
        found = parse_fingerprint(read_file(path))
    except (OSError, NoFingerprint):
        return None  # the stamp then rests on what envguard saw when it was imported
    return found if found.python.prefix == env.prefix else None
