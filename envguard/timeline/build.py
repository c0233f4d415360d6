"""From a survey to the answer of `timeline`: pure, the same live and from a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from envguard import clock
from envguard.acquire.packages.cut_short import CutShort
from envguard.acquire.packages.markers import marker_values
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.survey import Survey
from envguard.model.event import Event, TimelineReport
from envguard.model.evidence import Reason, Unknown
from envguard.timeline.compared import Compared, stamp_of
from envguard.timeline.events import code as code_events
from envguard.timeline.events import logs as log_events
from envguard.timeline.events import system as system_events
from envguard.timeline.events.cache_clearings import clearing_events
from envguard.timeline.events.checkpoints import checkpoint_events, checkpoint_view, stale_events
from envguard.timeline.events.clock import FUTURE_S, weigh
from envguard.timeline.events.happening import end_of, in_order, start_of
from envguard.timeline.events.logs import NoNumber, RateChange, RunEnd
from envguard.timeline.events.losses import Loss, read_losses
from envguard.timeline.findings import runs as run_findings
from envguard.timeline.findings.code import code_findings
from envguard.timeline.findings.conda import conda_findings
from envguard.timeline.findings.cut_short import cut_short_findings, own_events, to_tell
from envguard.timeline.findings.departures import departure_findings
from envguard.timeline.findings.draft import Draft, finish
from envguard.timeline.findings.drifts import drift_findings
from envguard.timeline.findings.elsewhere import elsewhere_findings
from envguard.timeline.findings.foundation import Foundation, foundation_findings, read_foundation
from envguard.timeline.findings.hiding import hiding_findings
from envguard.timeline.findings.inputs import input_findings
from envguard.timeline.findings.losses import Asked, loss_findings, sound_in
from envguard.timeline.findings.others import driver_findings, edit_findings, stale_findings
from envguard.timeline.findings.removals import removal_findings
from envguard.timeline.findings.startup import gone_events, startup_events, startup_findings
from envguard.timeline.findings.swaps import counts, swap_findings
from envguard.timeline.packages.conda_history import conda_events
from envguard.timeline.packages.hints import read_hints
from envguard.timeline.packages.inferred import Departure, inferred_swaps, read_departures, record_edits
from envguard.timeline.packages.package_events import Packages, read_packages
from envguard.timeline.packages.records import Record, own_records, read_records, taken_ns
from envguard.timeline.packages.removals import Present
from envguard.timeline.packages.requirements import Graph, build_graph
from envguard.timeline.packages.restored import read_restored
from envguard.timeline.packages.sightings import Sightings, read_sightings
from envguard.timeline.rates.states import States
from envguard.timeline.rates.throughput import read_throughput
from envguard.timeline.reach import out_of_reach, undated_since

SLACK_S = 0.001


@dataclass(frozen=True)
class Bounds:
    """What the answer is about; times in seconds since the epoch, None where unbounded."""

    checkpoint: Checkpoint | None = None
    since: float | None = None
    until: float | None = None
    kinds: frozenset[str] = frozenset()

    @property
    def start(self) -> float | None:
        """From when on events are told."""
        if self.checkpoint is None:
            return self.since
        if not self.checkpoint.dated:
            return self.since
        return max(self.since or 0.0, self.checkpoint.first_ns / clock.NS)


@dataclass(frozen=True)
class Understood:
    """Everything that a survey tells, unbounded."""

    own: tuple[Record, ...]
    """Records of this very environment."""
    sightings: Sightings
    packages: Packages
    events: tuple[Event, ...]
    changes: tuple[RateChange, ...]
    failed: tuple[NoNumber, ...]
    ends: tuple[RunEnd, ...]
    losses: tuple[Loss, ...]
    cut_short: tuple[CutShort, ...]
    departures: tuple[Departure, ...]
    startup: tuple[Event, ...]
    foundation: Foundation
    conda: tuple[Event, ...]
    unknown: tuple[Unknown, ...]


def _requirements(survey: Survey) -> Graph:
    env, machine = survey.env, survey.machine
    markers = marker_values(env.implementation, env.version, machine.arch, machine.kernel, machine.system)
    return build_graph(survey.installs, markers)


def packages_of(survey: Survey, records: Sequence[Record]) -> Packages:
    """Install runs and swaps, by every witness of the survey; `records` are its own."""
    return _packages(survey, _requirements(survey), read_sightings(survey, records), own_records(records))


def _packages(survey: Survey, graph: Graph, sightings: Sightings, own: tuple[Record, ...]) -> Packages:
    # Where a folder of packages could not be listed, what is not found there need not be gone.
    whole = not any(item.code == "site" for item in survey.distributions.unknown)
    now_ns = int(survey.machine.now * clock.NS) if whole else None
    return read_packages(
        survey.installs,
        graph,
        survey.archive_uses,
        sightings,
        read_hints(survey.installs, survey.processes, survey.pycs),
        own,
        read_restored(survey.journal),
        Present(now_ns, survey.site_changes, survey.busy is not None),
        survey.made_ns,
        survey.cut_short,
    )


def departures_of(survey: Survey, own: tuple[Record, ...], packages: Packages) -> tuple[Departure, ...]:
    """Packages that are others than the last of this environment's `own` records has, though none came later."""
    return tuple(read_departures(survey.installs, own, packages, int(survey.machine.now * clock.NS)))


def understand(survey: Survey) -> Understood:
    """Every event of every witness, in order, each once."""
    graph = _requirements(survey)
    records = read_records(survey)
    own = own_records(records)
    sightings = read_sightings(survey, records)
    packages = _packages(survey, graph, sightings, own)
    inferred = inferred_swaps(sightings, packages)
    events: list[Event] = [*packages.events, *inferred.swaps]
    departures = departures_of(survey, own, packages)
    events += [item.event for item in departures]
    events += record_edits(survey.installs, own, {edit.path for edit in survey.edits})
    startup = (
        *startup_events(survey.startup_files, any(item.copied_ns for item in survey.installs)),
        *gone_events(survey.startup_files, own, int(survey.machine.now * clock.NS)),
    )
    events += startup
    conda = conda_events(survey.conda, survey.installs)
    events += conda
    losses = read_losses(survey.lost, survey.installs, sightings, survey.stamps, packages.events, survey.machine.now)
    events += [loss.event for loss in losses]
    cut_short = to_tell(survey.cut_short, sightings)
    events += own_events(cut_short)
    foundation = read_foundation(survey, own)
    events += foundation.events
    events += checkpoint_events(survey.checkpoints.found)
    events += stale_events(survey.processes, packages.swaps, survey.env.site, survey.machine.now)
    changes: list[RateChange] = []
    failed: list[NoNumber] = []
    for log in survey.train_logs:
        rates, changed = log_events.throughput_events(read_throughput(log, [run for _, run in survey.runs]))
        events += rates
        changes += changed
        failed += log_events.no_numbers(log)
    ends = [end for text in survey.text_logs for end in log_events.run_ends(text)]
    events += [item.event for item in failed]
    events += [end.event for end in ends]
    events += _other_events(survey)
    weighed = weigh(events, survey.boots.steps, survey.machine.now)
    ordered = in_order({event.id: event for event in weighed}.values())
    doubts = (Unknown(f"deleted files of {name}", survey.busy or "") for name in packages.doubtful)
    return Understood(
        own,
        sightings,
        packages,
        ordered,
        tuple(changes),
        tuple(failed),
        tuple(ends),
        losses,
        cut_short,
        departures,
        startup,
        foundation,
        conda,
        (*graph.unknown, *inferred.contradictions, *doubts),
    )


def _other_events(survey: Survey) -> Iterable[Event]:
    for history in survey.git:
        yield from code_events.git_events(history)
    yield from code_events.edit_events(survey.edits)
    yield from code_events.tree_events(survey.locks, "config.changed", "lock-file")
    yield from code_events.tree_events(survey.config, "config.changed", "file")
    yield from code_events.tree_events(survey.data, "data.changed", "data")
    yield from system_events.boot_events(survey.boots)
    yield from system_events.package_events(survey.apt, survey.dpkg)
    yield from system_events.cache_events(survey.compile_caches)
    yield from clearing_events(survey.stamps, survey.compile_caches, survey.machine, survey.journal)
    yield from system_events.own_events(survey.journal, survey.runs)
    yield from system_events.command_events(survey.commands, survey.compile_caches)


def build_timeline(survey: Survey, bounds: Bounds, compared: Compared | None = None) -> TimelineReport:
    """Everything that the survey tells within the bounds, with findings over all of it; of `compared`, what `diff`
    objects to and no witness of the survey tells of."""
    known = understand(survey)
    checkpoint = bounds.checkpoint
    saved = _saved_event(known.events, checkpoint)
    # Counted from a moment that nobody knows, every finding would be made up.
    countable = checkpoint is None or checkpoint.dated or bounds.since is not None
    drafts = _drafts(survey, known, bounds, saved) if countable else []
    undetermined: tuple[Unknown, ...] = ()
    if compared is not None and checkpoint is not None:
        ref = survey.checkpoints.reference(checkpoint)
        told = drift_findings(compared, survey, known.own, known.events, drafts, checkpoint, saved, ref)
        made = weigh(told.made, survey.boots.steps, survey.machine.now)
        known, drafts = replace(known, events=in_order([*told.events, *made])), told.drafts
        undetermined = tuple(
            Unknown(
                f"what changed since {checkpoint.name}: {item.what}",
                item.why,
                item.reason if item.decides else "undecided",
            )
            for item in (*compared.report.unknown, *told.undetermined)
        )
    drafts += _fall_drafts(survey, known, bounds) if countable else []
    drafts = _within_bounds(drafts, bounds)
    resting = {event.id for draft in drafts for event in draft.events} | ({saved.id} if saved is not None else set())
    shown = tuple(event for event in known.events if _within(event, bounds, resting))
    runs = {event.transaction for event in shown}
    return TimelineReport(
        checkpoint=checkpoint_view(checkpoint, _is_stamped(survey, checkpoint)) if checkpoint else None,
        events=shown,
        transactions=tuple(run for run in known.packages.transactions if run.id in runs),
        findings=finish(drafts, shown),
        unknown=_unknown(
            survey,
            (*_disordered(survey, checkpoint), *_beyond(survey, known.own, bounds), *undetermined, *known.unknown),
        ),
    )


def _disordered(survey: Survey, checkpoint: Checkpoint | None) -> tuple[Unknown, ...]:
    """What the times of its files say against its step: every gap is counted from its time."""
    if checkpoint is None:
        return ()
    pairs = [item for item in survey.checkpoints.disorder if checkpoint in (item.lower, item.higher)]
    aside: Reason = "aside" if checkpoint.by_stamp or _is_stamped(survey, checkpoint) else "undecided"
    return tuple(Unknown(f"time of {checkpoint.name}", item.says, aside) for item in pairs)


def _beyond(survey: Survey, own: Iterable[Record], bounds: Bounds) -> tuple[Unknown, ...]:
    """Why what happened since the checkpoint cannot be told, or not all of it: "nothing" would be no answer then."""
    checkpoint = bounds.checkpoint
    if checkpoint is None:
        why_not = undated_since(survey, own, bounds.since) if bounds.since is not None else None
        return (Unknown("packages since then", why_not, code="since"),) if why_not is not None else ()
    what = f"what changed since {checkpoint.name}"
    found = [*_no_stamp(survey, checkpoint)]
    if checkpoint.incomplete is not None:
        found.append(Unknown(checkpoint.name, f"it is not complete: {checkpoint.incomplete}"))
    if not checkpoint.dated:
        why = f"the files of {checkpoint.name} bear no time that tells when it was saved: `--since T` names a time"
        return (*found, Unknown(what, why, code="since"))
    if checkpoint.saved_ns / clock.NS > survey.machine.now + FUTURE_S:
        why = (
            "the time of its files lies in the future, so that everything seems to be older: `--since T` names a time"
        )
        found.insert(0, Unknown(what, why, code="since"))
    elif not _is_stamped(survey, checkpoint) and (why_not := out_of_reach(survey, own, checkpoint)) is not None:
        found.append(Unknown(what, why_not, code="since"))
    return tuple(found)


def _no_stamp(survey: Survey, checkpoint: Checkpoint) -> tuple[Unknown, ...]:
    """Its own stamp is what the answer rests on most: with that unread, "nothing changed" is not known."""
    if checkpoint.stamp_path is None:
        return ()
    stamp = stamp_of(survey, checkpoint)
    if stamp is not None and not stamp.unread:
        return ()
    why = (
        stamp.why_not if stamp is not None and stamp.why_not else f"the stamp cannot be read: {checkpoint.stamp_path}"
    )
    what = f"what changed since {checkpoint.name}"
    return (Unknown.refused(what, f"its stamp {why.removeprefix('the stamp ')}", "stamp"),)


def _drafts(survey: Survey, known: Understood, bounds: Bounds, saved: Event | None) -> list[Draft]:
    since = bounds.start
    of_checkpoint = bounds.checkpoint
    ref = survey.checkpoints.reference(of_checkpoint) if of_checkpoint is not None else None
    drafts = elsewhere_findings(survey, of_checkpoint, saved)
    drafts += foundation_findings(known.foundation, of_checkpoint, saved, since, ref)
    had = next((item for item in known.own if _is_of(item, survey, of_checkpoint)), None)
    drafts += swap_findings(known.packages, known.events, of_checkpoint, saved, since, ref, had)
    drafts += hiding_findings(known.packages, of_checkpoint, saved, since, ref)
    told = {swap.group.id for swap in known.packages.swaps if counts(swap)}
    # What its own stamp no longer has went before that was taken.
    drafts += removal_findings(known.packages, of_checkpoint, saved, _settled(survey, bounds), told)
    drafts += departure_findings(known.departures, of_checkpoint, saved, since, ref)
    asked = _asked(survey, known, bounds, saved, ref) if known.losses or known.cut_short else None
    if asked is not None:
        drafts += loss_findings(known.losses, known.events, asked)
        drafts += cut_short_findings(known.cut_short, known.packages, known.events, asked)
    drafts += conda_findings(known.conda, saved, since)
    drafts += stale_findings(known.events)
    drafts += driver_findings(system_events.driver_mismatch(survey.driver), known.events)
    drafts += run_findings.crash_findings(known.ends, known.events, since)
    drafts += run_findings.loss_findings(known.failed, known.events, since)
    told_by = ref if of_checkpoint is not None and _is_stamped(survey, of_checkpoint) else None
    drafts += startup_findings(known.startup, of_checkpoint, saved, since, told_by)
    # What was emptied has a finding of its own, and is no edit; nor is what no package put there.
    own = {event.id for event in (*(loss.event for loss in known.losses), *known.startup)}
    drafts += edit_findings([event for event in known.events if event.id not in own], since)
    stamp = stamp_of(survey, of_checkpoint) if of_checkpoint is not None else None
    stamped = stamp.fingerprint if stamp is not None and stamp.counts and stamp.path not in survey.elsewhere else None
    drafts += input_findings(survey, known.events, of_checkpoint, stamped, saved, ref)
    drafts += code_findings(survey.git, known.events, of_checkpoint, stamped, saved, ref)
    return drafts


def _fall_drafts(survey: Survey, known: Understood, bounds: Bounds) -> list[Draft]:
    """Falls of throughput, whose causes are sought among all events of what differs between the two runs."""
    since = bounds.start
    changes = [change for change in known.changes if since is None or change.first_bad_ns / clock.NS >= since]
    runs, now_ns = [run for _, run in survey.runs], int(survey.machine.now * clock.NS)
    states = States(known.sightings, known.own, runs, survey.installs, known.events, now_ns)
    return run_findings.fall_findings(changes, known.events, states)


def _within_bounds(drafts: list[Draft], bounds: Bounds) -> list[Draft]:
    until = bounds.until
    if until is not None:
        drafts = [draft for draft in drafts if not draft.events or start_of(draft.events[-1]) <= until]
    if bounds.kinds:
        drafts = [draft for draft in drafts if any(event.kind in bounds.kinds for event in draft.events)]
    return drafts


def _is_of(record: Record, survey: Survey, checkpoint: Checkpoint | None) -> bool:
    """Whether a record is the checkpoint's own stamp."""
    stamp = stamp_of(survey, checkpoint) if checkpoint is not None else None
    return stamp is not None and (record.proof.witness, record.proof.path) == ("stamp", stamp.path)


def _settled(survey: Survey, bounds: Bounds) -> float | None:
    """From when on what is gone went after the checkpoint (s): its stamp tells of a later moment than its files."""
    stamp = stamp_of(survey, bounds.checkpoint) if bounds.checkpoint is not None else None
    if stamp is None or not stamp.counts:
        return bounds.start
    return max(bounds.start or 0.0, taken_ns(stamp) / clock.NS)


def _asked(survey: Survey, known: Understood, bounds: Bounds, saved: Event | None, ref: str | None) -> Asked:
    stamp = stamp_of(survey, bounds.checkpoint) if bounds.checkpoint is not None else None
    return Asked(
        checkpoint=bounds.checkpoint,
        saved=saved,
        since=bounds.start,
        ref=ref,
        sound=sound_in(known.sightings, known.losses, stamp.path if stamp is not None else None),
        prefix=survey.env.prefix,
        settled=_settled(survey, bounds),
    )


def _is_stamped(survey: Survey, checkpoint: Checkpoint) -> bool:
    stamp = stamp_of(survey, checkpoint)
    return stamp is not None and stamp.counts


def _saved_event(events: tuple[Event, ...], checkpoint: Checkpoint | None) -> Event | None:
    if checkpoint is None:
        return None
    found = [event for event in events if event.kind == "checkpoint.saved" and event.subject == checkpoint.name]
    return next((event for event in found if any(item.path == checkpoint.path for item in event.evidence)), None)


def _within(event: Event, bounds: Bounds, resting: set[str]) -> bool:
    """What a finding rests on is always told: without it the finding would point at nothing."""
    if event.id in resting:
        return True
    if bounds.kinds and event.kind not in bounds.kinds:
        return False
    # An event's time is told to the microsecond, the bound is the file system's: without slack they would miss.
    if bounds.start is not None and end_of(event) < bounds.start - SLACK_S:
        return False
    return bounds.until is None or start_of(event) <= bounds.until + SLACK_S


def _unknown(survey: Survey, more: tuple[Unknown, ...]) -> tuple[Unknown, ...]:
    missing = [Unknown(f"witness {item.witness}", item.why, "absent", "witness") for item in survey.unavailable]
    return tuple(dict.fromkeys([*survey.unknown, *more, *missing]))
