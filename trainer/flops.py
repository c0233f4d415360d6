"""What a step must compute at least: the FLOPs that MFU and the dry run are told against.

Q = A * B draft tokens of S context tokens; a multiply-add counts as two.
"""

from __future__ import annotations

from trainer.model import DrafterShape
from trainer.shapes import TargetShape

PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "GH200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 peak of a device whose name holds the key, FLOP/s, by its vendor's data sheet."""


def peak_flops(device_name: str) -> float | None:
    """The device's nominal bf16 peak, None where it is not known (a CPU)."""
    return next((peak for key, peak in PEAK_BF16.items() if key in device_name), None)


def drafter_parameters(shape: DrafterShape) -> int:
    """Trained weights."""
    H, d = shape.hidden_size, shape.head_dim
    attention = H * d * (2 * shape.num_heads + 2 * shape.num_kv_heads) + 2 * d
    layer = attention + 3 * H * shape.intermediate_size + 2 * H
    return shape.num_layers * layer + len(shape.taps) * H * H + 2 * H


def visible_keys(shape: DrafterShape, context: int) -> list[float]:
    """Keys that a query sees on average, a layer, of one document of ``context`` tokens with even anchors."""
    means = []
    for kind in shape.layer_types:
        window = shape.window(kind)
        reach = context if window is None else min(window, context)
        # Anchors before the window is full see all there is, later ones the window.
        mean = context / 2 if window is None else reach - reach * reach / (2 * context)
        means.append(mean + shape.block_size)
    return means


def drafter_flops(
    shape: DrafterShape,
    context: int,
    anchors: int,
    *,
    keys: list[float] | None = None,
    head_on_anchors: bool = False,
) -> float:
    """Forward and backward of one packed row, LM head and loss included.

    ``keys``: visible keys a query and layer; by default those of one document that fills the row.
    ``head_on_anchors`` counts an LM head on slot 0 too, which has no loss: published floors do.
    """
    H, d, h, g = shape.hidden_size, shape.head_dim, shape.num_heads, shape.num_kv_heads
    queries = anchors * shape.block_size
    per_query = shape.num_layers * (2 * H * h * d + 2 * H * g * d + 3 * H * shape.intermediate_size)
    per_context = shape.num_layers * 2 * H * g * d + len(shape.taps) * H * H
    linear = 6.0 * (queries * per_query + context * per_context)
    predicted = queries if head_on_anchors else queries - anchors
    head = 4.0 * predicted * H * shape.vocab_size  # frozen: no gradient of its weight
    attention = sum(3.5 * 4 * h * d * queries * seen for seen in keys or visible_keys(shape, context))
    return linear + head + attention


def target_flops(target: TargetShape, deepest_tap: int, tokens: int, pairs: float) -> float:
    """Forward of one row up to the deepest tap, without LM head.

    ``pairs``: how many tokens all tokens see in sum, themselves included; n * n / 2 for a document of n.
    """
    H, d, layers = target.hidden_size, target.head_dim, deepest_tap + 1
    projections = H * d * (2 * target.num_heads + 2 * target.num_kv_heads)
    weights = layers * (projections + 3 * H * target.intermediate_size)
    scores = layers / target.full_attention_every * 4.0 * target.num_heads * d * pairs
    return 2.0 * weights * tokens + scores
