"""The configuration: every shipped file loads, every mistake is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from trainer.config import Config, build_config, load_config
from trainer.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_configurations_load(path: Path) -> None:
    load_config(path)


def test_the_storys_values() -> None:
    config = load_config(CONFIGS / "qwen3.6-27b-5+3.toml")
    assert (config.data.token_budget, config.data.max_batch_size, config.model.anchors) == (49152, 64, 1024)
    assert config.model.block_size == 16
    assert config.model.layer_types == ("sliding_attention",) * 4 + ("full_attention",)
    assert (config.model.sliding_window, config.gamma()) == (2048, 7.0)
    assert (config.topology.targets, config.topology.drafters, config.rows_per_step()) == (5, 3, 3)
    assert (config.train.lr, config.train.clip, config.train.warmup, config.train.epochs) == (6e-4, 1.0, 0.04, 6)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"modle": {}}, r"unknown section \[modle\]: did you mean 'model'\?"),
        ({"data": {"paths": "a.jsonl"}}, r"data\.paths: Expected `array`.*: a list is written '\[\"a\.jsonl\"\]'"),
        ({"model": {"anchor": 3}}, "unknown key model.anchor: did you mean 'anchors'"),
        ({"train": {"anchors": 3}}, r"unknown key train.anchors; it belongs to \[model\]"),
        ({"model": {"anchors": "many"}}, "model.anchors: Expected `int`, got `str`"),
        ({"model": {"anchors": 0}}, "model.anchors: Expected `int` >= 1"),
        ({"target": {"kind": "smollm2"}}, "none of smollm2-gguf, hf, random: did you mean 'smollm2-gguf'"),
        ({"model": {"layer_types": ["full"]}}, r"model.layer_types\[0\]: .* none of full_attention, sliding"),
        ({"train": {"dtype": "bf16"}}, "none of auto, float32, bfloat16: did you mean 'bfloat16'"),
        ({"model": 3}, "model is a table"),
        ({"model": {"block_size": 1}}, "model.block_size: Expected `int` >= 2"),
        ({"model": {"layer_types": ["full_attention"]}}, "1 entries for 5 layers"),
        ({"model": {"num_layers": 1, "layer_types": ["sliding_attention"]}}, "sliding_window is missing"),
        (
            {"model": {"num_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 15}},
            "at least model.block_size",
        ),
        ({"data": {"length_buckets": [512, 256]}}, "must ascend"),
        ({"data": {"length_buckets": [65536]}}, "past data.token_budget"),
        ({"model": {"anchors": 32}}, "max_batch_size must not exceed"),
        ({"train": {"rows_per_step": 4}, "topology": {"drafters": 3}}, "multiple of topology.drafters"),
        ({"target": {"kind": "hf"}}, "target.path is missing"),
        ({"target": {"kind": "random"}}, "target.shape is missing"),
    ],
)
def test_mistakes_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(table)


@pytest.mark.parametrize("section", [field.name for field in msgspec.structs.fields(Config)])
def test_no_number_may_be_absurd(section: str) -> None:
    """Whatever a negative size, an odd head or a step count of 0 would do later, it is told at the start."""
    numbers = 0
    for field in msgspec.structs.fields(type(getattr(Config(), section))):
        if not {int, float} & set(_leaves(field.type)):
            continue
        numbers += 1
        for value in (-1, -1.5, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match=rf"{section}\.{field.name}"):
                build_config({section: {field.name: [value] * 2 if "tuple" in str(field.type) else value}})
    assert numbers or section == "log"


def _leaves(kind: Any) -> list[Any]:
    return [leaf for inner in get_args(kind) for leaf in _leaves(inner)] or [kind]


def test_all_unknown_keys_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"model\.anchor.*train\.learning_rate"):
        build_config({"model": {"anchor": 3}, "train": {"learning_rate": 1}})


def test_overrides(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[model]\nanchors = 100\n")
    config = load_config(file, ["model.anchors=200", "checkpoint.dir=runs/a b", 'data.paths=["x"]', "train.lr=1e-3"])
    assert config.model.anchors == 200
    assert config.checkpoint.dir == "runs/a b"
    assert config.data.paths == ("x",)
    assert config.train.lr == 1e-3


@pytest.mark.parametrize("override", ["model.anchors", "anchors=3", ".x=1", "model=3"])
def test_malformed_overrides(override: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_config(None, [override])


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml"):
        load_config(tmp_path / "latin.toml")


def test_the_digest_follows_the_values() -> None:
    assert build_config({}).digest() == build_config({"model": {"anchors": 512}}).digest()
    assert build_config({}).digest() != build_config({"model": {"anchors": 511}}).digest()


def test_gamma_of_other_block_sizes_must_be_given() -> None:
    assert [build_config({"model": {"block_size": size}}).gamma() for size in (16, 10, 8)] == [7.0, 5.0, 4.0]
    with pytest.raises(ConfigError, match=r"train\.gamma"):
        build_config({"model": {"block_size": 12}}).gamma()
    assert build_config({"model": {"block_size": 12}, "train": {"gamma": 6.0}}).gamma() == 6.0
