"""What the packages stand on: the environment's Python, the venv itself, and the sources of editable installs."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.model.event import Event
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import end_of, make_event
from envguard.timeline.findings.draft import Draft
from envguard.timeline.packages.records import Record


@dataclass(frozen=True)
class Foundation:
    """Events: swaps of Python, and editable installs that lost their source."""

    pythons: tuple[Event, ...]
    sources: tuple[Event, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        return (*self.pythons, *self.sources)


def read_foundation(survey: Survey, records: Sequence[Record]) -> Foundation:
    """Everything of it that changed, as far as records of this environment tell."""
    now_ns = int(survey.machine.now * clock.NS)
    return Foundation(
        tuple(_pythons(survey, records, now_ns)),
        tuple(_sources(survey.gone_sources, survey.installs, records, now_ns)),
    )


def _pythons(survey: Survey, records: Sequence[Record], now_ns: int) -> Iterable[Event]:
    """A swap of Python between two records, or between the last one and now; pyvenv.cfg has the moment of a venv."""
    known = [(record.time_ns, record.python, record.proof) for record in records if record.python is not None]
    config = f"{survey.env.prefix}/pyvenv.cfg"
    if survey.env.version is not None:
        says = Evidence(witness="venv", path=config, field="version_info", value=survey.env.version)
        known.append((now_ns, survey.env.version, says))
    for (since, old, proof), (until, new, later) in itertools.pairwise(known):
        if old == new:
            continue
        made = survey.made_ns if survey.made_ns is not None and since < survey.made_ns <= until else None
        start, end = (made, None) if made is not None else (since, until)
        anew = ": the environment was made anew" if made is not None else ""
        moment = Evidence(witness="venv", path=config, field="mtime", value=clock.iso_ns(made)) if made else None
        yield make_event(
            "package.replaced",
            "python",
            start,
            end,
            f"Python {old} → {new}{anew}",
            (proof, later, *((moment,) if moment is not None else ())),
            precision_s=0.01 if made is not None else max(1.0, (until - since) / clock.NS / 2),
            from_=old,
            to=new,
            open_end=made is None and until == now_ns,
        )


def _sources(
    gone: Iterable[tuple[str, str]], installs: Iterable[Install], records: Sequence[Record], now_ns: int
) -> Iterable[Event]:
    """Editable installs whose source is not there: it went after the install, and after the last code that was seen
    there."""
    by_name = {install.name: install for install in installs}
    for name, path in gone:
        install = by_name.get(name)
        seen = [
            record for record in records if any(_within(path, tree.path) for tree in record.fingerprint.code or ())
        ]
        since = max([*(record.time_ns for record in seen), (install.end_ns if install else None) or 0])
        proofs = (
            [Evidence(witness="dist-info", path=install.directory, field="editable", value=path)] if install else []
        )
        yield make_event(
            "file.deleted",
            name,
            since or None,
            now_ns,
            f"the source of {name}, an editable install, is gone: {path}",
            (*proofs, *(record.proof for record in seen[-1:])),
            confidence="strong",
            open_end=True,
        )


def _within(path: str, tree: str) -> bool:
    return f"{path}/".startswith(f"{tree.rstrip('/')}/")


def foundation_findings(
    found: Foundation, checkpoint: Checkpoint | None, saved: Event | None, since: float | None, ref: str | None
) -> list[Draft]:
    """Another Python first: every compiled package was put there anew for it, and no restore brings it back."""
    drafts = []
    events = (saved,) if saved is not None else ()
    for event in found.pythons:
        if since is not None and end_of(event) < since:
            continue
        title, says = "Python replaced", [f"{event.summary}."]
        if checkpoint is not None:
            title += f", not as {checkpoint.name} was made" if event.time != event.end else _gap(event, checkpoint)
        back = f"`uv venv --clear --python {event.from_}`"
        then = f", and then `envguard restore {shlex.quote(ref)}`" if ref is not None else ""
        says.append(
            "Compiled packages and compile caches are made for one Python: each of them is another build now."
        )
        says.append(f"No restore brings a Python back: {back}{then}.")
        caveat = "another patch release of one Python takes the same wheels, and alters results in few cases"
        drafts.append(Draft((-1,), title, " ".join(says), (*events, event), (caveat,)))
    for event in found.sources:
        if since is not None and end_of(event) < since:
            continue
        says = [f"{event.summary[0].upper()}{event.summary[1:]}. Whatever imports {event.subject} fails."]
        says.append("Put it back, or install it from where it lies now: `uv pip install --no-deps -e PATH`.")
        drafts.append(
            Draft((0, -0.5), f"{event.subject} has lost its source", " ".join(says), (*events, event),
                  ("when it went is known only within these bounds",))
        )  # fmt: skip
    return drafts


def _gap(event: Event, checkpoint: Checkpoint) -> str:
    apart = end_of(event) - checkpoint.saved_ns / clock.NS
    return f" {clock.span(apart)} {'after' if apart >= 0 else 'before'} {checkpoint.name}"
