"""Muon for the matrices inside the blocks, AdamW for the rest: on so short a training it learns about twice as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Four times as much saturates attention, whose logits nothing normalises in this form, and look-up is never learned.
MUON_RATE = 0.005
MUON_DECAY = 0.1  # of weights, in learning rates
ADAM_RATE = 0.002
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Attention's and the experts' matrices, for Muon; embedding, head, routers and norms, for AdamW."""
    inside: list[nn.Parameter] = []
    outside: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim >= 2 and ".layers." in name and not name.endswith("mlp.gate.weight")
        (inside if hidden else outside).append(parameter)
    return inside, outside


def adam(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW without decay."""
    return torch.optim.AdamW(parameters, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalised by five Newton-Schulz steps (Jordan 2024); stacks go matrix by matrix.

    A parameter of three dimensions is a stack of matrices. Matrices of one shape are worked on together.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float = MUON_RATE, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update from the gradients."""
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                rows, columns = parameter.shape[-2:]
                shapes.setdefault((rows, columns), []).append(parameter)
            for (rows, columns), parameters in shapes.items():
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                stacks = [self._momentum(parameter, group["momentum"]) for parameter in parameters]
                updates = orthogonal(torch.cat(stacks)).split_with_sizes([len(stack) for stack in stacks])
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - MUON_DECAY * group["lr"]).sub_(scale * update.view_as(parameter))
        return None

    def _momentum(self, parameter: nn.Parameter, decay: float) -> Tensor:
        """Nesterov's look-ahead of the momentum, [matrices, rows, columns]."""
        assert parameter.grad is not None
        state: dict[str, Any] = self.state[parameter]
        held = state.setdefault("momentum", torch.zeros_like(parameter))
        held.lerp_(parameter.grad, 1 - decay)
        return parameter.grad.lerp(held, decay).reshape(-1, *parameter.shape[-2:])


def orthogonal(matrices: Tensor) -> Tensor:
    """For each of the stacked matrices [n, rows, columns] an orthogonal one near it: singular values of about 1."""
    a, b, c = _NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
