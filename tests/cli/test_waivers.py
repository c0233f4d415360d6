"""Waivers can be seen and ended; what was waived once stays in the record."""

from __future__ import annotations

import json

import jsonschema
import pytest

from envguard.demo.stage import Stage
from envguard.launch.waivers import parse_waivers, store
from envguard.model.schema import schema

NOW = "2026-12-01T10:00:00+00:00"


@pytest.fixture
def waived(stage: Stage) -> Stage:
    """A project with a standing waiver of two facets, one that is over, and one that served its launch."""
    (stage.project / "envguard.toml").write_text("")
    state = stage.project / ".envguard"
    given = [
        *parse_waivers(["packages:transformers", "env"], "compared by hand", "2999-01-01", "ada", NOW),
        *parse_waivers(["torch"], "an experiment", "2001-01-01", "ada", NOW),
        *parse_waivers(["code"], "this once", None, "ada", NOW),
    ]
    store(state, given, "run-1")
    return stage


def rows(stage: Stage, *words: str) -> list[dict[str, object]]:
    done = stage.envguard("waivers", *words, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema("waivers"))
    found: list[dict[str, object]] = answer["waivers"]
    return found


def test_those_in_force_are_listed_and_all_on_request(waived: Stage) -> None:
    assert [(row["facet"], row["subject"]) for row in rows(waived, "list")] == [
        ("packages", "transformers"), ("env", None)]  # fmt: skip
    assert len(rows(waived, "list", "--all")) == 4
    shown = waived.envguard("waivers")
    assert "packages:transformers" in shown.stdout
    assert "compared by hand" in shown.stdout


def test_a_revoked_one_is_heeded_no_more_and_stays_in_the_record(waived: Stage) -> None:
    assert [row["facet"] for row in rows(waived, "revoke", "packages:transformers")] == ["env"]
    kept = json.loads((waived.project / ".envguard" / "waivers.json").read_text())
    assert [item["facet"] for item in kept] == ["packages", "env", "torch", "code"]
    assert kept[0]["revoked"] is not None
    again = waived.envguard("waivers", "revoke", "packages:transformers")
    assert (again.returncode, "in force: env" in again.stderr) == (2, True)


@pytest.mark.parametrize("words", [("revoke",), ("list", "env"), ("revoke", "torch")])
def test_what_cannot_be_meant_is_a_usage_error(waived: Stage, words: tuple[str, ...]) -> None:
    assert waived.envguard("waivers", *words).returncode == 2


def test_none_and_a_broken_file(stage: Stage) -> None:
    (stage.project / "envguard.toml").write_text("")
    assert "no waiver is in force" in stage.envguard("waivers").stdout
    state = stage.project / ".envguard"
    state.mkdir(exist_ok=True)
    (state / "waivers.json").write_text("[{")
    broken = stage.envguard("waivers", "list")
    assert broken.returncode == 2
    assert "waivers.json" in broken.stderr


def test_the_schema_of_the_configuration_takes_what_the_product_takes(stage: Stage) -> None:
    described = json.loads(stage.envguard("schema", "config").stdout)
    jsonschema.validate({"checkpoints": ["runs"], "throughput": {"fraction": 0.5}}, described)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"chekpoints": ["runs"]}, described)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"refuse": "maybe"}, described)
