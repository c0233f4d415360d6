"""What is said of packages whose files are gone or empty: how many, since when, what that breaks, the way back."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.lost_files import Lost
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.fingerprint.units import some_of
from envguard.model.event import Event
from envguard.timeline.events.happening import end_of, start_of
from envguard.timeline.events.losses import Loss, first, lead_nowhere, of_all
from envguard.timeline.findings.draft import Draft, importance
from envguard.timeline.packages.previous import Sighting

MOST = 8
"""Packages that have a finding of their own: a cleaner that went through site-packages took from all of them."""
_MODULES = (".py", ".so")
_SLACK_S = 0.001
"""An event's time is told to the microsecond, a checkpoint's is the file system's: one of both would seem older."""


@dataclass(frozen=True)
class Asked:
    """What the answer is about. `ref` names the checkpoint on a command line; `sound` are packages whose build is in
    its stamp."""

    checkpoint: Checkpoint | None
    saved: Event | None
    since: float | None
    ref: str | None
    sound: frozenset[str]
    prefix: str
    settled: float | None = None
    """From when on what is gone went after the checkpoint (s since the epoch): its stamp has what went before."""


def sound_in(
    sightings: Mapping[str, Sequence[Sighting]], losses: Iterable[Loss], stamp: str | None
) -> frozenset[str]:
    """Packages that the stamp holds in the very build that lost files."""
    builds = {loss.install.name: loss.install.build for loss in losses}
    return frozenset(
        name
        for name, build in builds.items()
        if build is not None
        and any(
            item.source == "stamp" and item.evidence[0].path == stamp and (item.contents or item.build) == build
            for item in sightings.get(name, ())
        )
    )


def loss_findings(losses: Sequence[Loss], events: Sequence[Event], asked: Asked) -> list[Draft]:
    """One finding a package, the rest of very many in one."""
    weighed = {event.id: event for event in events}
    since = max(asked.since or 0.0, asked.settled or 0.0)
    told = [loss for loss in losses if end_of(loss.event) >= since - _SLACK_S]
    told.sort(key=lambda loss: (importance(loss.lost.package), loss.lost.package))
    drafts = [_finding(loss, weighed.get(loss.event.id, loss.event), asked) for loss in told[:MOST]]
    rest = told[MOST:]
    if rest:
        names = list(dict.fromkeys(loss.lost.package for loss in rest))
        title = f"{len(names)} more package{'s' if len(names) != 1 else ''} lost files"
        says = f"Files that their RECORD lists are gone or empty: {some_of(names, 12)}."
        caveat = "`envguard verify` names every file"
        drafts.append(Draft((0, 99.0), title, says, tuple(loss.event for loss in rest), (caveat,)))
    return drafts


def _finding(loss: Loss, event: Event, asked: Asked) -> Draft:
    lost = loss.lost
    emptied = event.kind == "file.patched"
    paths = [file.path for file in lost.emptied] if emptied else [*lost.gone, *lost.dangling]
    did = "emptied" if emptied else "deleted" if lost.gone else lead_nowhere(paths, lost)
    what = f"{of_all(paths, lost)} {did}"
    listed = some_of(paths if emptied else first(lost, paths))
    state = "has no byte left" if emptied else "is not there"
    states = "have no byte left" if emptied else "are not there"
    says = [f"RECORD of {lost.package} {event.from_ or loss.install.version or ''}".rstrip()]
    one = len(paths) == 1 or (not emptied and first(lost, paths)[1:] == [])
    says[0] += f" lists {listed}, which {state if one else states}."
    says.append(_dated(loss, event))
    says.append(_effect(lost, paths, emptied))
    says.append(_advice(loss, asked))
    events = (event,) if asked.saved is None else (asked.saved, event)
    return Draft(
        (0, importance(lost.package) + 0.4),
        f"{what}{_when(event, loss, asked)}",
        " ".join(filter(None, says)),
        events,
        _caveats(loss),
    )


def _when(event: Event, loss: Loss, asked: Asked) -> str:
    if asked.checkpoint is None:
        return ""
    name, apart = asked.checkpoint.name, start_of(event) - asked.checkpoint.saved_ns / clock.NS
    if apart < -_SLACK_S:
        both = end_of(event) >= asked.checkpoint.saved_ns / clock.NS - _SLACK_S
        if not loss.dated:
            return f", before or after {name}" if both else f" before {name}"
        return f", some before and some after {name}" if both else f" before {name}"
    return f" {clock.span(max(0.0, apart))} after {name}" if loss.dated else f" after {name}"


def _dated(loss: Loss, event: Event) -> str:
    if not loss.dated:
        return f"That was between {event.time} and {event.end}."
    if event.kind == "file.patched":
        return ""
    folders = [folder.path for folder in loss.lost.folders]
    return f"{some_of(folders)} last changed then, and nothing else is known to have changed it."


def _effect(lost: Lost, paths: Sequence[str], emptied: bool) -> str:
    """Whether it still imports, by what an import reads first."""
    own = posixpath.basename(lost.directory)
    payload = [path for path in paths if not path.startswith(f"{own}/")]
    if not payload:
        return "`import` still works; what asks for the version or the metadata of the package fails or gets nothing."
    tops = _modules(lost, payload, emptied)
    if tops:
        return _of_modules(lost, payload, tops, emptied)
    code = [path for path in payload if path.endswith(_MODULES) or ".so." in posixpath.basename(path)]
    top = next((path.partition("/")[0] for path in payload if "/" in path), lost.package)
    if top in lost.gone_folders or not top.isidentifier():
        return f"What reads {some_of(payload, 2)} fails."
    if code:
        return f"`import {top}` still finds its beginning, and fails where it needs {some_of(code, 2)}."
    return f"`import {top}` still works; what reads {some_of(payload, 2)} fails."


def _of_modules(lost: Lost, paths: Sequence[str], tops: Sequence[str], emptied: bool) -> str:
    names = " and ".join(f"`import {name}`" for name in tops[:2])
    one = len(tops) == 1
    if emptied and not any(path.endswith(".so") for path in paths):
        return f"{names} succeeds and finds nothing in it." if one else f"{names} succeed and find nothing in them."
    hollow = [top for top in tops if f"{top}/__init__.py" in paths and top not in lost.gone_folders]
    if hollow == tops:
        return f"{names} {'finds' if one else 'find'} an empty namespace: `__init__.py` is gone."
    return f"{names} {'fails' if one else 'fail'} now."


def _modules(lost: Lost, paths: Sequence[str], emptied: bool) -> list[str]:
    """Modules whose import reads one of these files first, by their dotted names."""
    found: dict[str, None] = {}
    for folder in () if emptied else lost.gone_folders:
        # A folder of libraries or data (`numpy.libs`, `share`) is imported by nobody.
        code = any(path.startswith(f"{folder}/") and path.endswith(".py") for path in lost.listed)
        if code and all(part.isidentifier() for part in folder.split("/")):
            found.setdefault(folder.replace("/", "."))
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name == "__init__.py" and "/" not in folder and folder not in lost.gone_folders:
            found.setdefault(folder)
        elif not folder and name.endswith(_MODULES):
            found.setdefault(name.partition(".")[0])
    return list(found)


def _advice(loss: Loss, asked: Asked) -> str:
    name = loss.lost.package
    if asked.ref is not None and name in asked.sound:
        return f"The way back: `envguard restore {shlex.quote(asked.ref)} --only {shlex.quote(name)}`."
    return f"The way back: {reinstall(name, loss.install.version, loss.install.installer, asked.prefix)}."


def reinstall(name: str, version: str | None, installer: str | None, prefix: str) -> str:
    """The command that installs a version again, by the installer that the environment has it from."""
    wanted = shlex.quote(f"{name}=={version}")
    if installer == "pip":
        python = shlex.quote(f"{prefix}/bin/python")
        return f"`{python} -m pip install --force-reinstall --no-deps {wanted}`"
    return f"`uv pip install --python {shlex.quote(prefix)} --reinstall --no-deps {wanted}`"


def _caveats(loss: Loss) -> tuple[str, ...]:
    found = [loss.doubt] if loss.doubt is not None else []
    if loss.event.kind == "file.patched" and any(file.links > 1 for file in loss.lost.emptied):
        name = shlex.quote(loss.lost.package)
        found.append(
            f"hard-linked: the uv cache has it empty too, and a reinstall needs `uv cache clean {name}` first"
        )
    if loss.install.doubt is not None:
        found.append(loss.install.doubt)
    if not found:
        found.append(
            f"an edit by hand looks the same: `envguard verify {shlex.quote(loss.lost.package)}` names every file"
            if loss.event.kind == "file.patched"
            else "a folder keeps only the time of its last change: if something else was taken out of it later, they "
            "went before that"
        )
    return tuple(found)
