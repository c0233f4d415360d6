"""Two references in, one answer out, whatever they are: fingerprints, locks, bundles, unstamped checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envguard.acquire.seam.host import LiveHost
from envguard.config import Config, PolicyRule
from envguard.errors import UsageError
from envguard.fingerprint.diff import differences, report, side_of
from envguard.fingerprint.minority import compare_many
from envguard.fingerprint.partial import Partial, Recalled, of_lock, of_witnesses
from envguard.fingerprint.places import Reference
from envguard.fingerprint.rules import Change, check_policy
from envguard.model.drift import DiffReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint


@dataclass(frozen=True)
class Knowledge:
    """Where to turn for what a reference does not hold itself; each is asked only when it is needed."""

    builds: Callable[[], Mapping[str, str]]
    """Builds of wheels by sha256, for locks."""
    witnesses: Callable[[Reference], Recalled]
    """What is still known of the environment of an unstamped checkpoint."""
    live: Callable[[], Fingerprint]


def compare_references(
    references: Sequence[Reference], knowledge: Knowledge, policy: Sequence[PolicyRule] = ()
) -> DiffReport:
    """Drift from the first to the second; with more, the minority among them.

    Raises `InputError` for a bundle that cannot be read, `UsageError` for a bad policy.
    """
    check_policy(policy)
    if len(references) > 2:
        return _many(references, policy)
    a, b = references
    one, two = _whole(a), _whole(b)
    # Two references that know only packages are both laid over the environment of now.
    over = one or two or knowledge.live()
    left = _partial(a, over, knowledge) if one is None else Partial(one, (), ())
    right = _partial(b, over, knowledge) if two is None else Partial(two, (), ())
    found = list(differences(left.fingerprint, right.fingerprint))
    changes = [item for item in found if isinstance(item, Change)]
    unknown = [item for item in found if isinstance(item, Unknown)]
    return report(
        (*left.changes, *right.changes, *changes, *_settings(a, b)),
        (*a.undecided, *b.undecided, *left.unknown, *right.unknown, *unknown),
        policy,
        side_of(one, a.label),
        side_of(two, b.label),
    )


def _settings(a: Reference, b: Reference) -> Iterator[Change]:
    """Hyper-parameters of the runs of two checkpoints, where both wrote them down."""
    if a.settings is not None and b.settings is not None:
        for name in sorted(a.settings.keys() | b.settings.keys()):
            if a.settings.get(name) != b.settings.get(name):
                yield Change("config", f"hparams.{name}", "changed", a.settings.get(name), b.settings.get(name))


def _many(references: Sequence[Reference], policy: Sequence[PolicyRule]) -> DiffReport:
    named = []
    for reference in references:
        fingerprint = _whole(reference)
        if fingerprint is None:
            why = reference.no_stamp or "it is no fingerprint"
            raise UsageError(f"{reference.label} cannot be one of many: {why}", "compare it with one other")
        named.append((reference.label, fingerprint))
    return compare_many(named, policy)


def _whole(reference: Reference) -> Fingerprint | None:
    if reference.kind == "bundle" and reference.path is not None:
        return fingerprint_of_bundle(reference.path)
    return reference.fingerprint


def _partial(reference: Reference, over: Fingerprint, knowledge: Knowledge) -> Partial:
    if reference.lock is not None:
        needs_hashes = any(item.sha256 for item in reference.lock.packages)
        return of_lock(reference.lock, over, knowledge.builds() if needs_hashes else {})
    return of_witnesses(knowledge.witnesses(reference), over, reference.label, reference.no_stamp)


def fingerprint_of_bundle(path: str) -> Fingerprint:
    """The fingerprint of the environment that a bundle was gathered from. Raises `BundleError` and `InputError`."""
    from envguard.acquire.gathering import open_bundle
    from envguard.fingerprint.bundled import fingerprint_bundle

    return fingerprint_bundle(open_bundle(path))


def builds_in_caches(config: Config) -> Mapping[str, str]:
    """Build identities by the sha256 of the wheel, as far as this machine's uv caches know both."""
    from envguard.acquire.packages import uv_cache
    from envguard.acquire.packages.uv_cache_places import cache_directories

    host = LiveHost()
    caches = uv_cache.read_caches(host, cache_directories(host, None, config))
    return {
        pointer.sha256: archive.build
        for archive in caches.archives
        for pointer in archive.pointers
        if pointer.sha256 is not None and archive.build is not None
    }
