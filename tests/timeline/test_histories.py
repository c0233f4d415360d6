"""Any history of an environment, and any of its witnesses lost: what is reported happened, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envguard.model.event import Event, TimelineReport
from envguard.timeline.events.happening import end_of, start_of
from tests.incidents.acts import BUILDS, Build, Saved, World

NAMES = ("torch", "transformers")


@dataclass(frozen=True)
class Act:
    """What is done `after` so many seconds."""

    what: str
    after: float
    arguments: tuple[object, ...] = ()

    def __repr__(self) -> str:
        return f"Act({self.what!r}, {self.after}, {self.arguments!r})"


@dataclass(frozen=True)
class Lost:
    """Witnesses that are gone when the question is asked; stamps and archives by index."""

    stamps: frozenset[int] = frozenset()
    archives: frozenset[int] = frozenset()
    cache: bool = False
    journal: bool = False
    processes: bool = False
    clamped: bool = False


def _act(what: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Act]:
    gap = st.sampled_from([5.0, 40.0, 700.0, 8000.0])
    return st.builds(Act, st.just(what), gap, st.tuples(*arguments))


name, yes = st.sampled_from(NAMES), st.booleans()
ACTS = st.one_of(
    _act("install", st.sampled_from(BUILDS)),
    _act("install", st.sampled_from(BUILDS[:4])),
    _act("remove", name),
    _act("patch", name, yes, yes),
    _act("put_back", name),
    _act("copy", yes),
    _act("save", yes),
    _act("save", yes),
    _act(World.copy_checkpoint.__name__, yes),
    _act("snapshot"),
    _act("start_process"),
)
HISTORIES = st.lists(ACTS, min_size=2, max_size=9)
LOST = st.builds(
    Lost,
    st.frozensets(st.integers(0, 2), max_size=3),
    st.frozensets(st.integers(0, 6), max_size=5),
    yes,
    yes,
    yes,
    st.sampled_from([False, False, False, True]),
)
LINKS: st.SearchStrategy[Literal["hardlink", "copy"]] = st.sampled_from(["hardlink", "copy"])


def play(acts: list[Act], lost: Lost, link: Literal["hardlink", "copy"], births: bool) -> World:
    """The world after the acts, without the witnesses that were lost."""
    world = World(link, births)
    for act in acts:
        world.wait(act.after)
        getattr(world, act.what)(*act.arguments)
    world.wait(900)
    for index in lost.stamps:
        if index < len(world.saved) and (world.saved[index].copied is None or world.saved[index].kept):
            world.saved[index].stamp = None
    for index, build in enumerate(BUILDS):
        if lost.cache or index in lost.archives:
            world.archives.pop(build, None)
    if lost.journal:
        world.journal.clear()
    if lost.processes:
        world.processes.clear()
    world.clamped = lost.clamped
    return world


def package_events(report: TimelineReport) -> Iterator[Event]:
    for event in report.events:
        if event.kind in ("package.replaced", "package.installed", "package.removed") and event.subject in NAMES:
            yield event


def is_of(build: Build | None, version: str | None) -> bool:
    return build is not None and version in (build.version, build.version.partition("+")[0])


def check_event(world: World, event: Event) -> None:
    """It encloses what it reports, and what it names before and after was there."""
    real = [item for item in world.happened if item.name == event.subject]
    slack = event.precision_s + 0.2
    first, last = start_of(event) - slack, end_of(event) + slack
    if event.time is None:
        first = 0.0
    within = [item for item in real if item.start / 1e9 <= last and item.end / 1e9 >= first]
    assert within, ("nothing happened then", event, real)
    if event.kind != "package.removed":
        ends = [item for item in within if item.after is not None]
    elif event.confidence == "weak":
        # "Here or from another environment", which the tree that a copy took the place of is by then.
        ends = within
    else:
        # The build that is named may have gone for another one, which went later: the net of both.
        net = real[-1].after is None
        ends = [item for item in within if item.after is None or (net and item.after != item.before)]
    if event.to is not None:
        ends = [item for item in ends if is_of(item.after, event.to)]
    assert ends, ("no such end", event, real)
    if event.from_ is not None:
        before = [item for item in real if item.start <= ends[-1].start]
        others = [item.before for item in before if is_of(item.before, event.from_)]
        if event.kind == "package.replaced" and event.from_ == event.to:  # the same version: another build
            others = [build for build in others if any(build != end.after for end in ends)]
        assert others, ("never there before", event, real)


def changed(world: World, saved: Saved) -> list[str]:
    """What the environment of the checkpoint had and the environment now has not, or has otherwise."""
    then, now = saved.state, world.state()
    return [name for name in then if now.get(name) != then[name]]


def check_previous(world: World, report: TimelineReport) -> None:
    """What is offered as the build before was there before the run."""
    for run in report.transactions:
        for change in run.packages:
            for item in change.previous:
                assert any(
                    happened.name == change.name and is_of(happened.before, item.version)
                    for happened in world.happened
                ), ("never here", change.name, item, world.happened)


def last_seen(world: World, name: str, moment: int) -> Build | None:
    """What the last record before the moment has. A replacement after that which a later install covered leaves at
    most a time in the cache, which other environments move as well: of a state that was recorded no more is known."""
    looks = [item.stamped for item in world.saved if item.stamp is not None and item.stamped is not None]
    looks += [time for time, _ in world.journal]
    before = max((time for time in looks if time <= moment), default=0)
    past = [item for item in world.happened if item.name == name and item.end <= before]
    return past[-1].after if past else None


def was_there(world: World, saved: Saved, name: str, version: str) -> bool:
    then = saved.state.get(name)
    return is_of(then[0] if then else None, version) or is_of(last_seen(world, name, saved.saved), version)


CLEAN = "saved before that: it is clean"


def check_checkpoint(world: World, saved: Saved) -> None:
    report = world.timeline(saved.name)
    if report.exit_code() == 0:
        assert not changed(world, saved), ("an all-clear", saved.name, changed(world, saved), report)
    for finding in report.findings:
        if CLEAN in finding.says:
            rests = [report.events[index] for index in finding.because]
            names = {event.subject for event in rests if event.kind == "package.replaced"}
            for event in rests:
                if event.subject in names and event.from_ is not None:
                    assert was_there(world, saved, event.subject, event.from_), ("not clean", saved, finding, event)
    for event in package_events(report):
        check_event(world, event)
    if saved.stamp is None:
        check_state_before(world, saved)


def check_state_before(world: World, saved: Saved) -> None:
    """What `diff` and `restore` take for the state of then: it was that, or is undetermined."""
    known, reached = world.told_at(saved.name)
    for name in NAMES:
        then, now = saved.state.get(name), world.state().get(name)
        said = known.get(name)
        if said is None:
            if reached and now is not None:
                assert (then[0] if then else None) == now[0], ("taken for unchanged", name, saved, now)
        elif said.version is not None:
            assert was_there(world, saved, name, said.version), ("another build", name, said, then)
        elif said.absent:
            assert then is None, ("taken for absent", name, said, then)


def check(acts: list[Act], lost: Lost, link: Literal["hardlink", "copy"], births: bool) -> None:
    world = play(acts, lost, link, births)
    report = world.timeline()
    for event in package_events(report):
        check_event(world, event)
    check_previous(world, report)
    for saved in world.saved:
        check_checkpoint(world, saved)


A, B = BUILDS[:2]
ALL_KNOWN = Lost()


@given(HISTORIES, LOST, LINKS, st.sampled_from([True, True, False]))
# A file was edited, a snapshot saw it, the same build was installed again: no other build came.
@example(
    [Act("install", 5, (A,)), Act("patch", 5, ("torch", True, False)), Act("snapshot", 5), Act("install", 5, (A,))],
    ALL_KNOWN, "hardlink", True,
)  # fmt: skip
# The build that went was first seen after the checkpoint: not "clean, made with the old build".
@example([Act("save", 5, (False,)), Act("install", 5, (A,)), Act("snapshot", 5), Act("install", 5, (B,))],
         Lost(cache=True), "hardlink", True)  # fmt: skip
# The same, taken out and not replaced: it was not there when the checkpoint was saved.
@example([Act("save", 5, (False,)), Act("install", 5, (A,)), Act("snapshot", 5), Act("remove", 5, ("torch",))],
         ALL_KNOWN, "copy", True)  # fmt: skip
# A record from before its first install is no word on the moment between that and the same install again.
@example([Act("save", 5, (True,)), Act("install", 5, (A,)), Act("save", 5, (False,)), Act("install", 5, (A,))],
         ALL_KNOWN, "hardlink", True)  # fmt: skip
# A → B → A by installs that leave no trace: B was there in between, and what has A on one side does not decide.
@example([Act("install", 5, (A,)), Act("save", 5, (True,)), Act("install", 5, (B,)), Act("save", 5, (False,)),
          Act("install", 5, (A,))], ALL_KNOWN, "copy", True)  # fmt: skip
# Times clamped by an image after a record: what the record lacks came nobody knows when, with births and without.
@example(
    [Act("snapshot", 5), Act("save", 5, (False,)), Act("install", 5, (A,))], Lost(clamped=True), "hardlink", True
)
@example([Act("snapshot", 5), Act("save", 5, (False,)), Act("install", 5, (A,))], Lost(clamped=True), "copy", False)
# A checkpoint and an environment that were both copied here, with an image's times: nothing orders the two.
@example(
    [Act("save", 5, (False,)), Act("copy_checkpoint", 5, (True,)), Act("install", 5, (A,)), Act("copy", 5, (False,))],
    Lost(clamped=True), "hardlink", True,
)  # fmt: skip
@settings(max_examples=60, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_reported_happened(
    acts: list[Act], lost: Lost, link: Literal["hardlink", "copy"], births: bool
) -> None:
    check(acts, lost, link, births)
