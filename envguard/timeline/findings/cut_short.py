"""What is said of installs and removals that were cut short: how far they came, what was there, the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from envguard import clock
from envguard.acquire.packages.cut_short import CutShort
from envguard.model.event import Event, PreviousBuild
from envguard.timeline.events.happening import make_event
from envguard.timeline.findings.draft import Draft, importance
from envguard.timeline.findings.losses import Asked, reinstall
from envguard.timeline.findings.old_build import build_before
from envguard.timeline.packages.package_events import Packages
from envguard.timeline.packages.previous import Sighting

_TOUCHED = "the moment is the folder's last change: a chmod or chown of it leaves the same trace"
_UNMARKED = (
    "an installer that was told to write no INSTALLER (UV_NO_INSTALLER_METADATA) leaves the same once files are "
    "deleted or cut"
)
_LOOSE = "A first install that is cut short leaves this. Nothing vouches for what lies there."
_BY_HAND = "a folder that was copied there by hand looks the same, and so does what an uninstall leaves of one"
_EMPTIED = "a dist-info that was emptied by hand looks the same"


def to_tell(cut_short: Iterable[CutShort], sightings: Mapping[str, Sequence[Sighting]]) -> tuple[CutShort, ...]:
    """Without folders of code that have no date, or that a record knows as a package's: it was uninstalled since."""

    def known_since(name: str, moment_ns: int) -> bool:
        return any(item.time_ns is not None and item.time_ns >= moment_ns for item in sightings.get(name, ()))

    return tuple(
        cut
        for cut in cut_short
        if not cut.loose or (cut.began_ns is not None and not known_since(cut.package, cut.began_ns))
    )


def own_events(cut_short: Iterable[CutShort]) -> Iterable[Event]:
    """Of packages that are whole again what had been put aside, and installs that had only begun; of the others the
    events of packages tell."""
    for cut in cut_short:
        begun = cut.loose or (cut.hollow and cut.going is None)
        if cut.began_ns is None or (cut.mended is None and not begun):
            continue
        what = "an install that was cut short" if begun else "taken out, cut short, and installed again since"
        what = "copied here, by an install that was cut short or by hand" if cut.loose else what
        yield make_event(
            "package.installed" if begun else "package.removed",
            cut.package,
            cut.began_ns,
            None,
            f"{_label(cut.package, cut.coming if begun else cut.going)}: {what}: {cut.says}",
            cut.evidence,
            best="weak" if cut.doubt is not None or cut.loose else "strong",
            from_=cut.going,
            to=cut.coming if begun else None,
        )


def cut_short_findings(
    cut_short: Sequence[CutShort], packages: Packages, events: Sequence[Event], asked: Asked
) -> list[Draft]:
    """One finding for each that left something behind, those that were mended since after all others."""
    drafts = []
    for cut in cut_short:
        moment = cut.last_ns if cut.last_ns is not None and not cut.loose else cut.began_ns
        if cut.loose and asked.since is None:
            continue  # of what lies there from of old, `envguard verify` tells
        if asked.since is not None and moment is not None and moment / clock.NS < asked.since - 0.001:
            continue
        event, before = _known(cut, packages, events)
        drafts.append(_finding(cut, moment, event, before, asked))
    return drafts


def _known(
    cut: CutShort, packages: Packages, events: Sequence[Event]
) -> tuple[tuple[Event, ...], tuple[PreviousBuild, ...]]:
    """The event that is this one's, and what was there before."""
    for removal in packages.removals:
        if removal.cut is cut:
            return (removal.event,), (removal.previous.as_model(),) if removal.previous is not None else ()
    for swap in packages.swaps if cut.mended is None else ():
        if swap.install.cut_short is not None and swap.install.name == cut.package:
            return (swap.event,), swap.change.previous
    own = [event for event in events if event.subject == cut.package and cut.evidence[:1] == event.evidence[:1]]
    return tuple(own[:1]), ()


def _finding(
    cut: CutShort,
    moment: int | None,
    event: tuple[Event, ...],
    before: tuple[PreviousBuild, ...],
    asked: Asked,
) -> Draft:
    title = f"{cut.package} was put there without a dist-info" if cut.loose else f"{_what(cut)} was cut short"
    if asked.checkpoint is not None and moment is not None and cut.doubt is None:
        title += f" {clock.span((moment - asked.checkpoint.saved_ns) / clock.NS)} after {asked.checkpoint.name}"
    says = [f"{cut.says[0].upper()}{cut.says[1:]}."]
    says += [_times(cut)] if cut.began_ns is not None else []
    if cut.mended is not None:
        says.append(f"Since then {_label(cut.package, cut.mended)} was installed whole.")
    else:
        state = "removed" if cut.hollow and cut.going is not None else "installed"
        half = f"{cut.package} is half {state}, and nothing vouches for what lies there."
        says.append(_LOOSE if cut.loose else half)
        says += build_before(before, asked.ref)
        says.append(_way_on(cut, asked))
    says += _leftovers(cut)
    weight = (4, 0.0) if cut.mended is not None else (0, importance(cut.package) + (0.6 if cut.loose else -0.1))
    events = event if asked.saved is None else (asked.saved, *event)
    return Draft(weight, title, " ".join(filter(None, says)), events, _caveats(cut))


def _label(name: str, version: str | None) -> str:
    return f"{name} {version or ''}".strip()


def _what(cut: CutShort) -> str:
    if cut.mended is not None:
        return f"an install or removal of {cut.package}"
    if cut.coming is not None:
        return f"an install of {_label(cut.package, cut.coming)}"
    if cut.hollow and cut.going is not None:
        return f"the removal of {_label(cut.package, cut.going)}"
    wrote = cut.began_ns is not None and cut.last_ns is not None and cut.last_ns > cut.began_ns
    return f"an install{'' if wrote else ' or removal'} of {cut.package}"


def _times(cut: CutShort) -> str:
    assert cut.began_ns is not None
    began = clock.iso_ns(cut.began_ns)
    if cut.last_ns is None or cut.last_ns < cut.began_ns + clock.NS:
        return f"The last trace of it is of {clock.iso_ns(cut.last_ns or cut.began_ns)}."
    return f"It was at work at {began}, and the last trace of it is of {clock.iso_ns(cut.last_ns)}."


def _way_on(cut: CutShort, asked: Asked) -> str:
    """The install again, for whoever wants the version that was being put there."""
    if cut.coming is None:
        return ""
    again = reinstall(cut.package, cut.coming, "pip" if cut.aside is not None else None, asked.prefix)
    return f"To have {cut.coming} whole: {again}."


def _leftovers(cut: CutShort) -> list[str]:
    if cut.aside is None:
        return []
    when = "" if cut.mended is not None else "once that is done, "
    return [f"What pip left stays until it is removed: {when}`{cut.aside.removal}`."]


def _caveats(cut: CutShort) -> tuple[str, ...]:
    if cut.loose:
        return (_BY_HAND,)
    told = _TOUCHED if cut.aside is not None else _EMPTIED if cut.hollow else _UNMARKED
    return (cut.doubt, told) if cut.doubt is not None else (told,)
