"""Many nodes: the odd one and the field, before anything starts."""

from __future__ import annotations

import pytest

from envguard.config import PolicyRule
from envguard.fingerprint.minority import compare_many
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Environment, Fingerprint, Package
from envguard.report.diff import sides
from tests.fingerprint.made import SYSTEM, fingerprint, gpu, package, replace, torch


def node(number: int, **more: object) -> Fingerprint:
    """A node: what differs from node to node by nature differs."""
    base = fingerprint(id=f"eg1-{number:020d}")
    gpus = tuple(gpu(index, uuid_digest=f"{number}-{index}") for index in range(8))
    return replace(base, **{"system": replace(SYSTEM, host=f"node{number}"), "gpus": gpus, **more})


def rows(*named: tuple[str, Fingerprint]) -> list[tuple[str, str, str, str | None]]:
    report = compare_many(named)
    assert report.minority is not None
    assert report.exit_code() == (1 if report.minority else 0)
    return [(row.ref, row.facet, row.subject, row.value) for row in report.minority]


SOUND = [(f"node{number}", node(number)) for number in range(4)]
OLD_NCCL = (package("nvidia-nccl-cu12", "2.27.3"),)
NEW_NCCL = (package("nvidia-nccl-cu12", "2.28.0"),)


def with_packages(number: int, *packages: Package, **more: object) -> Fingerprint:
    taken = node(number, **more)
    names = {item.name for item in packages}
    return replace(taken, packages=(*(item for item in taken.packages if item.name not in names), *packages))


def test_all_alike() -> None:
    report = compare_many(SOUND)
    assert (report.match, report.minority, report.exit_code()) == (True, (), 0)
    assert sides(report) == "all 4 match"
    assert {drift.severity for drift in report.drifts} <= {"info"}


def test_the_odd_node_and_its_field_wherever_it_stands() -> None:
    for place in range(4):
        named = [
            (f"node{number}", with_packages(number, *(NEW_NCCL if number == place else OLD_NCCL)))
            for number in range(4)
        ]
        assert rows(*named) == [(f"node{place}", "cuda", "nvidia-nccl-cu12", "2.28.0")]
        report = compare_many(named)
        assert report.b.id == f"eg1-{place:020d}"
        assert report.b.label == f"node{place}"
        assert [(drift.a, drift.b, drift.severity) for drift in report.drifts if drift.facet == "cuda"] == [
            ("2.27.3", "2.28.0", "block")
        ]


def test_a_package_that_one_node_lacks_and_one_that_only_it_has() -> None:
    named = [(f"node{number}", with_packages(number, *OLD_NCCL)) for number in range(3)]
    named.append(("node3", with_packages(3, package("flash-attn", "2.8"))))
    assert rows(*named) == [
        ("node3", "cuda", "nvidia-nccl-cu12", None),
        ("node3", "packages", "flash-attn", "2.8"),
    ]


def test_two_odd_ones_of_five() -> None:
    named = [(f"n{number}", node(number)) for number in range(3)]
    named += [(f"n{number}", node(number, gpus=node(number).gpus[:7])) for number in (3, 4)]  # type: ignore[index]
    assert [(ref, subject) for ref, _, subject, _ in rows(*named)] == [("n3", "count"), ("n4", "count")]


def test_a_tie_names_everybody() -> None:
    one = [(f"n{number}", with_packages(number, *OLD_NCCL)) for number in range(2)]
    two = [(f"n{number}", with_packages(number, *NEW_NCCL)) for number in (2, 3)]
    assert rows(*one, *two) == [
        ("n0", "cuda", "nvidia-nccl-cu12", "2.27.3"),
        ("n1", "cuda", "nvidia-nccl-cu12", "2.27.3"),
        ("n2", "cuda", "nvidia-nccl-cu12", "2.28.0"),
        ("n3", "cuda", "nvidia-nccl-cu12", "2.28.0"),
    ]


def test_the_same_version_of_another_build() -> None:
    named = list(SOUND)
    other = torch(git_version="0" * 40)
    named[1] = ("node1", with_packages(1, package("torch", "2.11.0+cu128", "f" * 64), torch=other))
    assert rows(*named) == [("node1", "torch", "torch", "f" * 64)]


def test_what_one_node_could_not_tell_is_undetermined() -> None:
    named = list(SOUND)
    named[2] = ("node2", node(2, unknown=(Unknown("driver: kernel module", "Permission denied"),)))
    report = compare_many(named)
    assert (report.minority, report.exit_code(), report.match) == ((), 3, False)
    assert [(item.what, item.why) for item in report.unknown] == [
        ("driver: kernel module", "node2: Permission denied")
    ]


def test_policy_makes_a_difference_no_matter() -> None:
    named = list(SOUND)
    named[0] = ("node0", with_packages(0, package("transformers", "5.8.1")))
    assert compare_many(named).exit_code() == 1
    policy = [PolicyRule("packages", "info", "transformers")]
    assert compare_many(named, policy).exit_code() == 0


def rank(number: int, own: str | None, handed: str | None = None) -> tuple[str, Fingerprint]:
    """A rank's stamp: `handed` at the start, and what it made of that itself."""
    value = own or handed
    env = Environment(
        digest="x",
        variables={"NCCL_ALGO": value} if value is not None else {},
        started={"NCCL_ALGO": handed} if own is not None else {},
    )
    return f"n{number}", node(number, env=env, origin="loaded")


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([(None, None)] * 4, []),
        ([("Ring", None), (None, None), (None, None), (None, None)], []),
        ([("Ring", None), ("Ring", None), (None, None), (None, None)], []),
        ([(None, "Ring"), (None, None), (None, None), (None, None)], ["n0"]),
        ([("Ring", None), ("Tree", None), (None, None), (None, None)], ["n0", "n1"]),
        ([("Ring", None), ("Ring", None), ("Tree", None), (None, None)], ["n2"]),
        ([("Tree", None), (None, "Ring"), (None, None), (None, None)], ["n1"]),
    ],
)
def test_what_a_rank_set_itself_makes_it_odd_only_among_those_that_did(
    values: list[tuple[str | None, str | None]], odd: list[str], turn: int
) -> None:
    """Whichever rank is named first."""
    ranks = [rank(number, own, handed) for number, (own, handed) in enumerate(values)]
    found = rows(*ranks[turn:], *ranks[:turn])
    assert sorted(ref for ref, *_ in found) == odd
