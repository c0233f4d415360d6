"""FLOPs against the published floors, and parameters against the model's own count."""

from __future__ import annotations

import pytest
import torch

from trainer.config import ModelConfig
from trainer.flops import drafter_flops, drafter_parameters, peak_flops, target_flops, visible_keys
from trainer.model import Drafter, DrafterShape
from trainer.shapes import SHAPES, TargetShape


@pytest.mark.parametrize(
    ("target", "anchors", "milliseconds"),
    [("qwen3-8b", 512, 97), ("qwen3-8b", 1024, 191), ("qwen3.6-27b", 512, 167)],
)
def test_the_floor_at_777_tflops_of_4096_tokens(target: str, anchors: int, milliseconds: int) -> None:
    shape = DrafterShape.of(ModelConfig(), SHAPES[target])
    assert drafter_flops(shape, 4096, anchors, head_on_anchors=True) / 777e12 * 1e3 == pytest.approx(
        milliseconds, abs=0.6
    )


def test_slot_0_needs_no_head() -> None:
    shape = DrafterShape.of(ModelConfig(), SHAPES["qwen3-8b"])
    saved = drafter_flops(shape, 4096, 512, head_on_anchors=True) - drafter_flops(shape, 4096, 512)
    assert saved == 4.0 * 512 * 4096 * 151936


@pytest.mark.parametrize("name", SHAPES)
def test_parameters(name: str) -> None:
    shape = DrafterShape.of(ModelConfig(), SHAPES[name])
    with torch.device("meta"):
        drafter = Drafter(shape)
    assert drafter_parameters(shape) == sum(parameter.numel() for parameter in drafter.parameters())


def test_visible_keys_of_a_window_are_those_counted() -> None:
    target = TargetShape("t", 8, 8, 1, 1, 8, 8, 8, 1e4, 64)
    config = ModelConfig(
        block_size=4, num_layers=2, layer_types=("full_attention", "sliding_attention"), sliding_window=16
    )
    full, sliding = visible_keys(DrafterShape.of(config, target), 400)
    assert full == pytest.approx(sum(range(400)) / 400 + 4, abs=1)
    assert sliding == pytest.approx(sum(min(at, 15) for at in range(400)) / 400 + 4, abs=1)


def test_target_work_stops_at_the_deepest_tap() -> None:
    shape = SHAPES["smollm2-135m"]
    whole, tapped = (target_flops(shape, tap, 1024, 1024 * 512) for tap in (29, 27))
    assert tapped / whole == pytest.approx(28 / 30)


def test_peaks() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("CPU") is None
