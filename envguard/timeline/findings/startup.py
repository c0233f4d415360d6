"""Files of no package that have a say in every start of this Python: when they came, and that they did."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from envguard import clock
from envguard.acquire.packages.installs import SLACK_NS
from envguard.acquire.packages.startup_files import StartupFile
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.fingerprint.rules import STARTUP_CODE
from envguard.fingerprint.units import some_of
from envguard.model.event import Difference, Event
from envguard.model.evidence import Evidence
from envguard.timeline.events.happening import end_of, make_event
from envguard.timeline.findings.draft import Draft, diff_against, more
from envguard.timeline.packages.records import Record


def startup_events(files: Iterable[StartupFile], copied: bool) -> Iterable[Event]:
    """One a file, at its last writing; at its birth where it alone was put here with older times. `copied` says that
    the whole environment was: then births date nothing."""
    for file in files:
        born = file.btime_ns
        late = born is not None and born > file.mtime_ns + SLACK_NS and not copied
        at = born if born is not None and late else file.mtime_ns
        evidence = (
            Evidence(witness="file", path=file.path, field="btime" if late else "mtime", value=clock.iso_ns(at)),
            Evidence(witness="dist-info", path=posixpath.dirname(file.path), field="RECORD", value="none lists it"),
        )
        name = posixpath.basename(file.path)
        how = ", put here with older times" if late else ""
        text = f"{name} {file.what} at every start of this Python and is of no package{how}"
        yield make_event("file.patched", file.path, at, None, text, evidence, confidence="strong")


def gone_events(files: Iterable[StartupFile], records: Sequence[Record], now_ns: int) -> Iterable[Event]:
    """What the last of this environment's records has and is not there any more."""
    if not records:
        return
    there, record = {file.path for file in files}, records[-1]
    for path in dict.fromkeys(item.path for item in record.fingerprint.problems if item.kind in STARTUP_CODE):
        if path is None or path in there or not path.startswith(f"{record.fingerprint.python.environment}/"):
            continue
        text = f"{posixpath.basename(path)}, which ran at every start of this Python, is gone"
        yield make_event("file.deleted", path, record.time_ns, now_ns, text, (record.proof,), open_end=True)


def startup_findings(
    events: Sequence[Event],
    checkpoint: Checkpoint | None,
    saved: Event | None,
    since: float | None,
    stamped: str | None,
) -> list[Draft]:
    """One for all that came, went or were written after `since` (s). Without a moment there is nothing to say: most
    environments have such a file, and it works as it should. `stamped` names the checkpoint where its stamp says what
    it had."""
    late = [event for event in events if since is not None and end_of(event) >= since]
    if not late:
        return []
    names = some_of([posixpath.basename(event.subject) for event in late])
    title = f"start-up code changed{f' after {checkpoint.name}' if checkpoint is not None else ''}: {names}"
    says = "; ".join(f"{event.summary} ({_when(event)})" for event in late[:4]) + f"{more(late, 4)}."
    caveat = "what it does to a run is not known"
    if stamped is not None:
        caveat += f": {diff_against(stamped)} tells it apart from what the checkpoint had"
    events_of = (*((saved,) if saved is not None else ()), *late[:12])
    about = frozenset(Difference("packages", event.subject) for event in late)
    return [Draft((4, 0.0), title, says, events_of, (caveat,), about, stamped is not None)]


def _when(event: Event) -> str:
    if event.kind == "file.deleted":
        return f"seen at {event.time}, gone by {event.end}"
    return f"{'born' if event.evidence[0].field == 'btime' else 'last written'} at {event.time}"
