"""`verify` as one call: this machine's environment, looked at and judged."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Callable, Iterator, Mapping

import msgspec

from envguard.acquire.packages.contents import Policy
from envguard.acquire.packages.distributions import Distributions, read_distributions
from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.packages.metadata import canonical
from envguard.acquire.packages.unowned import unowned_folders
from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.packages.verification import observe
from envguard.acquire.seam.host import Host, LiveHost
from envguard.acquire.section import Notes, reason
from envguard.config import Config
from envguard.errors import UsageError
from envguard.fingerprint.packages import closely, judge_asides
from envguard.fingerprint.snapshot import keep_digests
from envguard.fingerprint.verify import judge, with_unseen
from envguard.model.drift import VerifyReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Problem
from envguard.project import Project
from envguard.state.digests import Digests, load


def verify_live(
    project: Project,
    python: str | None,
    packages: tuple[str, ...],
    deep: bool,
    stamps: Mapping[str, Fingerprint],
    progress: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Verifies an environment of this machine; what was hashed is kept in the state folder.

    Raises `UsageError` for a package that is not installed, with the nearest names.
    """
    digests = load(project.state)
    report = verify_on(
        LiveHost(), str(project.start), python, project.config, packages, deep, stamps, digests, progress
    )
    keep_digests(project.state, digests, warn)
    return report


def verify_on(
    host: Host,
    start: str,
    python: str | None,
    config: Config,
    packages: tuple[str, ...],
    deep: bool,
    stamps: Mapping[str, Fingerprint],
    digests: Digests,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """The same on any host. Raises `UsageError` for a package that is not installed, with the nearest names."""
    env = locate(host, python, start)
    distributions = read_distributions(host, env)
    names = frozenset(canonical(name) for name in packages)
    _check_names(names, distributions)
    caches = read_caches(host, cache_directories(host, env, config))
    policy = Policy(config.watch, deep, closely(distributions))
    # A wheel for another Python is another build of the same version, and no witness against this one.
    same = (env.implementation, env.abi, env.platform)
    alike = {
        label: stamp
        for label, stamp in stamps.items()
        if (stamp.python.implementation, stamp.python.abi, stamp.python.platform) == same
    }
    seen = observe(host, distributions, names, caches, policy, digests, progress)
    report = judge(
        seen, alike, [each for each in _half_installed(distributions) if not names or each.subject in names]
    )
    report = msgspec.structs.replace(report, prefix=env.prefix, kind=env.kind)
    return with_unseen(report, _unowned(host, env, distributions) if not names else ())


def _half_installed(distributions: Distributions) -> tuple[Problem, ...]:
    notes = Notes()
    judge_asides(distributions, notes)
    return tuple(each for each in notes.problems if each.kind == "interrupted-install")


def _unowned(host: Host, env: Environment, distributions: Distributions) -> Iterator[Unknown]:
    try:
        for path in unowned_folders(host, env, distributions):
            says = f"no installed package lists {path}: an install that was cut short, or files put there by hand"
            yield Unknown(posixpath.basename(path), says)
    except OSError as error:
        yield Unknown.refused("the environment", f"{error.filename}: {reason(error)}")


def _check_names(names: frozenset[str], distributions: Distributions) -> None:
    installed = {dist.name for dist in distributions.found} | {aside.name for aside in distributions.aside}
    for name in sorted(names - installed):
        close = difflib.get_close_matches(name, installed, n=3)
        hint = f"did you mean `{'`, `'.join(close)}`?" if close else "`envguard snapshot -v` lists what is installed"
        raise UsageError(f"{name} is not installed", hint)
