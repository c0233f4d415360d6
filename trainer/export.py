"""A drafter in the form that SGLang and vLLM load: ``config.json`` and ``model.safetensors``.

Names and keys are those of the published DFlash drafters. Several of them change outputs in silence when they
are missing (``rope_theta`` above all), so that every key is written, also where a loader has a default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor

from trainer.checkpoint import MODEL, State, load_state, load_tensors, writing
from trainer.config import Config
from trainer.errors import CheckpointError, ConfigError
from trainer.files import new_directory
from trainer.model import DrafterShape
from trainer.trained import drafter_shape, find_checkpoint

NOTES = (
    "SGLang loads it as it is, also with sliding and full layers together.",
    "vLLM: at present only with VLLM_USE_V2_MODEL_RUNNER=1.",
)
"""What a user must know to serve the export; printed with it."""


def run(config: Config, out: Path, *, checkpoint: Path | None = None, console: Console | None = None) -> None:
    """Exports a checkpoint, by default the run's last, to ``out`` in bf16.

    ConfigError where ``out`` exists: served files are never overwritten.
    """
    path = find_checkpoint(config, checkpoint)
    state = load_state(path)
    export(path, state, out, torch.bfloat16)
    console = console or Console()
    console.print(f"exported step {state.step} to {out}", markup=False)
    for note in NOTES:
        console.print(note, markup=False)


def export(path: Path, state: State, out: Path, dtype: torch.dtype) -> None:
    """Writes the directory ``out``, whole or not at all."""
    shape = drafter_shape(state)
    weights = {name: value.to(dtype) for name, value in load_tensors(path, MODEL, torch.device("cpu")).items()}
    _check_names(weights, shape, path)
    if out.exists():
        raise ConfigError(f"{out} exists: name another --out")
    with writing(out), new_directory(out) as folder:
        # The metadata is what loaders of Hugging Face files look for.
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(serving_config(state, shape, dtype), indent=2)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def serving_names(shape: DrafterShape) -> set[str]:
    """The tensors of the format: no embedding, no LM head, no rotary buffer, no prefix."""
    parts = [
        "input_layernorm",
        "post_attention_layernorm",
        *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
        *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    ]
    names = {f"layers.{layer}.{part}.weight" for layer in range(shape.num_layers) for part in parts}
    return names | {"fc.weight", "hidden_norm.weight", "norm.weight"}


def serving_config(state: State, shape: DrafterShape, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json``."""
    sliding = "sliding_attention" in shape.layer_types
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block_size,
        "dflash_config": {"mask_token_id": state.mask_token_id, "target_layer_ids": list(shape.taps)},
        "dtype": str(dtype).removeprefix("torch."),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "layer_types": list(shape.layer_types),
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "num_target_layers": int(state.identity["num_layers"]),
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.sliding_window if sliding else None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": sliding,
        "vocab_size": shape.vocab_size,
    }


def _check_names(weights: dict[str, Tensor], shape: DrafterShape, path: Path) -> None:
    expected = serving_names(shape)
    if set(weights) != expected:
        odd = sorted(set(weights) ^ expected)
        raise CheckpointError(f"{path} does not hold the tensors of the serving format: {odd[:4]}")
