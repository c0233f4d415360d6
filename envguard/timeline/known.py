"""What this machine's witnesses still know of the packages when a checkpoint without a stamp was saved."""

from __future__ import annotations

from collections.abc import Iterable

from envguard import clock
from envguard.acquire.project.watched_files import Edited
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.survey import Request, Survey, survey
from envguard.fingerprint.partial import Known
from envguard.fingerprint.places import Reference
from envguard.fingerprint.rules import is_torch_stack
from envguard.model.evidence import Evidence
from envguard.timeline.build import packages_of
from envguard.timeline.moments import Before, Untouched, changed_since
from envguard.timeline.restored import read_restored


def told_at(survey: Survey, saved_ns: int) -> tuple[Before, ...]:
    """What is known of the packages at the moment at which a checkpoint without a stamp was saved."""
    packages = packages_of(survey)
    found = changed_since(packages.swaps, saved_ns, read_restored(survey.journal), packages.removals)
    return (*found, *_edited_since(survey, saved_ns, {item.name for item in found}))


def _edited_since(survey: Survey, saved_ns: int, told: set[str]) -> Iterable[Before]:
    by_package: dict[str, list[Edited]] = {}
    for edit in survey.edits:
        by_package.setdefault(edit.package, []).append(edit)
    builds = {install.name: install for install in survey.installs}
    for name, edits in by_package.items():
        install = builds.get(name)
        if name in told or install is None or install.build is None or (install.end_ns or saved_ns) > saved_ns:
            continue
        if all(edit.mtime_ns > saved_ns for edit in edits):
            proofs = tuple(
                Evidence(witness="file", path=edit.path, field="mtime", value=clock.iso_ns(edit.mtime_ns))
                for edit in edits
            )
            yield Before(name, edited=Untouched(install.version, install.build, proofs))


def known_at(reference: Reference, request: Request) -> tuple[Known, ...]:
    """What this machine's witnesses still know of the packages when a checkpoint was saved."""
    if reference.checkpoint is None:
        return ()
    seen = survey(LiveHost(), request)
    found = known_before(told_at(seen, reference.checkpoint.saved_ns))
    for written in seen.written_by:
        if written.checkpoint == reference.checkpoint.path:
            # What a library wrote into the checkpoint is what was loaded; a swap's own witnesses know the build too.
            found.setdefault(written.package, Known(written.package, written.version))
    return tuple(found.values())


def known_before(before: Iterable[Before]) -> dict[str, Known]:
    """What is known of a checkpoint's time: what a restore brought back for it, else what the first swap replaced.

    An install of which no predecessor is known does not prove that there was none; for torch and its like that
    would be a grave thing to say, so it is left undetermined.
    """
    found: dict[str, Known] = {}
    for item in before:
        name, swap = item.name, item.swap
        if item.restored is not None:
            full = item.restored.full_version
            found[name] = Known(name, full, item.restored.build, absent=full is None)
            continue
        if item.mended is not None:
            found[name] = Known(name, item.mended.full_version)
            continue
        if item.edited is not None:
            found[name] = Known(name, item.edited.version, item.edited.build)
            continue
        if item.removal is not None and item.removal.previous is not None and item.doubt is None:
            gone = item.removal.previous
            found[name] = Known(name, gone.version.full, gone.first("build"))
            continue
        if swap is None:
            found[name] = Known(name, None, doubt=item.doubt or Known.doubt)
            continue
        best = swap.previous[0] if swap.previous else None
        if best is not None and best.best != "weak":
            found[name] = Known(name, best.version.full, best.first("build"))
        elif best is not None:
            doubt = f"it was replaced, and that {best.version.full} was there is only likely"
            found[name] = Known(name, None, doubt=doubt)
        else:
            found[name] = Known(name, None, absent=swap.was_there is None and not is_torch_stack(name))
    return found
