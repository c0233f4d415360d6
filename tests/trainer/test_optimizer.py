"""The optimizer against torch's own pieces put together by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.errors import CheckpointError, TrainerError
from trainer.optimizer import DrafterOptimizer, learning_rate

CONFIG = TrainConfig(lr=0.1, clip=0.2, warmup=0.2)


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1)).to(dtype)


def alone(tensor: Tensor) -> None:
    """One drafter."""


def twice(tensor: Tensor) -> None:
    """Two drafters with the same rows."""
    tensor.mul_(2)


def backward(of: nn.Module, seed: int) -> None:
    dtype = next(of.parameters()).dtype
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
    of(rows).float().square().sum().backward()


def test_two_micro_batches_of_sums_equal_one_step_of_the_mean() -> None:
    """Clipping sees the gradient of the mean, whatever the rows were cut into."""
    ours, theirs = model(), model()
    optimizer = DrafterOptimizer(ours, CONFIG)
    reference = torch.optim.AdamW(theirs.parameters(), lr=CONFIG.lr, betas=CONFIG.betas, weight_decay=0.0)
    for step in range(3):
        for micro in (0, 1):
            backward(ours, seed=10 * step + micro)
            optimizer.collect()
        norm, rate = optimizer.step(step, 10, 16.0, alone)
        for micro in (0, 1):
            backward(theirs, seed=10 * step + micro)
        for parameter in theirs.parameters():
            assert parameter.grad is not None
            parameter.grad /= 16.0
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), CONFIG.clip)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        reference.zero_grad()
        assert norm == pytest.approx(float(expected), rel=1e-5)
        assert norm > CONFIG.clip  # the case is worth something
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_reduction_sees_sums() -> None:
    """Doubling gradient and denominator, as a second drafter with the same rows would, changes nothing."""
    single, double = model(), model()
    for of, factor in ((single, 1), (double, 2)):
        optimizer = DrafterOptimizer(of, CONFIG)
        backward(of, seed=1)
        optimizer.collect()
        optimizer.step(0, 10, 8.0 * factor, alone if factor == 1 else twice)
    for mine, other in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_small_updates_are_not_lost_in_bf16() -> None:
    of = model(torch.bfloat16)
    optimizer = DrafterOptimizer(of, TrainConfig(lr=1e-6, warmup=0.0))
    before = [master.clone() for master in optimizer.masters]
    for step in range(3):
        backward(of, seed=step)
        optimizer.collect()
        optimizer.step(step, 10**6, 8.0, alone)
    for master, old, parameter in zip(optimizer.masters, before, of.parameters(), strict=True):
        assert master.dtype == torch.float32
        assert (master - old).abs().max() > 0
        assert torch.equal(parameter, master.bfloat16())


def test_schedule() -> None:
    rates = [learning_rate(step, 100, TrainConfig(lr=1.0, warmup=0.04)) for step in range(100)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[52] == pytest.approx(0.5 * (1 + math.cos(math.pi * 48 / 96)))
    assert rates[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 95 / 96)))
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert learning_rate(0, 1, TrainConfig(lr=1.0, warmup=0.0)) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_round_trip_continues_to_the_bit(dtype: torch.dtype) -> None:
    first, second = model(dtype), model(dtype)
    one, two = (DrafterOptimizer(of, CONFIG) for of in (first, second))
    for step in range(4):
        if step == 2:
            second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
            two.load_state({name: value.clone() for name, value in one.state().items()})
        for of, optimizer in ((first, one), (second, two)) if step >= 2 else ((first, one),):
            backward(of, seed=step)
            optimizer.collect()
            optimizer.step(step, 10, 8.0, alone)
    for name, value in one.state().items():
        assert torch.equal(value, two.state()[name])


def test_a_state_that_lacks_a_moment_is_refused() -> None:
    optimizer = DrafterOptimizer(model(), CONFIG)
    state = optimizer.state()
    del state["exp_avg_sq.0.weight"]
    with pytest.raises(CheckpointError, match=r"exp_avg_sq\.0\.weight"):
        optimizer.load_state(state)


def test_a_step_without_any_label_changes_nothing() -> None:
    of = model()
    optimizer = DrafterOptimizer(of, CONFIG)
    before = [parameter.clone() for parameter in of.parameters()]
    assert optimizer.step(0, 10, 0.0, alone)[0] == 0.0
    for parameter, old in zip(of.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_a_gradient_that_is_not_finite_updates_nothing() -> None:
    of = model()
    optimizer = DrafterOptimizer(of, CONFIG)
    before = [parameter.clone() for parameter in of.parameters()]
    optimizer.gradient[3] = torch.nan
    with pytest.raises(TrainerError, match="step 1 is not finite"):
        optimizer.step(0, 10, 8.0, alone)
    for parameter, old in zip(of.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
