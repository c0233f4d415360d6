"""Every file of what is installed, read before a plan is made: "already of that build" must be no guess by size."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from envguard.acquire.packages.contents import Policy, read_contents
from envguard.acquire.packages.distributions import Distributions, read_distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.fingerprint.packages import package_of, packages_of
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Package
from envguard.restore.plan import Plan
from envguard.restore.progress import Progress
from envguard.restore.wanted import Target
from envguard.state import digests as digest_store
from envguard.state.digests import Digests


def look_closely(
    host: Host, env: Environment, state: Path, live: Fingerprint, names: Collection[str], progress: Progress
) -> Fingerprint:
    """`live` with the packages `names` as they are by content, whatever size and time say.

    What was read is kept with the state, so that looking again costs a stat a file.
    """
    dists = read_distributions(host, env)
    here = {package.name: package for package in live.packages if package.name in names}
    duplicates = dists.duplicates()  # the fingerprint itself had to hash those, to tell which one is true
    picked = [dist for dist in dists.found if dist.name in here and dist.name not in duplicates]
    digests = digest_store.load(state)
    progress.begin("read installed", sum(here[dist.name].bytes or 0 for dist in picked))
    contents = read_contents(host, picked, Policy(deep=True), digests, progress.advance)
    progress.end()
    with contextlib.suppress(OSError):  # costs the next look its speed, and nothing else
        digest_store.save(state, digests)
    for dist in picked:
        before, seen = here[dist.name], package_of(dist, contents.of[dist.directory])
        kept = {
            "commit": before.commit,
            "dirty": before.dirty,
            "source": before.source,
            "overwritten": before.overwritten,
        }
        here[dist.name] = msgspec.structs.replace(seen, **kept)
    unknown = tuple(dict.fromkeys((*live.unknown, *contents.unknown)))
    packages = tuple(here.get(package.name, package) for package in live.packages)
    return msgspec.structs.replace(live, packages=packages, unknown=unknown)


def packages_now(
    host: Host, env: Environment, names: Collection[str], digests: Digests
) -> tuple[tuple[Package, ...], tuple[Unknown, ...]]:
    """What is installed at this moment, `names` with every file read; and what could not be read. What was read
    before costs a stat."""
    dists = read_distributions(host, env)
    contents = read_contents(host, [dist for dist in dists.found if dist.name in names], Policy(deep=True), digests)
    packages, _ = packages_of(dists, contents.of, Notes())
    return packages, contents.unknown


def unseen(dists: Distributions, target: Target, plan: Plan) -> Iterator[Unknown]:
    """What stands against a plan as a whole: folders of packages that could not be listed, so that a package that is
    there looks as if it were not; and a goal that names nothing to hold the environment against."""
    yield from (item for item in dists.unknown if item.code == "site")
    if target.kind == "witnesses" and not (plan.steps or plan.same or plan.missing or plan.unknown):
        yield Unknown(f"packages of {target.reference}", "it has no stamp, and no witness names what to bring back")
