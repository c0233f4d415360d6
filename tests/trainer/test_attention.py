"""Compiled flex_attention (forward; CPU has no backward) held against SDPA with the dense mask."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.drafters import TARGET, embedding, masks_of, random_taps, small_drafter
from tests.trainer.rows import packed_row
from trainer.anchors import draw_anchors
from trainer.attention import attend, choose_backend, make_mask
from trainer.config import TrainConfig
from trainer.errors import ConfigError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_compiled_flex_equals_sdpa_on_the_same_predicate() -> None:
    batch = packed_row([100, 60, 70], padded_to=256)
    row = draw_anchors(batch, anchors=40, block_size=8, mask_token_id=0, seed=0)
    row.layout.anchor[7:12] = -1
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 320, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, 256 + 320, 16, generator=generator).unbind(0)
    key, value = key.clone(), value.clone()
    with torch.no_grad():
        for window in (None, 24):
            dense = attend(query, key, value, make_mask(row.layout, window, "sdpa"))
            flex = attend(query, key, value, make_mask(row.layout, window, "flex"))
            torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-5)
            assert not flex[0, :, 7 * 8 : 12 * 8].any()
            assert not dense[0, :, 7 * 8 : 12 * 8].any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_whole_drafter_on_flex_equals_the_drafter_on_sdpa() -> None:
    drafter, batch = small_drafter(), packed_row([60, 68])
    row = draw_anchors(batch, anchors=32, block_size=4, mask_token_id=63, seed=0)
    block, taps = embedding()[row.tokens.reshape(-1)], random_taps(128)
    with torch.no_grad():
        outs = [
            drafter(taps, batch.position, block, row.position.reshape(-1), masks_of(drafter, row, backend))
            for backend in ("sdpa", "flex")
        ]
    assert outs[0].shape == (128, TARGET.hidden_size)
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-3, atol=1e-4)


def test_the_backend_follows_the_device_and_flex_on_cpu_is_refused() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_backend(TrainConfig(), cpu) == "sdpa"
    assert choose_backend(TrainConfig(), cuda) == "flex"
    assert choose_backend(TrainConfig(attention="sdpa"), cuda) == "sdpa"
    with pytest.raises(ConfigError, match="no backward on CPU"):
        choose_backend(TrainConfig(attention="flex"), cpu)
