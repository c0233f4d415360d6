"""The environment as it is now, in one value."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from envguard import __version__, clock
from envguard.acquire.contents import AllContents, Contents, Policy, read_contents
from envguard.acquire.distributions import Distribution, Distributions, read_distributions
from envguard.acquire.environment import Environment, locate
from envguard.acquire.host import Host, LiveHost
from envguard.acquire.live_processes import read_processes
from envguard.acquire.section import Notes
from envguard.acquire.torch_build import read_torch
from envguard.config import Config
from envguard.fingerprint.identity import fingerprint_id
from envguard.model.fingerprint import Cuda, Fingerprint, Package, Torch
from envguard.project import Project
from envguard.state import digests as digest_store
from envguard.state.digests import Digests

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


def take(host: Host, request: Request, digests: Digests, progress: Progress | None = None) -> Fingerprint:
    """Fingerprints an environment from files. Raises `InputError` where there is none to examine."""
    env = locate(host, request.python, request.start)
    distributions = read_distributions(host, env)
    policy = Policy(request.config.watch, request.deep)
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
    )
    fingerprint = take(LiveHost(), request, digests, progress)
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
    packages = packages_of(distributions, contents.of, notes)
    torch = read_torch(host, env, distributions)
    notes.take(torch.problems, torch.unknown)
    processes = None
    if not request.in_process:
        living = read_processes(host, env, request.own_pids)
        notes.take(living.problems, living.unknown)
        processes = tuple(process.as_model() for process in living.value)
    python = env.as_model()
    return Fingerprint(
        id=fingerprint_id(python, packages, torch.value, None, None),
        envguard=__version__,
        taken_at=clock.iso(host.machine().now),
        python=python,
        sys_path=tuple(entry.path for entry in env.sys_path),
        packages=packages,
        shadowed=distributions.shadowed,
        torch=torch.value,
        cuda=cuda_of(torch.value, packages),
        driver=None,
        gpus=None,
        compile_cache=None,
        code=None,
        config=None,
        data=None,
        env=None,
        system=None,
        processes=processes,
        problems=tuple(dict.fromkeys(notes.problems)),
        unknown=tuple(dict.fromkeys(notes.unknown)),
        deep=request.deep,
    )


def packages_of(distributions: Distributions, contents: dict[str, Contents], notes: Notes) -> tuple[Package, ...]:
    """One package a name, the one that import picks, by name; what is wrong with it goes to `notes`."""
    picked: dict[str, Distribution] = {}
    for dist in distributions.found:
        picked.setdefault(dist.name, dist)
    found = []
    for _, dist in sorted(picked.items()):
        content = contents.get(dist.directory, Contents(None))
        _judge(dist, content, notes)
        found.append(package_of(dist, content))
    return tuple(found)


def package_of(dist: Distribution, content: Contents) -> Package:
    """A distribution with what its files are."""
    url = dist.direct_url
    return Package(
        name=dist.name,
        version=dist.version,
        build=content.build,
        installer=dist.installer,
        location=dist.location,
        editable=dist.editable,
        direct_url=url.url if url is not None else None,
        commit=url.commit if url is not None else None,
        requires=dist.requires,
        requires_python=dist.requires_python,
        record=content.identity if content.departs else None,
        departs=tuple(sorted(content.departs)),
        files=content.files,
        bytes=content.bytes,
        depth=content.depth,
        installed_at=clock.iso_ns(content.installed_ns) if content.installed_ns else None,
    )


def _judge(dist: Distribution, content: Contents, notes: Notes) -> None:
    missing = sorted(path for path, got in content.departs.items() if got == "missing")
    edited = sorted(path for path, got in content.departs.items() if got != "missing")
    if missing:
        says = f"installed, but {len(missing)} of its {content.files} files are missing: {_some(missing)}"
        notes.problem("files-missing", dist.name, says, posixpath.join(dist.location, missing[0]))
    if edited:
        says = f"{len(edited)} of its files are not what was installed: {_some(edited)}"
        notes.problem("files-modified", dist.name, says, posixpath.join(dist.location, edited[0]))


def _some(paths: list[str], most: int = 3) -> str:
    rest = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + rest


def cuda_of(torch: Torch | None, packages: tuple[Package, ...]) -> Cuda | None:
    """What torch was built for, and the nvidia-* packages that it runs on; None where there is neither."""
    runtime = {each.name: each.version or "" for each in packages if each.name.startswith("nvidia-")}
    runtime.pop("nvidia-ml-py", None)
    if (torch is None or torch.cuda is None) and not runtime:
        return None
    return Cuda(build=torch.cuda if torch is not None else None, packages=runtime)
