"""docs/configuration.md names every key with its default, and no key that there is none of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from envguard.config import Config, LogFields, PolicyRule, Throughput, load

TEXT = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", TEXT, re.MULTILINE))
SPOKEN = {"none": None, "usual names": LogFields(), "see below": Throughput(), "`.envguard` in the root": None}


def test_every_key_is_there() -> None:
    keys = {field.name for field in msgspec.structs.fields(Config)}
    keys |= {f"throughput.{field.name}" for field in msgspec.structs.fields(Throughput)}
    assert set(ROWS) == keys


@pytest.mark.parametrize("key", ROWS)
def test_every_default_is_true(key: str) -> None:
    said = ROWS[key].strip()
    owner, name = (Throughput(), key.partition(".")[2]) if "." in key else (Config(), key)
    actual = getattr(owner, name)
    if said in SPOKEN:
        assert actual == SPOKEN[said]
    else:
        value = json.loads(said.strip("`"))
        assert actual == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("table", [LogFields, PolicyRule])
def test_every_field_of_a_table_is_named(table: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(table):
        assert f"`{field.name}`" in TEXT


def test_the_example_loads(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "envguard.toml").write_text(example)
    config = load(tmp_path, {}, None)
    assert config.throughput.fraction == 0.8
    assert config.policy[0].subject == "wandb"
