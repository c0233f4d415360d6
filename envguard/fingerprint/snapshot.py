"""The environment as it is now, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from envguard import __version__, clock
from envguard.acquire.memo import Memo
from envguard.acquire.packages.binaries import read_binaries
from envguard.acquire.packages.bytecode import judge_bytecode
from envguard.acquire.packages.contents import AllContents, Policy, read_contents
from envguard.acquire.packages.distributions import Distributions, read_distributions
from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.packages.hooks import read_hooks
from envguard.acquire.packages.import_winners import judge_winners
from envguard.acquire.packages.shadowing import judge_start
from envguard.acquire.packages.sources import read_sources
from envguard.acquire.packages.unowned import modules_of, unowned_modules
from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.section import Notes
from envguard.config import Config
from envguard.fingerprint.packages import closely, cuda_of, packages_of, with_sources
from envguard.fingerprint.startup import judge_customizers, judge_pth, startup_owners
from envguard.fingerprint.surroundings import STAMP_BUDGET, Wish, read_surroundings
from envguard.model import plain
from envguard.model.fingerprint import Fingerprint, Package, Torch
from envguard.model.identity import fingerprint_id
from envguard.project import Project
from envguard.state import digests as digest_store
from envguard.state.digests import TORCH_OF, Digests

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Request:
    """Which environment, and how far to look. Paths are as they are on the host."""

    start: str
    python: str | None = None
    root: str | None = None
    config: Config = field(default_factory=Config)
    deep: bool = False
    probe: bool = False
    own_pids: frozenset[int] = frozenset()
    in_process: bool = False
    """A stamp: processes are not looked for, since the one that counts is the one that asks."""
    witnesses: tuple[Fingerprint, ...] = ()
    """Fingerprints, of this machine or not, whose compile caches are looked for where they lay on this machine."""
    path0: tuple[str, ...] | None = None
    """The folders of the started code, first on its `sys.path`; where they are not known, the root of the project."""


def take(
    host: Host,
    request: Request,
    digests: Digests,
    progress: Progress | None = None,
    found: tuple[Environment, Distributions] | None = None,
) -> Fingerprint:
    """Fingerprints an environment from files; `found` is what is installed, where that was read just before. Raises
    `InputError` where there is no environment to examine."""
    env = found[0] if found is not None else locate(host, request.python, request.start)
    distributions = found[1] if found is not None else read_distributions(host, env)
    policy = Policy(request.config.watch, request.deep, closely(distributions))
    contents = read_contents(host, distributions.found, policy, digests, progress)
    return assemble(host, request, env, distributions, contents, digests)


def take_live(
    project: Project,
    python: str | None = None,
    *,
    deep: bool = False,
    probe: bool = False,
    own_pids: frozenset[int] = frozenset(),
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    witnesses: tuple[Fingerprint, ...] = (),
    found: tuple[Environment, Distributions] | None = None,
) -> Fingerprint:
    """Fingerprints an environment of this machine and keeps the digests in the project's state folder.

    A state folder that cannot be written costs the next snapshot its speed and is told through `warn`.
    """
    digests = digest_store.load(project.state)
    request = Request(
        start=str(project.start),
        python=python,
        root=str(project.root) if project.root is not None else None,
        config=project.config,
        deep=deep,
        probe=probe,
        own_pids=own_pids,
        witnesses=witnesses,
    )
    fingerprint = take(LiveHost(), request, digests, progress, found)
    keep_digests(project.state, digests, warn)
    return fingerprint


def keep_digests(state: Path, digests: Digests, warn: Callable[[str], None] | None) -> None:
    """Saves the store; a folder that cannot be written is a warning, never a failure to report."""
    try:
        digest_store.save(state, digests)
    except OSError as error:
        if warn is not None:
            warn(f"digests are not kept: {error.strerror or error}: {state}")


def assemble(
    host: Host,
    request: Request,
    env: Environment,
    distributions: Distributions,
    contents: AllContents,
    digests: Digests,
) -> Fingerprint:
    """Everything but the packages' contents is read here, and put together."""
    notes = Notes()
    notes.take(env.problems, env.unknown)
    notes.take(distributions.problems, distributions.unknown)
    notes.take(contents.problems, contents.unknown)
    sources = read_sources(
        host, env, distributions, digests.memo, notes, STAMP_BUDGET if request.in_process else None
    )
    packages, beaten = packages_of(distributions, contents.of, notes, sources, digests.memo)
    if not request.in_process:
        packages = _with_modules(host, env, distributions, contents, packages, digests.memo, notes)
    owners = startup_owners(host, env, distributions, contents.of, notes, digests.memo)
    hooks = read_hooks(host, env, distributions, contents.of, owners, digests.memo, notes)
    packages = tuple(msgspec.structs.replace(each, hooks=hooks.get(each.name, ())) for each in packages)
    judge_pth(env.pth, owners, notes)
    judge_customizers(host, env, owners, notes)
    closely_read = tuple(each for each in distributions.found if contents.of[each.directory].depth != "stat")
    judge_winners(host, closely_read, distributions.found, env.abi, digests, notes)
    bytecode = None
    if not request.in_process and host.here:  # a bundle holds no compiled files
        bytecode = judge_bytecode(host, env, closely_read, digests, request.deep, notes)
    first = request.path0 if request.path0 is not None else (request.root or request.start,)
    for folder in first:
        judge_start(host, folder, env, frozenset(each.name for each in packages), notes)
    torch_build = next((package.build for package in packages if package.name == "torch"), None)
    wish = Wish(
        request.start,
        request.root,
        request.config,
        request.deep,
        request.probe,
        request.in_process,
        request.own_pids,
        request.witnesses,
    )
    around = read_surroundings(host, wish, env, distributions, torch_build, digests.memo)
    notes.take(around.problems, around.unknown)
    seen = around.value
    packages = with_sources(packages, seen.code)
    remember_torch(digests.memo, torch_build, seen.torch)
    binaries = read_binaries(host, env, digests.memo, notes)
    python = msgspec.structs.replace(env.as_model(), binaries=binaries)
    return Fingerprint(
        id=fingerprint_id(python, packages, seen.torch, seen.driver, seen.gpus),
        envguard=__version__,
        taken_at=clock.iso(host.machine().now),
        python=python,
        sys_path=tuple(entry.path for entry in env.sys_path),
        packages=packages,
        shadowed=(*beaten, *distributions.shadowed),
        torch=seen.torch,
        cuda=cuda_of(seen.torch, packages),
        driver=seen.driver,
        gpus=seen.gpus,
        compile_cache=seen.compile_cache,
        code=seen.code,
        config=seen.config,
        data=seen.data,
        env=seen.env,
        system=seen.system,
        processes=seen.processes,
        runtime=seen.runtime,
        problems=tuple(dict.fromkeys(notes.problems)),
        unknown=tuple(dict.fromkeys(notes.unknown)),
        deep=request.deep,
        bytecode=bytecode,
    )


def _with_modules(
    host: Host,
    env: Environment,
    distributions: Distributions,
    contents: AllContents,
    packages: tuple[Package, ...],
    memo: Memo,
    notes: Notes,
) -> tuple[Package, ...]:
    """The packages with the modules that they bring; code of no package is a problem.

    What cannot be read was noted by whoever read the packages. Without it, nothing is called code of no package: that
    only tells metadata that is gone from a package that is.
    """
    try:
        modules = modules_of(host, distributions.found, contents.of, memo)
        strays = tuple(unowned_modules(host, env, modules))
    except OSError:
        return packages
    for module, path in strays:
        notes.problem("unowned", module, f"{path} is code that no installed package lists", path)
    brought = {(dist.name, dist.location): modules[dist.directory] for dist in reversed(distributions.found)}
    return tuple(
        msgspec.structs.replace(package, modules=brought.get((package.name, package.location), ()))
        for package in packages
    )


def remember_torch(memo: Memo, build: str | None, torch: Torch | None) -> None:
    """Keeps what was read of a torch build: a process that runs it may stamp it when its files are gone."""
    if build is not None and torch is not None:
        text = plain.encode(torch).decode()
        if memo.get(TORCH_OF + build) != text:
            memo[TORCH_OF + build] = text


def remembered_torch(memo: Memo, build: str | None) -> Torch | None:
    """What was read of a torch build while it lay on disk; None where nobody looked then."""
    text = memo.get(TORCH_OF + build) if build is not None else None
    try:
        return msgspec.json.decode(text, type=Torch) if text is not None else None
    except msgspec.MsgspecError:
        return None  # of another version of envguard


def build_remembered(
    memo: Memo, version: str, git_version: str | None, libraries: Mapping[str, str | None]
) -> str | None:
    """The one build whose torch had this version and these build-ids when it lay on disk; None where none did."""
    found = []
    for name in [name for name in memo if name.startswith(TORCH_OF)]:
        build = name.removeprefix(TORCH_OF)
        torch = remembered_torch(memo, build)
        if torch is None or (torch.version, torch.git_version) != (version, git_version):
            continue
        # Some libraries are linked without a build-id: they say nothing for and nothing against it.
        told = {file: build_id for file, build_id in libraries.items() if build_id is not None}
        if told and all(torch.libraries.get(file) == build_id for file, build_id in told.items()):
            found.append(build)
    return found[0] if len(found) == 1 else None
