"""Optimizers and the weight average, with their rates as tensors so that a CUDA graph can hold a whole step.

All updates are in place and over lists of tensors: a few kernels, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recarc.training.recipes import Recipe


class SGD:
    """buf <- momentum buf + (g + decay w); w <- w - lr buf: torch.optim.SGD's update."""

    def __init__(self, weights: Sequence[Tensor], momentum: float, weight_decay: float) -> None:
        self.weights = list(weights)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers = [torch.zeros_like(w) for w in self.weights]

    def tensors(self) -> list[Tensor]:
        return self.buffers

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], lr: Tensor) -> None:
        g = _decayed(gradients, self.weights, self.weight_decay)
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, g)
        torch._foreach_sub_(self.weights, torch._foreach_mul(self.buffers, lr))


class Adam:
    """torch.optim.Adam's update, betas (0.9, 0.999)."""

    def __init__(self, weights: Sequence[Tensor], weight_decay: float) -> None:
        self.weights, self.weight_decay = list(weights), weight_decay
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights]
        self.powers = torch.ones(2, device=self.weights[0].device)  # 0.9^t, 0.999^t
        self.betas = (0.9, 0.999)

    def tensors(self) -> list[Tensor]:
        return [*self.first, *self.second, self.powers]

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], lr: Tensor) -> None:
        g = _decayed(gradients, self.weights, self.weight_decay)
        b1, b2 = self.betas
        self.powers[0].mul_(b1)
        self.powers[1].mul_(b2)
        torch._foreach_lerp_(self.first, g, 1 - b1)
        torch._foreach_mul_(self.second, b2)
        torch._foreach_addcmul_(self.second, g, g, 1 - b2)
        scale = torch._foreach_div(self.second, 1 - self.powers[1])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, 1e-8)
        move = torch._foreach_div(self.first, scale)
        torch._foreach_mul_(move, lr / (1 - self.powers[0]))
        torch._foreach_sub_(self.weights, move)


def optimizer_for(recipe: Recipe, weights: Sequence[Tensor]) -> SGD | Adam:
    if recipe.optimizer == "adam":
        return Adam(weights, recipe.weight_decay)
    return SGD(weights, recipe.momentum, recipe.weight_decay)


class Average:
    """An exponential moving average of weights and of batch norm's running statistics."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.live = [t for m in modules for t in float_state(m)]
        self.mean = [t.detach().clone() for t in self.live]

    def tensors(self) -> list[Tensor]:
        return self.mean

    @torch.no_grad()
    def update(self, decay: Tensor) -> None:
        torch._foreach_mul_(self.mean, decay)
        torch._foreach_add_(self.mean, torch._foreach_mul(self.live, 1 - decay))


def float_state(module: nn.Module) -> list[Tensor]:
    """The floating-point tensors of a state dict (weights and running statistics), in a fixed order."""
    return [t for t in module.state_dict(keep_vars=True).values() if t.is_floating_point()]


def _decayed(gradients: Sequence[Tensor], weights: list[Tensor], decay: float) -> list[Tensor]:
    """float32 gradients of the penalised loss."""
    g = [torch.empty_like(w) for w in weights]
    torch._foreach_copy_(g, list(gradients))
    if decay:
        torch._foreach_add_(g, weights, alpha=decay)
    return g
