"""The drafter: no leak, training forward equals cached inference, names of the serving format."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.drafters import FULL, SLIDING, TARGET, embedding, random_taps, run_blocks, small_drafter
from tests.trainer.rows import packed_row
from trainer.anchors import AnchorRow, draw_anchors
from trainer.batch import PackedBatch
from trainer.config import LayerType, ModelConfig
from trainer.errors import ConfigError
from trainer.model import DrafterShape, Layer
from trainer.shapes import SHAPES, tap_layers

KINDS = pytest.mark.parametrize("kinds", [FULL * 2, SLIDING], ids=["full", "sliding"])


def drawn(batch: PackedBatch, anchors: int = 10) -> AnchorRow:
    return draw_anchors(batch, anchors=anchors, block_size=4, mask_token_id=63, seed=0)


@KINDS
def test_a_block_sees_nothing_at_or_after_its_anchor_and_no_other_document(
    kinds: tuple[LayerType, ...],
) -> None:
    """To the bit: a tap that leaks makes training accuracy a lie (98 % in training, 10 % served)."""
    drafter, batch = small_drafter(kinds), packed_row([17, 12, 9], padded_to=44)
    row, taps = drawn(batch), random_taps(44)
    clean = run_blocks(drafter, taps, batch.position, row)
    assert row.live == 10
    for number, at in enumerate(row.layout.anchor.tolist()):
        seen = (batch.document == batch.document[at]) & (torch.arange(44) < at)
        foul = torch.where(seen[:, None], taps, random_taps(44, seed=8) * 50)
        assert torch.equal(run_blocks(drafter, foul, batch.position, row)[number], clean[number])
        if at > row.layout.start[number] + 1:
            foul = taps.clone()
            foul[at - 1] += 1.0
            assert not torch.equal(run_blocks(drafter, foul, batch.position, row)[number], clean[number])


@KINDS
def test_overlapping_blocks_do_not_see_each_other(kinds: tuple[LayerType, ...]) -> None:
    drafter, batch = small_drafter(kinds), packed_row([12])
    row, taps = drawn(batch, anchors=11), random_taps(12)
    assert row.live == 11  # every pair: each block overlaps its neighbours
    clean = run_blocks(drafter, taps, batch.position, row)
    row.tokens[4] = torch.tensor([1, 2, 3, 4])
    changed = run_blocks(drafter, taps, batch.position, row)
    same = [torch.equal(a, b) for a, b in zip(clean, changed, strict=True)]
    assert same == [number != 4 for number in range(11)]


@KINDS
def test_training_forward_equals_cached_inference(kinds: tuple[LayerType, ...]) -> None:
    """In sliding layers too: a decoder that forgets the window costs most of the acceptance."""
    drafter, batch = small_drafter(kinds), packed_row([21, 15])
    row, taps = drawn(batch, anchors=12), random_taps(36)
    trained = run_blocks(drafter, taps, batch.position, row)
    for number, at in enumerate(row.layout.anchor.tolist()):
        start = int(row.layout.start[number])
        cache = drafter.new_cache(32)
        for low in range(start, at, 5):  # in pieces, as decoding adds them
            drafter.append(cache, taps[low : min(low + 5, at)])
        served = drafter.draft(cache, embedding()[row.tokens[number]])
        torch.testing.assert_close(served, trained[number], rtol=1e-4, atol=1e-5)


def test_a_cache_takes_no_more_than_it_has_room_for() -> None:
    drafter = small_drafter()
    cache = drafter.new_cache(20)
    drafter.append(cache, random_taps(12))
    with pytest.raises(ValueError, match="a cache of"):
        drafter.append(cache, random_taps(9))


def test_a_document_is_drafted_alike_wherever_it_stands_in_a_row() -> None:
    """Positions restart at each document."""
    drafter, taps = small_drafter(), random_taps(20)
    alone = packed_row([20], first_id=1)
    packed = packed_row([30, 20])
    here, there = drawn(alone, anchors=6), drawn(packed, anchors=15)
    own = [n for n, at in enumerate(there.layout.anchor.tolist()) if at >= 30]
    assert (there.layout.anchor[own] - 30).tolist() == here.layout.anchor.tolist()
    there.tokens[own] = here.tokens
    first = run_blocks(drafter, taps, alone.position, here)
    moved = run_blocks(drafter, torch.cat([random_taps(30, seed=4), taps]), packed.position, there)[own]
    torch.testing.assert_close(moved, first, rtol=1e-4, atol=1e-5)


def test_empty_blocks_give_no_nan_and_no_gradient() -> None:
    drafter, batch = small_drafter(), packed_row([4], padded_to=16)
    row, taps = drawn(batch, anchors=6), random_taps(16).requires_grad_()
    out = run_blocks(drafter, taps, batch.position, row)
    assert out.isfinite().all()
    assert row.live == 3
    out[3:].sum().backward()
    assert taps.grad is not None
    assert not taps.grad.any()
    layer = drafter.layers[0]
    assert isinstance(layer, Layer)
    for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.q_proj):
        assert projection.weight.grad is None or not projection.weight.grad.any()


def test_parameters_have_the_names_of_the_serving_format() -> None:
    names = set(small_drafter(FULL).state_dict())
    layer = {
        "input_layernorm",
        "post_attention_layernorm",
        *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    }
    assert names == {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.0.{name}.weight" for name in layer}


def test_initial_weights_depend_on_the_seed_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        return small_drafter(seed=seed).fc.weight

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(64, (1, 16, 31, 46, 61)), (36, (1, 9, 17, 25, 33)), (30, (1, 8, 14, 20, 27)), (8, (1, 2, 3, 4, 5))],
)
def test_tap_layers(layers: int, taps: tuple[int, ...]) -> None:
    assert tap_layers(layers, 5) == taps


def test_tap_layers_of_shallow_targets() -> None:
    assert tap_layers(7, 1) == (3,)
    with pytest.raises(ConfigError, match="distinct"):
        tap_layers(7, 5)


def test_sizes_default_to_the_targets_own() -> None:
    shape = DrafterShape.of(ModelConfig(intermediate_size=80), TARGET)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.intermediate_size) == (4, 2, 8, 80)
    with pytest.raises(ConfigError, match="4 heads do not divide among 3"):
        DrafterShape.of(ModelConfig(num_kv_heads=3), TARGET)
    story = DrafterShape.of(ModelConfig(), SHAPES["qwen3.6-27b"])
    assert (story.num_heads, story.num_kv_heads, story.head_dim) == (32, 8, 128)
