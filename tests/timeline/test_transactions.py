"""Install runs from dated installs: what belongs together, what was asked for, what forced what."""

from __future__ import annotations

import pytest

from envguard.acquire.packages.installs import Install
from envguard.clock import NS
from envguard.timeline.packages.previous import Sighting, previous_builds
from envguard.timeline.packages.requirements import Graph, build_graph
from envguard.timeline.packages.transactions import Group, Version, change_of, group_installs, roots_of

MARKERS = {
    "implementation_name": "cpython", "implementation_version": "3.12.3", "os_name": "posix",
    "platform_machine": "x86_64", "platform_python_implementation": "CPython", "platform_release": "6.8",
    "platform_system": "Linux", "platform_version": "", "python_full_version": "3.12.3", "python_version": "3.12",
    "sys_platform": "linux",
}  # fmt: skip
BASE = 1_779_129_131


def at(seconds: float) -> int:
    return BASE * NS + int(seconds * NS)


def made(
    name: str, start: float | None, end: float, requires: tuple[str, ...] = (), installer: str = "uv",
    version: str = "1.0", requested: bool = False,
) -> Install:  # fmt: skip
    return Install(
        name=name, version=version, installer=installer, directory=f"/site/{name}-{version}.dist-info",
        location="/site", requires=requires, editable=False, requested=requested,
        start_ns=at(start) if start is not None else None, end_ns=at(end), doubt=None, survived=None,
        survived_ns=None, payload=None, build=None, full_version=version, evidence=(),
    )  # fmt: skip


def runs(*installs: Install, removals: dict[str, list[int]] | None = None) -> tuple[tuple[Group, ...], Graph]:
    graph = build_graph(installs, MARKERS)
    return group_installs(installs, graph, removals), graph


def names(groups: tuple[Group, ...]) -> list[list[str]]:
    return [sorted(group.names) for group in groups]


def test_a_uv_run_of_forty_packages_is_one() -> None:
    groups, _ = runs(*(made(f"p{n:02d}", n * 0.007, n * 0.007 + 0.005) for n in range(41)))
    assert len(groups) == 1


def test_a_large_copy_sets_the_pace() -> None:
    groups, _ = runs(made("torch", 0, 7.0), made("triton", 7.9, 8.1), made("numpy", 0.1, 0.2))
    assert len(groups) == 1


def test_two_uv_runs_a_second_apart_are_two() -> None:
    groups, _ = runs(made("a", 0, 0.1), made("b", 1.1, 1.2))
    assert names(groups) == [["a"], ["b"]]


def test_a_removal_between_two_installs_parts_them_however_close_they_are() -> None:
    groups, _ = runs(made("a", 0, 0.10), made("b", 0.30, 0.35), removals={"b": [at(0.29)]})
    assert names(groups) == [["a"], ["b"]]


def test_pip_s_bursts_over_a_minute_are_one_run_where_requirements_join_them() -> None:
    """No birth times: only the ends are known, in four bursts over 37 s."""
    groups, _ = runs(
        made("torch", None, 37.0, ("sympy", "filelock"), "pip", requested=True), made("sympy", None, 12.0, (), "pip"),
        made("filelock", None, 0.5, (), "pip"), made("mpmath", None, 0.0, (), "pip"),
    )  # fmt: skip
    assert names(groups) == [["filelock", "mpmath", "sympy", "torch"]]


def test_two_pip_runs_half_a_minute_apart_are_two_where_births_are_known() -> None:
    groups, _ = runs(
        made("torch", 0, 20.0, (), "pip", requested=True),
        made("accelerate", 50.0, 50.4, ("torch",), "pip", requested=True),
    )
    assert names(groups) == [["torch"], ["accelerate"]]


def test_two_installers_are_two_runs() -> None:
    groups, _ = runs(made("a", 0, 0.1), made("b", 0.05, 0.1, (), "pip"))
    assert len(groups) == 2


def test_roots_are_what_nothing_else_in_the_run_asks_for() -> None:
    (group,), graph = runs(
        made("sglang", 0, 0.1, ("torch==2.11.0", "flashinfer")), made("torch", 0, 0.1, ("triton",)),
        made("triton", 0, 0.1), made("flashinfer", 0, 0.1, ("torch",)), made("ruff", 0, 0.1),
    )  # fmt: skip
    assert roots_of(group, graph) == ("ruff", "sglang")


def test_a_circle_that_nobody_else_asks_for_is_a_root_as_a_whole() -> None:
    (group,), graph = runs(made("a", 0, 0.1, ("b",)), made("b", 0, 0.1, ("a", "c")), made("c", 0, 0.1))
    assert roots_of(group, graph) == ("a", "b")


def test_requested_adds_roots_under_pip_and_says_nothing_under_uv() -> None:
    for installer, expected in (("pip", ("a", "b")), ("uv", ("a",))):
        (group,), graph = runs(
            made("a", 0, 0.1, ("b",), installer, requested=True), made("b", 0, 0.1, (), installer, requested=True)
        )
        assert roots_of(group, graph) == expected


def test_markers_of_other_platforms_ask_for_nothing_and_nonsense_is_reported() -> None:
    _, graph = runs(
        made("a", 0, 0.1, ("b; sys_platform == 'win32'", "c; extra == 'all'", "d; python_version >= '3.11'", "!!")),
        made("b", 0, 0.1), made("c", 0, 0.1), made("d", 0, 0.1),
    )  # fmt: skip
    assert {edge.target: edge.by_extra for edge in graph.of["a"]} == {"c": True, "d": False}
    assert ["!!" in item.what for item in graph.unknown] == [True]


@pytest.mark.parametrize(
    ("line", "old", "new", "forced", "allowed"),
    [
        ("torch==2.11.0+cu130", "2.11.0+cu128", "2.11.0+cu130", True, False),
        ("torch==2.11.0", "2.11.0+cu128", "2.11.0+cu130", False, True),
        ("torch>=2.11", "2.10.0", "2.11.0", True, False),
        ("torch", "2.10.0", "2.11.0", False, True),
        ("torch<2", "1.13.0", "2.11.0", False, False),
        ("torch>=2.0", "not.a.version", "2.11.0", False, True),
    ],
)
def test_what_forced_and_what_allowed(line: str, old: str, new: str, forced: bool, allowed: bool) -> None:
    (group,), graph = runs(made("sglang", 0, 0.1, (line,)), made("torch", 0, 0.1, version=new))
    torch = next(install for install in group.installs if install.name == "torch")
    change = change_of(
        torch, Version(old, old), Version(new, new), group, graph.closure(roots_of(group, graph)), graph
    )
    assert ([item.requires for item in change.forced_by], [item.requires for item in change.allowed_by]) == (
        [line] * forced, [line] * allowed
    )  # fmt: skip


def test_what_the_run_did_not_have_to_meet_forced_nothing() -> None:
    """A package outside the run and outside what its roots ask for was not looked at by the installer."""
    (_, group), graph = runs(made("other", -100, -99, ("torch>=2.11",)), made("torch", 0, 0.1, version="2.11.0"))
    change = change_of(
        group.installs[0], Version("2.10.0", "2.10.0"), Version("2.11.0", "2.11.0"), group, {"torch"}, graph
    )
    assert change.forced_by == change.allowed_by == ()


def test_specifiers_are_held_against_what_metadata_declares() -> None:
    """A PyPI wheel of torch declares 2.11.0 although it is +cu130: `==2.11.0+cu130` was not met by it."""
    (group,), graph = runs(made("sglang", 0, 0.1, ("torch==2.11.0",)), made("torch", 0, 0.1, version="2.11.0"))
    torch = next(install for install in group.installs if install.name == "torch")
    change = change_of(
        torch, Version("2.10.0", "2.10.0+cu128"), Version("2.11.0", "2.11.0+cu130"), group, {"sglang", "torch"}, graph
    )
    assert (change.from_, change.to) == ("2.10.0+cu128", "2.11.0+cu130")
    assert [item.requires for item in change.forced_by] == ["torch==2.11.0"]


def sighting(
    source: str, full: str, time: float | None, build: str | None = None, archive: str | None = None
) -> Sighting:
    return Sighting(
        "torch", Version(full, full), at(time) if time is not None else None, source, (), build=build, archive=archive
    )


def test_witnesses_of_the_previous_build_are_ranked_by_what_they_prove() -> None:
    (group,), _ = runs(made("torch", 0, 0.1, version="2.11.0+cu130"))
    current = Version("2.11.0+cu130", "2.11.0+cu130")
    found = previous_builds(
        group.end_ns,
        [
            sighting("cache", "2.9.0+cu126", -5000, "b9", "/c/9"), sighting("wandb", "2.11.0+cu128", -900),
            sighting("removal", "2.11.0+cu128", -0.01, "b1", "/c/1"), sighting("lock-file", "2.11.0", -9000),
            sighting("wandb", "2.11.0+cu130", -50), sighting("wandb", "2.10.0", 500),
            sighting("cache", "2.11.0+cu130", -50, "now", "/c/now"),
        ],
        current, "now",
    )  # fmt: skip
    assert [item.version.full for item in found] == ["2.11.0+cu128", "2.9.0+cu126"]
    assert [item.source for item in found[0].sightings] == ["removal", "wandb"]
    assert found[0].first("archive") == "/c/1"


def test_another_build_of_the_same_version_is_a_candidate_of_its_own() -> None:
    (group,), _ = runs(made("torch", 0, 0.1, version="2.11.0+cu128"))
    current = Version("2.11.0+cu128", "2.11.0+cu128")
    found = previous_builds(group.end_ns, [sighting("removal", "2.11.0+cu128", 0, "other", "/c/o")], current, "now")
    assert [item.first("build") for item in found] == ["other"]
