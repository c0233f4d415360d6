"""AdamW on fp32 master weights, one flat fp32 gradient, cosine schedule with warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.errors import CheckpointError, TrainerError

# Names of the state's tensors: KIND + "." + parameter name.
MASTER, EXP_AVG, EXP_AVG_SQ, ADAM_STEP = "master", "exp_avg", "exp_avg_sq", "step"


def learning_rate(step: int, total_steps: int, config: TrainConfig) -> float:
    """Of the ``step``-th update, counted from 0: linear warm-up, then half a cosine down to 0."""
    warmup = math.ceil(config.warmup * total_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class DrafterOptimizer:
    """Adds up gradients of sums over micro-batches, reduces them, and divides once by the summed weights.

    All gradients live in one flat fp32 buffer: one all-reduce, one norm. A bf16 drafter has fp32 master
    weights here; an fp32 drafter's own parameters are the masters.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.config = config
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters: list[Tensor] = list(model.parameters())
        self.narrow = self.parameters[0].dtype != torch.float32
        device = self.parameters[0].device
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradient = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        self.masters: list[Tensor] = [p.detach().float() if self.narrow else p for p in self.parameters]
        for master, piece in zip(self.masters, torch.split(self.gradient, sizes), strict=True):
            master.grad = piece.view(master.shape)
        matrices = [master for master in self.masters if master.ndim > 1]
        vectors = [master for master in self.masters if master.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=device.type == "cuda")

    def collect(self) -> None:
        """Adds a micro-batch's gradients to the flat buffer (an fp32 drafter's backward already did)."""
        if not self.narrow:
            return
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None and master.grad is not None:
                master.grad.add_(parameter.grad)  # bf16 into fp32, without an fp32 copy of all gradients
            parameter.grad = None

    def step(
        self, step: int, total_steps: int, denominator: float, reduce: Callable[[Tensor], None]
    ) -> tuple[float, float]:
        """Reduces, scales by 1 / ``denominator``, clips and updates; returns (gradient norm, learning rate).

        The norm is that of the mean's gradient before clipping. Raises TrainerError, with nothing updated,
        where it is not finite.
        """
        reduce(self.gradient)
        scale = 1.0 / denominator if denominator > 0 else 0.0
        norm = float(torch.linalg.vector_norm(self.gradient)) * scale
        if not math.isfinite(norm):
            raise TrainerError(
                f"the gradient of step {step + 1} is not finite, and nothing was updated: the same command goes on "
                "from the last checkpoint; a lower train.lr or train.dtype=float32 may help"
            )
        self.gradient.mul_(scale * min(1.0, self.config.clip / (norm + 1e-6)))
        rate = learning_rate(step, total_steps, self.config)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.gradient.zero_()
        if self.narrow:
            self.publish()
        return norm, rate

    def discard(self) -> None:
        """Drops all gradients."""
        self.gradient.zero_()
        if self.narrow:
            for parameter in self.parameters:
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the masters into the drafter."""
        torch._foreach_copy_(self.parameters, self.masters)

    @torch.no_grad()
    def adopt(self) -> None:
        """Takes the drafter's present weights as masters: after weights alone were loaded."""
        if self.narrow:
            torch._foreach_copy_(self.masters, self.parameters)

    def state(self) -> dict[str, Tensor]:
        """All tensors, by name; before the first update the moments are zeros."""
        tensors = {}
        for name, master in zip(self.names, self.masters, strict=True):
            moments = self.adam.state.get(master) or self._fresh(master)
            for kind in (EXP_AVG, EXP_AVG_SQ, ADAM_STEP):
                tensors[f"{kind}.{name}"] = moments[kind]
            if self.narrow:
                tensors[f"{MASTER}.{name}"] = master.detach()
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes ``state``'s tensors; CheckpointError where one is missing or of another shape."""
        for name, master in zip(self.names, self.masters, strict=True):
            moments = self._fresh(master)
            kinds = dict(moments)
            if self.narrow:
                kinds[MASTER] = master
            for kind, place in kinds.items():
                saved = tensors.get(f"{kind}.{name}")
                if saved is None or saved.shape != place.shape:
                    raise CheckpointError(f"the optimizer state has no fitting {kind}.{name}")
                place.copy_(saved)
            self.adam.state[master] = moments
        if self.narrow:
            self.publish()

    def _fresh(self, master: Tensor) -> dict[str, Tensor]:
        # The fused kernel wants its step count on the device.
        where = master.device if master.is_cuda else torch.device("cpu")
        return {
            ADAM_STEP: torch.zeros((), dtype=torch.float32, device=where),
            EXP_AVG: torch.zeros_like(master),
            EXP_AVG_SQ: torch.zeros_like(master),
        }
