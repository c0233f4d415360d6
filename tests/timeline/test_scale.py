"""A history of thousands: twice as much of it costs about twice, and what it says stays readable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envguard.acquire.packages.installs import Install
from envguard.model.evidence import Evidence
from envguard.timeline.packages.inferred import inferred_swaps
from envguard.timeline.packages.package_events import Packages, read_packages
from envguard.timeline.packages.previous import Sighting, by_name, previous_builds
from envguard.timeline.packages.transactions import Version
from tests.counting import function_calls
from tests.timeline.test_transactions import at, made, runs


def stamped(name: str, number: int, version: str = "0.9", source: str = "stamp") -> Sighting:
    proof = Evidence(witness="stamp", path=f"/runs/step_{number}/envguard.json", field="packages", value="eg1-")
    return Sighting(
        name, Version(version, version), at(-10_000 + number), source, (proof,), build=f"{name}-{version}"
    )


def history(packages: int, stamps: int) -> tuple[tuple[Install, ...], Mapping[str, Sequence[Sighting]]]:
    names = [f"p{number:03d}" for number in range(packages)]
    installs = tuple(made(name, number * 0.007, number * 0.007 + 0.005) for number, name in enumerate(names))
    return installs, by_name(stamped(name, number) for number in range(stamps) for name in names)


def told(packages: int, stamps: int) -> Packages:
    installs, seen = history(packages, stamps)
    found = read_packages(installs, runs(*installs)[1], (), seen)
    assert len(found.swaps) == packages
    assert not inferred_swaps(seen, found).swaps
    return found


def test_twice_the_packages_and_twice_the_stamps_cost_about_twice() -> None:
    """Each package asked every other's history: 600 packages and 1,000 stamps took four minutes."""
    base = function_calls(lambda: told(40, 50))
    assert function_calls(lambda: told(80, 50)) < 2.5 * base
    assert function_calls(lambda: told(40, 100)) < 2.5 * base


def test_a_thousand_stamps_that_agree_are_told_by_two() -> None:
    """The evidence of one swap was a list of every stamp ever made, with the other witnesses somewhere in it."""
    (group,), _ = runs(made("torch", 0, 0.1, version="2.11.0"))
    seen = [stamped("torch", number, "2.10.0") for number in range(1000)]
    seen += [stamped("torch", 500, "2.10.0", source="wandb")]
    (found,) = previous_builds(group.end_ns, seen, Version("2.11.0", "2.11.0"), "now")
    assert [item.path for item in found.evidence] == [
        "/runs/step_999/envguard.json", "/runs/step_0/envguard.json", "/runs/step_500/envguard.json"
    ]  # fmt: skip
    assert [item.source for item in found.sightings] == ["stamp", "stamp", "wandb"]


class Handing(Mapping[str, Sequence[Sighting]]):
    """Counts the sightings that are handed out."""

    def __init__(self, held: Mapping[str, Sequence[Sighting]]) -> None:
        self.held, self.handed = held, 0

    def __getitem__(self, name: str) -> Sequence[Sighting]:
        self.handed += len(self.held[name])
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def test_each_package_is_told_its_own_history_once() -> None:
    installs, seen = history(30, 20)
    handing: Any = Handing(seen)
    read_packages(installs, runs(*installs)[1], (), handing)
    assert handing.handed == 30 * 20


def test_one_run_of_thousands_is_grouped_by_steps_of_its_own_number() -> None:
    """Each install asked all the others for the pace: 100,000 packages took the timeline over three minutes."""
    few, many = ([made(f"p{number:05d}", number * 0.001, number * 0.001 + 0.0005) for number in range(count)]
                 for count in (500, 2000))  # fmt: skip
    base = function_calls(lambda: told_of(few))
    assert function_calls(lambda: told_of(many)) < 5 * base


def told_of(installs: list[Install]) -> None:
    (transaction,) = read_packages(tuple(installs), runs(*installs)[1], (), {}).transactions
    assert len(transaction.packages) == len(installs)
