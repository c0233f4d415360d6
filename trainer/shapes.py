"""Sizes of targets, known without loading any weights: what the dry run and random targets need."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import TargetConfig
from trainer.errors import ConfigError


@dataclass(frozen=True)
class TargetShape:
    """The sizes of a target that the drafter's own sizes and FLOPs follow from."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tied: bool = False
    full_attention_every: int = 1
    """1 where all layers are full attention; 4 where three of four are linear attention."""
    drafter: dict[str, int] = field(default_factory=dict)
    """Drafter sizes that the published drafter of this target does not take from it."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"{self.name}: {self.num_heads} heads over {self.num_kv_heads} key/value heads")


SHAPES: dict[str, TargetShape] = {
    shape.name: shape
    for shape in (
        TargetShape("tiny", 32, 8, 4, 2, 8, 64, 256, 1e4, 4096),
        TargetShape("smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152, 1e5, 8192, 1e-5, True),
        TargetShape("qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, 1e6, 40960),
        TargetShape(
            # The sizes are those of its full-attention layers.
            "qwen3.6-27b",
            5120,
            64,
            24,
            4,
            256,
            17408,
            248320,
            1e7,
            262144,
            full_attention_every=4,
            drafter={"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
        ),
    )
}


def shape_of(config: TargetConfig) -> TargetShape:
    """The sizes of the configured target; ConfigError where they cannot be told without loading it."""
    if config.kind == "smollm2-gguf":
        return SHAPES["smollm2-135m"]
    if config.kind == "random":
        if config.shape not in SHAPES:
            raise ConfigError(f"target.shape {config.shape!r} is none of {', '.join(SHAPES)}")
        return SHAPES[config.shape]
    path = Path(config.path or "") / "config.json"
    if not path.exists() and config.shape in SHAPES:
        return SHAPES[config.shape]
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return shape_of_hf(values, str(path.parent))


def shape_of_hf(values: dict[str, Any], name: str) -> TargetShape:
    """The sizes in a Hugging Face ``config.json``; ConfigError names a missing one."""
    values = values.get("text_config", values)  # multimodal models nest the language model
    rope = values.get("rope_parameters") or {}
    try:
        heads = int(values["num_attention_heads"])
        return TargetShape(
            name=name,
            hidden_size=int(values["hidden_size"]),
            num_layers=int(values["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or values["hidden_size"] // heads),
            intermediate_size=int(values["intermediate_size"]),
            vocab_size=int(values["vocab_size"]),
            rope_theta=float(values.get("rope_theta") or rope.get("rope_theta") or 1e4),
            max_position_embeddings=int(values["max_position_embeddings"]),
            rms_norm_eps=float(values.get("rms_norm_eps") or 1e-6),
            tied=bool(values.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise ConfigError(f"{name}: config.json has no {error.args[0]}") from error


def tap_layers(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """The 0-based target layers whose outputs the drafter sees, spread from layer 1 to the third last.

    ConfigError where the target is too shallow to give distinct ones.

    >>> tap_layers(36, 5)
    (1, 9, 17, 25, 33)
    """
    if num_taps == 1:
        return (num_layers // 2,)
    taps = tuple(round(1 + i * (num_layers - 4) / (num_taps - 1)) for i in range(num_taps))
    if num_layers < 4 or len(set(taps)) < num_taps:
        raise ConfigError(f"a target of {num_layers} layers has no {num_taps} distinct taps")
    return taps
