"""Speculative decoding: the target's own text whatever the drafter says, and lengths that training agrees with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.small_models import save_model
from trainer.acceptance import simulate, walk
from trainer.config import ModelConfig, TargetConfig
from trainer.decode import Decoded, leading_matches, speculate
from trainer.model import Cache, Drafter, DrafterShape
from trainer.targets import open_target
from trainer.targets.generation import generate
from trainer.targets.interface import DecodableTarget

CPU = torch.device("cpu")
PROMPTS = [[7, 30, 31, 9], [100, 101, 102, 103, 104, 105, 106]]
LAYOUTS: dict[str, ModelConfig] = {
    "full": ModelConfig(block_size=5, num_layers=2),
    "sliding": ModelConfig(
        block_size=5, num_layers=2, layer_types=("sliding_attention", "full_attention"), sliding_window=6
    ),
}


@pytest.fixture(scope="module", params=["random", "qwen3", "qwen3_5"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecodableTarget:
    if request.param == "random":
        return open_target(TargetConfig(kind="random", shape="tiny", seed=3), CPU, torch.float32, 5)
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, request.param)
    return open_target(TargetConfig(kind="hf", path=str(folder)), CPU, torch.float32, 5)


@pytest.fixture(params=list(LAYOUTS))
def drafter(request: pytest.FixtureRequest, target: DecodableTarget) -> Drafter:
    drafter = Drafter(DrafterShape.of(LAYOUTS[request.param], target.shape))
    drafter.init_weights(0)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)  # at 0.02 the context hardly matters, and neither would a fault in it
    return drafter.eval()


class Oracle:
    """A drafter that knows the text and errs where it is told to: it reaches every length on purpose."""

    def __init__(self, drafter: Drafter, target: DecodableTarget, text: list[int], wrong_every: int) -> None:
        self.shape = drafter.shape
        self.fc = drafter.fc
        self._drafter, self._target, self._text, self._wrong_every = drafter, target, text, wrong_every
        self._drafts = 0

    def new_cache(self, capacity: int) -> Cache:
        return self._drafter.new_cache(capacity)

    def append(self, cache: Cache, taps: Tensor) -> None:
        self._drafter.append(cache, taps)

    def draft(self, cache: Cache, block: Tensor) -> Tensor:
        anchor = cache.length
        after = self._text[anchor + 1 : anchor + len(block)]
        after += [0] * (len(block) - 1 - len(after))
        for slot in range(len(after)):
            if (anchor + slot) % self._wrong_every == 0:
                after[slot] = (after[slot] + 1) % 200
        head = self._target.lm_head().double()
        wish = torch.zeros(len(block), head.shape[0], dtype=torch.float64)
        wish[torch.arange(1, len(block)), torch.tensor(after)] = 1.0
        # Hidden states whose logits come nearest to the wish.
        return torch.linalg.lstsq(head, wish.T).solution.T.float() * 100


def test_the_text_is_that_of_plain_greedy_decoding(target: DecodableTarget, drafter: Drafter) -> None:
    for prompt in PROMPTS:
        decoded = speculate(target, drafter, prompt, 40)
        assert decoded.tokens == generate(target, [prompt], 40)[0]
        check_steps(decoded, drafter.shape.block_size)


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 7, 1000])
def test_the_text_is_the_targets_also_where_drafts_are_accepted(target: DecodableTarget, wrong_every: int) -> None:
    drafter = Drafter(DrafterShape.of(LAYOUTS["full"], target.shape))
    drafter.init_weights(0)
    for prompt in PROMPTS:
        text = generate(target, [prompt], 40)[0]
        oracle = Oracle(drafter, target, [*prompt, *text], wrong_every)
        decoded = speculate(target, oracle, prompt, 40)  # type: ignore[arg-type]
        assert decoded.tokens == text
        check_steps(decoded, drafter.shape.block_size)
        if wrong_every == 1000 and len(text) > 12:
            assert sum(decoded.lengths) / len(decoded.lengths) > 3


def check_steps(decoded: Decoded, block_size: int) -> None:
    assert all(1 <= length <= block_size for length in decoded.lengths)
    assert decoded.anchors[:1] == ([0] if decoded.lengths else [])
    for number, (anchor, length) in enumerate(zip(decoded.anchors, decoded.lengths, strict=True)):
        following = decoded.anchors[number + 1] if number + 1 < len(decoded.anchors) else None
        assert following == anchor + length if following is not None else anchor + length >= len(decoded.tokens) - 1


def test_the_training_forward_gives_the_lengths_of_decoding(target: DecodableTarget, drafter: Drafter) -> None:
    """Simulated and real are two paths to the same blocks; a shift, a leak or a lost window parts them."""
    agreed = fit(target, drafter)
    lengths = []
    for prompt in PROMPTS:
        decoded = speculate(target, drafter, prompt, 40)
        assert walk(simulate(target, drafter, prompt, decoded.tokens)) == decoded.lengths
        lengths += decoded.lengths
    assert max(lengths) > 1, f"nothing was accepted: the comparison says nothing (loss {agreed})"


def fit(target: DecodableTarget, drafter: Drafter) -> float:
    """A few steps towards the target's texts, so that some drafts are accepted."""
    from trainer.acceptance import one_document
    from trainer.anchors import draw_anchors
    from trainer.attention import make_mask
    from trainer.loss import block_loss

    optimizer = torch.optim.Adam(drafter.parameters(), 3e-3)
    rows = []
    for prompt in PROMPTS:
        text = [*prompt, *generate(target, [prompt], 40)[0]]
        batch = one_document(text, supervised_from=len(prompt))
        row = draw_anchors(
            batch,
            anchors=len(text) - len(prompt) - 1,
            block_size=drafter.shape.block_size,
            mask_token_id=target.mask_token_id,
            seed=0,
        )
        rows.append((target.features(batch).taps, batch, row))
    loss = torch.zeros(())
    for _ in range(60):
        optimizer.zero_grad()
        for taps, batch, row in rows:
            masks = {
                kind: make_mask(row.layout, drafter.shape.window(kind), "sdpa") for kind in drafter.shape.layer_types
            }
            block = target.embedding()[row.tokens.reshape(-1)]
            hidden = drafter(taps, batch.position, block, row.position.reshape(-1), masks)
            totals = block_loss(hidden, target.lm_head(), row.labels, row.valid, 4.0)
            loss = totals.numerator / totals.denominator
            loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize(
    ("drafted", "wanted", "count"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3, 3], 1), ([1, 2, 3], [1, 2], 2), ([2], [1], 0)],
)
def test_leading_matches(drafted: Sequence[int], wanted: Sequence[int], count: int) -> None:
    assert leading_matches(drafted, wanted) == count


def test_a_response_that_ends_at_once_has_no_steps(tmp_path: Path) -> None:
    target = open_target(TargetConfig(kind="random", shape="tiny"), CPU, torch.float32, 5)
    drafter = Drafter(DrafterShape.of(LAYOUTS["full"], target.shape))
    drafter.init_weights(0)
    decoded = speculate(target, drafter, PROMPTS[0], 1)
    assert (len(decoded.tokens), decoded.lengths) == (1, [])
    assert simulate(target, drafter, PROMPTS[0], decoded.tokens) == []
