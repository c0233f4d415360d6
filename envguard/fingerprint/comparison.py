"""Two references in, one answer out, whatever they are: fingerprints, locks, bundles, unstamped checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envguard.acquire import bundle, uv_cache
from envguard.acquire.host import LiveHost
from envguard.acquire.recorded import BundleHost
from envguard.acquire.survey import Request, survey
from envguard.config import Config, PolicyRule
from envguard.errors import InputError, UsageError
from envguard.fingerprint.diff import compare, differences, report
from envguard.fingerprint.minority import compare_many
from envguard.fingerprint.partial import Known, Partial, of_lock, of_witnesses
from envguard.fingerprint.reference import Reference
from envguard.fingerprint.rules import Change, check_policy, is_torch_stack
from envguard.model.drift import DiffReport, Side
from envguard.model.event import Event, TimelineReport
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint


@dataclass(frozen=True)
class Knowledge:
    """Where to turn for what a reference does not hold itself; each is asked only when it is needed."""

    builds: Callable[[], Mapping[str, str]]
    """Builds of wheels by sha256, for locks."""
    witnesses: Callable[[Reference], Sequence[Known]]
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
    if one is not None and two is not None:
        return compare(one, two, policy, a.label, b.label)
    # Two references that know only packages are both laid over the environment of now.
    over = one or two or knowledge.live()
    left = _partial(a, over, knowledge) if one is None else Partial(one, (), ())
    right = _partial(b, over, knowledge) if two is None else Partial(two, (), ())
    found = list(differences(left.fingerprint, right.fingerprint))
    changes = [item for item in found if isinstance(item, Change)]
    unknown = [item for item in found if isinstance(item, Unknown)]
    return report(
        (*left.changes, *right.changes, *changes),
        (*left.unknown, *right.unknown, *unknown),
        policy,
        Side(id=one.id if one else None, label=a.label),
        Side(id=two.id if two else None, label=b.label),
    )


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
    """The fingerprint of the environment that a bundle was collected from. Raises `BundleError` and `InputError`."""
    from envguard.fingerprint import snapshot
    from envguard.state.digests import Digests

    try:
        with open(path, "rb") as stream:
            record, manifest = bundle.load(path, stream)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    host = BundleHost(record, path)
    about = manifest.about
    request = snapshot.Request(
        start=about.get("start") or host.machine().cwd, python=about.get("python"), root=about.get("root")
    )
    return snapshot.take(host, request, Digests())


def builds_in_caches(config: Config) -> Mapping[str, str]:
    """Build identities by the sha256 of the wheel, as far as this machine's uv caches know both."""
    host = LiveHost()
    caches = uv_cache.read_caches(host, uv_cache.cache_directories(host, None, config))
    return {
        pointer.sha256: archive.build
        for archive in caches.archives
        for pointer in archive.pointers
        if pointer.sha256 is not None and archive.build is not None
    }


def known_at(reference: Reference, request: Request) -> tuple[Known, ...]:
    """What this machine's witnesses still know of the packages when a checkpoint was saved."""
    from envguard.timeline.build import Bounds, build_timeline

    if reference.checkpoint is None:
        return ()
    return known_before(build_timeline(survey(LiveHost(), request), Bounds(checkpoint=reference.checkpoint)))


def known_before(timeline: TimelineReport) -> tuple[Known, ...]:
    """What the events after a checkpoint tell of the packages at its time: the first change of each names the old.

    An install of which no predecessor is known does not prove that there was none; for torch and its like that
    would be a grave thing to say, so it is left undetermined.
    """
    found: dict[str, Known] = {}
    for event in sorted(timeline.events, key=_time):
        if event.kind in ("package.installed", "package.replaced", "package.removed"):
            new = event.kind == "package.installed" and not is_torch_stack(event.subject)
            found.setdefault(event.subject, Known(event.subject, event.from_, absent=new))
    return tuple(found.values())


def _time(event: Event) -> str:
    return event.time or event.end or ""
