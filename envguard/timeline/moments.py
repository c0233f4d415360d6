"""What is to be said of each package at an earlier moment: by what went or came since, and by envguard's restores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envguard import clock
from envguard.model.evidence import Evidence
from envguard.timeline.packages.package_events import Swap
from envguard.timeline.packages.previous import Previous
from envguard.timeline.packages.removals import Removal
from envguard.timeline.packages.restored import Restored

SAME_MOMENT_NS = clock.NS // 1000
"""A saving time goes through ISO text to the microsecond."""


@dataclass(frozen=True)
class Untouched:
    """A package whose installed files were edited after a moment: until then they were as its install left them, as
    far as their times tell."""

    version: str | None
    build: str
    proofs: tuple[Evidence, ...]


@dataclass(frozen=True)
class Before:
    """What is to be said of one package at a moment: a restore's word; a swap, a removal or an edit after it; the
    version that a restore mended (`mended`: it was there, in which build nobody wrote down); or only a doubt."""

    name: str
    restored: Restored | None = None
    swap: Swap | None = None
    mended: Restored | None = None
    removal: Removal | None = None
    edited: Untouched | None = None
    doubt: str | None = None
    stays: bool = False
    """Of a doubt: what lies there is no reason to undo anything."""


def changed_since(
    swaps: Iterable[Swap], saved_ns: int, restored: Iterable[Restored], removals: Iterable[Removal] = ()
) -> tuple[Before, ...]:
    """What tells of each package at `saved_ns`: of several swaps the first one after it counts."""
    told = tuple(restored)
    found: dict[str, Before] = {}
    for item in reversed(told):  # the last restore to that very moment is what is there, or was until a later swap
        if item.moment_ns is not None and abs(item.moment_ns - saved_ns) <= SAME_MOMENT_NS:
            found.setdefault(item.name, Before(item.name, restored=item))
    for swap in sorted(swaps, key=lambda swap: swap.group.end_ns):
        name = swap.event.subject
        # By its own end: a restore keeps the folders of what it replaces, so that its run seems to begin with the old
        # install, and reaches to whatever was installed beside that.
        end = swap.install.end_ns if swap.install.end_ns is not None else swap.group.end_ns
        if end <= saved_ns or name in found:
            continue
        before = _of_swap(swap, saved_ns, told)
        if before is not None:
            found[name] = before
    for removal in removals:
        name = removal.event.subject
        if removal.previous is not None and name not in found and removal.until_ns > saved_ns:
            found[name] = _of_removal(removal, removal.previous, saved_ns)
    return tuple(found.values())


def _of_removal(removal: Removal, previous: Previous, saved_ns: int) -> Before:
    """What is gone now was there then, unless nobody knows whether it went before that moment or after it, or came
    after it."""
    name, version = removal.event.subject, previous.version.full
    if removal.since_ns <= saved_ns and not removal.dated:
        doubt = f"{version} was here before and is not any more, and whether it went before that moment is not known"
        return Before(name, removal=removal, doubt=doubt)
    if previous.came_after(saved_ns):
        doubt = f"{version} was here later and is not any more, and no witness has it before that moment"
        return Before(name, removal=removal, doubt=doubt)
    return Before(name, removal=removal)


def _of_swap(swap: Swap, saved_ns: int, told: tuple[Restored, ...]) -> Before | None:
    """None where the package was brought back to a moment that is as good as this one."""
    own = swap.own
    if own is None and swap.previous and swap.previous[0].came_after(saved_ns):
        between = swap.previous[0].version.full
        doubt = (
            f"{between}, which was replaced later, is seen by no witness before that moment: what was there then is "
            "not known"
        )
        return Before(swap.event.subject, doubt=doubt)
    if own is None:
        return Before(swap.event.subject, swap=swap)
    if own.was_since_ns is not None and own.was_since_ns <= saved_ns:
        # What the restore took away had been there at that moment already. Where that was the same version, no
        # predecessor is found for the install, which must not be read as "there was none".
        if own.was is not None and own.was == own.full_version and not _knows(swap, own.was):
            return Before(own.name, mended=own)
        return Before(own.name, swap=swap)
    came = max((item.was_since_ns or 0 for item in told if _took_away(item, own)), default=0)
    if own.moment_ns is not None and saved_ns <= own.moment_ns and came <= saved_ns:
        return None
    late = "came after this moment" if own.was_since_ns is not None else "had been there since nobody knows when"
    done = f"envguard restored {own.full_version} at {clock.local(clock.iso_ns(own.done_ns))}"
    return Before(own.name, doubt=f"{done}, and what that replaced {late}")


def _knows(swap: Swap, version: str) -> bool:
    """Whether a witness names the build of that version that the swap replaced."""
    return bool(swap.previous) and swap.previous[0].version.full == version


def _took_away(item: Restored, own: Restored) -> bool:
    """Whether a restore removed the very version that `own` put back: it then knows when that had come."""
    return item.name == own.name and item.was is not None and item.was == own.full_version
